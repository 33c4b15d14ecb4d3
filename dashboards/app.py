"""The Dash app: a frame with navigation, and one callback that turns a URL into a page."""

import traceback
from urllib.parse import parse_qsl, urlencode

import dash_mantine_components as dmc
from dash import Dash, Input, Output, dcc, set_props
from dash.development.base_component import Component

from tracekit.dashboards.library import Library, OpenRun
from tracekit.dashboards.pages.page import Page, View, failure
from tracekit.dashboards.pages.registry import PAGES
from tracekit.dashboards.pages.study import render_study
from tracekit.dashboards.studies import SHOWN_ON
from tracekit.errors import TracekitError

_THEME = {
    "primaryColor": "blue",
    "defaultRadius": "md",
    "fontFamily": "system-ui, -apple-system, 'Segoe UI', Roboto, 'DejaVu Sans', sans-serif",
    "fontFamilyMonospace": "ui-monospace, 'SF Mono', Menlo, 'DejaVu Sans Mono', monospace",
}
_HEADER, _NAVIGATION = 54, 176


def build_app(library: Library, prefix: str) -> Dash:
    """The app over a library of runs. `prefix` is what browsers put before every path; the server sees the rest."""
    app = Dash(
        __name__,
        title="tracekit",
        update_title="",
        assets_folder="assets",
        requests_pathname_prefix=prefix,
        routes_pathname_prefix="/",
        serve_locally=True,
        suppress_callback_exceptions=True,  # a page's parts exist only while it is open
        include_pages_meta=False,
        use_pages=False,
        enable_mcp=False,
        websocket_callbacks=False,
        compress=False,
        on_error=_say,
    )
    app.layout = _frame(prefix)
    app.callback(
        Output("navigation", "children"),
        Output("run", "children"),
        Output("page", "children"),
        Output("problem", "children"),
        Input("url", "pathname"),
        Input("url", "search"),
    )(lambda pathname, search: (*show(library, prefix, pathname, search), ""))
    for page in PAGES:
        if page.register is not None:
            page.register(app, library)
    return app


def content_policy(app: Dash) -> str:
    """The Content-Security-Policy: scripts of this server and Dash's own inline ones, and nothing from elsewhere."""
    app.index()  # type: ignore[no-untyped-call]  # collects the inline scripts
    scripts = " ".join(f"'{each}'" if not each.startswith("'") else each for each in app.csp_hashes())
    return (
        f"default-src 'self'; script-src 'self' {scripts}; style-src 'self' 'unsafe-inline'; img-src 'self' data:"
        " blob:; font-src 'self' data:; worker-src 'self' blob:; object-src 'none'; base-uri 'none'; form-action 'self'"
    )


def show(
    library: Library, prefix: str, pathname: str, search: str
) -> tuple[list[Component], Component | str, Component]:
    """Navigation, the name of the run, and the page for a URL. What goes wrong in opening a run is said on the page."""
    path = pathname.removeprefix(prefix).strip("/")
    query = dict(parse_qsl(search.removeprefix("?")))
    chosen = next((page for page in PAGES if page.path == path), None)
    name = query.pop("run", None)
    study = query.get("study") if path in SHOWN_ON.values() else None
    run: OpenRun | None = None
    try:
        if chosen is None:
            return _links(prefix, None, None), "", failure("No such page", "Choose one on the left.")
        if chosen.about_a_run and study is None:
            run = library.open(name or library.newest())
        view = View(library, run, query, prefix)
        content = chosen.render(view) if study is None else render_study(view, study)
    except TracekitError as error:
        content = failure("This cannot be shown", str(error))
    known = run.name if run else name
    return _links(prefix, chosen, known), _run_name(run, study), content


def _links(prefix: str, chosen: Page | None, run: str | None) -> list[Component]:
    query = f"?{urlencode({'run': run})}" if run else ""
    return [
        dmc.NavLink(
            label=page.title, href=f"{prefix}{page.path}{query}", active=page is chosen, variant="light", noWrap=True
        )
        for page in PAGES
    ]


def _run_name(run: OpenRun | None, study: str | None) -> Component | str:
    name, kind = (run.name, run.run.manifest.condition) if run else (study, "study")
    if name is None:
        return ""
    badge = dmc.Badge(kind, variant="light", size="sm", tt="none", maw=220)
    return dmc.Group([dmc.Text(name, className="run-name"), badge], gap="sm", wrap="nowrap", miw=0)


def _say(error: Exception) -> None:
    """Put what went wrong in a callback on the page, and what nobody expected on stderr too."""
    if isinstance(error, TracekitError):
        message = str(error)
    else:
        message = f"{type(error).__name__}: {error}"
        traceback.print_exception(error)
    set_props("problem", {"children": failure("This cannot be shown", message)})


def _frame(prefix: str) -> Component:
    header = dmc.Group(
        [
            dcc.Link("tracekit", href=prefix, className="wordmark", style={"width": _NAVIGATION - 16}),
            dmc.Box(id="run", style={"flex": 1, "minWidth": 0}),
            dmc.ColorSchemeToggle(
                lightIcon="☀",
                darkIcon="☾",
                variant="subtle",
                size="lg",
                color="gray",
                **{"aria-label": "light or dark"},
            ),
        ],
        h="100%",
        px="md",
        wrap="nowrap",
    )
    shell = dmc.AppShell(
        [
            dcc.Location(id="url", refresh="callback-nav"),
            dmc.AppShellHeader(header),
            dmc.AppShellNavbar(dmc.Stack(id="navigation", gap=2), p="xs"),
            dmc.AppShellMain(
                [
                    dmc.Box(id="problem", maw=1500, mx="auto"),
                    dcc.Loading(
                        dmc.Box(id="page", maw=1500, mx="auto"),
                        type="dot",
                        delay_show=300,
                        overlay_style={"visibility": "visible", "opacity": 0.4},
                        target_components={"page": "children"},  # type: ignore[arg-type]  # Dash types it as without keys
                    ),
                ]
            ),
        ],
        header={"height": _HEADER},
        navbar={"width": _NAVIGATION, "breakpoint": "sm"},
        padding="lg",
    )
    return dmc.MantineProvider(shell, theme=_THEME, defaultColorScheme="auto")
