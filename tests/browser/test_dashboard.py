"""The dashboard in a real Chromium, on a run whose names contain markup, quotes, percent signs and newlines."""

import re
from urllib.parse import quote

import pytest
from browsing import ODD_NAME, Server, Watched
from playwright.sync_api import Page, expect

RUN = quote(ODD_NAME)

# page -> a selector that appears only when the page has shown its content
PAGES = {
    "": "#runs .ag-row",
    "overview": "#overview-report .finding",
    "timeline": "#timeline .barlayer .point",
    "layers": "#layers .ag-row",
    "operators": "#operators .ag-row",
    "threads": ".page-title",
    "loading": ".page-title",
    "distributed": ".page-title",
    "noise": ".page-title",
    "counters": "#counters .scatterlayer .js-line",
    "settings": ".page-title",
}


def open_page(page: Page, server: Server, path: str, run: str = RUN) -> None:
    page.goto(f"{server.url}{path}?run={run}")
    page.locator(PAGES[path]).first.wait_for()


def assert_no_markup_came_through(page: Page) -> None:
    assert page.locator("img[src='x']").count() == 0
    assert page.locator("body script:not([src]):not([type='application/json']):not([id])").count() == 0


@pytest.mark.parametrize("path", PAGES)
def test_every_page_shows_hostile_names_as_text(path: str, server: Server, watched: Watched) -> None:
    open_page(watched.page, server, path)
    watched.page.wait_for_load_state("networkidle")
    assert_no_markup_came_through(watched.page)
    assert "cannot be shown" not in watched.page.inner_text("#page")


@pytest.mark.parametrize("path", [path for path in PAGES if path])
def test_every_page_copes_with_an_empty_run(path: str, server: Server, watched: Watched) -> None:
    watched.page.goto(f"{server.url}{path}?run=empty")
    watched.page.locator(".page-title").wait_for()
    watched.page.wait_for_load_state("networkidle")


def test_a_click_on_a_run_opens_it_and_navigation_keeps_it(server: Server, watched: Watched) -> None:
    page = watched.page
    open_page(page, server, "")
    page.locator("#runs .ag-row", has_text="odd & 100%").locator(".ag-cell").first.click()
    page.locator("#overview-report").wait_for()
    expect(page.locator("#run")).to_contain_text(ODD_NAME)
    page.locator("#navigation").get_by_text("Layers", exact=True).click()
    page.locator(PAGES["layers"]).first.wait_for()
    assert RUN.replace("%20", "+") in page.url.replace("%20", "+")


def test_ranks_lie_on_one_axis_with_their_buckets_and_who_was_late(server: Server, watched: Watched) -> None:
    page = watched.page
    page.goto(f"{server.url}distributed?run=ranks")
    expect(page.locator("#page")).to_contain_text("rank 1's forward caused")
    legend = page.locator("#page .legendtext")
    for what in ("waiting, forward was late", "a gradient bucket under way", "its own work"):
        expect(legend.filter(has_text=what)).not_to_have_count(0)
    expect(page.locator("#page .barlayer .point")).not_to_have_count(0)
    expect(page.locator("#page")).to_contain_text("times are corrected")
    page.wait_for_load_state("networkidle")


def test_an_exploration_shows_times_by_count_and_the_plan(server: Server, watched: Watched) -> None:
    page = watched.page
    page.goto(f"{server.url}threads?run=explored")
    page.locator("#thread-times .ag-row", has_text="<img src=x").first.wait_for()
    page.locator("#guidelines .ag-row").first.wait_for()
    expect(page.locator("#page .scatterlayer .js-line")).not_to_have_count(0)
    expect(page.locator("#page .errorbar")).not_to_have_count(0)
    expect(page.locator("#page .barlayer .point")).not_to_have_count(0)
    expect(page.locator("#page")).to_contain_text("24 blocks of steps ran with 1, 2 and 4 threads")
    page.wait_for_load_state("networkidle")
    assert_no_markup_came_through(page)


def test_a_click_on_a_study_opens_it_and_leads_to_the_run_it_explored(server: Server, watched: Watched) -> None:
    page = watched.page
    open_page(page, server, "")
    page.locator("#studies .ag-row", has_text="odd & 100%").locator(".ag-cell").first.click()
    page.locator("#comparisons .ag-row", has_text="faster").first.wait_for()
    expect(page.locator("#page .boxlayer .box")).to_have_count(3)
    expect(page.locator("#run")).to_contain_text(ODD_NAME)
    expect(page.locator("#page")).to_contain_text("The noise floor is 2.0 %")
    page.wait_for_load_state("networkidle")
    assert_no_markup_came_through(page)
    page.get_by_text("the run that explored").click()
    page.locator("#thread-times .ag-row").first.wait_for()
    page.locator("#navigation").get_by_text("Layers", exact=True).click()
    page.locator(PAGES["layers"]).first.wait_for()
    expect(page.locator("#run")).to_contain_text("001-explore")


def view_of(page: Page, figure: str) -> list[float]:
    """The range of the time axis that plotly shows, seconds."""
    return page.evaluate(f"document.querySelector('#{figure} .js-plotly-plot').layout.xaxis.range.map(Number)")


def drag_zoom(page: Page, figure: str, begin: float, end: float) -> None:
    """Drag over a part of the drawing with the mouse, from one fraction of its width to another."""
    area = page.locator(f"#{figure} .nsewdrag").first.bounding_box()
    assert area is not None
    height = area["y"] + min(area["height"] / 2, 200)
    page.mouse.move(area["x"] + begin * area["width"], height)
    page.mouse.down()
    page.mouse.move(area["x"] + end * area["width"], height, steps=8)
    page.mouse.up()


@pytest.mark.parametrize("figure", ["timeline", pytest.param("counters", marks=pytest.mark.long)])
def test_a_drag_zooms_and_the_server_answers_with_more_detail(figure: str, server: Server, watched: Watched) -> None:
    page = watched.page
    open_page(page, server, figure)
    caption = page.locator(f"#{figure}-caption")
    expect(caption).to_have_text(re.compile(r"\d"))
    whole, said = view_of(page, figure), caption.inner_text()
    with page.expect_response(lambda answer: "_dash-update-component" in answer.url):
        drag_zoom(page, figure, 0.7, 0.8)
    expect(caption).not_to_have_text(said)
    closer = view_of(page, figure)
    assert closer[1] - closer[0] == pytest.approx(0.1 * (whole[1] - whole[0]), rel=0.2)
    assert closer[0] == pytest.approx(whole[0] + 0.7 * (whole[1] - whole[0]), rel=0.1)
    area = page.locator(f"#{figure} .nsewdrag").first.bounding_box()
    assert area is not None
    page.mouse.dblclick(area["x"] + 0.5 * area["width"], area["y"] + 10)
    expect(caption).to_have_text(said)
    assert view_of(page, figure) == pytest.approx(whole)


def test_buttons_move_the_view(server: Server, watched: Watched) -> None:
    page = watched.page
    open_page(page, server, "timeline")
    whole = view_of(page, "timeline")
    caption = page.locator("#timeline-caption")
    expect(caption).to_have_text(re.compile(r"\d"))
    for button in ("closer", "closer", "later", "wider"):
        said = caption.inner_text()
        page.locator(f"#timeline-{button}").click()
        expect(caption).not_to_have_text(said)
    now = view_of(page, "timeline")
    assert now[1] - now[0] == pytest.approx((whole[1] - whole[0]) / 2 if now[1] < whole[1] else now[1] - now[0])
    assert whole[0] <= now[0] < now[1] <= whole[1]


def test_the_view_never_holds_more_marks_than_a_browser_draws(server: Server, watched: Watched) -> None:
    open_page(watched.page, server, "timeline")
    assert 0 < watched.page.locator("#timeline .barlayer .point").count() <= 5_000


def test_the_colour_scheme_changes_ink_and_paper_of_figures_and_tables(server: Server, watched: Watched) -> None:
    page = watched.page
    open_page(page, server, "layers")
    shown = {"#layers .ag-cell": "color", ".js-plotly-plot .ytick text": "fill", "body": "background-color"}
    style = "(element, name) => getComputedStyle(element)[name]"
    light = {selector: page.locator(selector).first.evaluate(style, name) for selector, name in shown.items()}
    page.get_by_label("light or dark").click()
    for selector, name in shown.items():
        expect(page.locator(selector).first).not_to_have_css(name, light[selector])
    page.get_by_label("light or dark").click()
