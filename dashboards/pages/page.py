"""What a page is, and the parts that pages are made of."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import dash_ag_grid
import dash_mantine_components as dmc
import plotly.graph_objects as go
from dash import Dash, dcc, html
from dash.development.base_component import Component

from tracekit.dashboards.figures import text
from tracekit.dashboards.figures.base import CONFIG
from tracekit.dashboards.library import Library, OpenRun
from tracekit.run.reader import Run

Cell = str | int | float | bool | None

# Rows of a table that a browser takes at once; a ranking's tail beyond it is named, not shown.
ROWS = 2_000


@dataclass(frozen=True)
class View:
    """What a page is asked for. `query` holds the rest of the URL's query; `prefix` begins every link."""

    library: Library
    run: OpenRun | None
    query: Mapping[str, str]
    prefix: str


@dataclass(frozen=True)
class Page:
    """A page: `path` is its name in the URL. `register` adds its callbacks, once. Pages about a run get one opened;
    those about a study get none when the URL names a study instead."""

    path: str
    title: str
    render: Callable[[View], Component]
    register: Callable[[Dash, Library], None] | None = None
    about_a_run: bool = True


def the_run(view: View) -> OpenRun:
    """The run of a page about a run."""
    if view.run is None:
        raise ValueError("this page needs a run")
    return view.run


def page(title: str, *children: Component | None, note: str = "") -> Component:
    """A page's heading, a line on how to read it, and its content."""
    head = [dmc.Title(title, order=2, className="page-title")]
    if note:
        head.append(dmc.Text(note, size="sm", c="dimmed", maw=820))
    return dmc.Stack([dmc.Stack(head, gap=2), *(child for child in children if child is not None)], gap="lg")


def of_several_hosts(run: Run) -> str:
    """What a time axis has to say of a run whose processes had several clocks."""
    if len({manifest.host for manifest in run.manifests}) < 2:
        return ""
    return " Each process is drawn by the clock of its own host; Distributed tells how far these are apart."


def section(title: str, *children: Component | None, note: str = "") -> Component:
    """A framed part of a page."""
    head = dmc.Group([dmc.Text(title, fw=600), dmc.Text(note, size="sm", c="dimmed")], gap="sm", align="baseline")
    content = [child for child in children if child is not None]
    return dmc.Paper(dmc.Stack([head, *content], gap="xs"), withBorder=True, p="md", radius="md")


def nothing(why: str) -> Component:
    """In place of content that there is none of: says why."""
    return dmc.Text(why, c="dimmed", size="sm", py=4)


def failure(title: str, message: str) -> Component:
    return dmc.Alert(message, title=title, color="red", variant="light", style={"overflowWrap": "anywhere"})


def graph(figure: go.Figure) -> Component:
    """A figure that stays as it is."""
    return dcc.Graph(figure=figure, config=CONFIG, style={"height": f"{figure.layout.height}px"})


def link(words: str, href: str) -> Component:
    """A link to a page; `dmc.Anchor` decodes an address before it is followed, and names in it fall apart."""
    return dcc.Link(words, href=href, className="link")


def swatch(color: str) -> Component:
    return html.Span(className="swatch", style={"backgroundColor": color})


def copyable(command: str) -> Component:
    """A command to type, with a button that copies it; of one that holds what would do more when it is pasted, as the
    end of a line, only what it is."""
    if not command.isprintable():
        return dmc.Code(text.one_line(command, len(command)), block=True, className="command")
    button = dmc.CopyButton(
        value=command, size="compact-xs", variant="subtle", children="copy", copiedChildren="copied"
    )
    return dmc.Group(
        [dmc.Code(command, block=True, className="command"), button], gap="xs", wrap="nowrap", align="center"
    )


@dataclass(frozen=True)
class Column:
    """A column of a table. `kind`: text, or how its numbers are shown: a function of assets/dashAgGridFunctions.js."""

    field: str
    title: str
    kind: str = "text"
    width: int | None = None
    help: str = ""


def table(
    identity: str, columns: Sequence[Column], rows: list[dict[str, Cell]], height: int = 520, link: bool = False
) -> Component:
    """A table that sorts and filters in the browser. Cells are shown as text, never as markup. With `link` a click on a
    row means something; rows are known by their "name"."""
    definitions = [_definition(column) for column in columns]
    grid = dash_ag_grid.AgGrid(
        id=identity,
        columnDefs=definitions,
        rowData=rows[:ROWS],
        defaultColDef={"sortable": True, "resizable": True, "suppressHeaderMenuButton": True},
        dashGridOptions={
            "theme": {"function": "tracekitTheme(themeQuartz)"},
            "rowHeight": 34,
            "headerHeight": 36,
            "tooltipShowDelay": 300,
            "enableCellTextSelection": not link,
            "suppressCellFocus": True,
            "domLayout": "autoHeight" if len(rows) <= 12 else "normal",
        },
        **({"getRowId": "params.data.name", "className": "grid-link"} if link else {}),
        style={"height": None if len(rows) <= 12 else f"{height}px", "width": "100%"},
    )
    if len(rows) <= ROWS:
        return grid
    rest = f"The first {text.number(ROWS)} of {text.number(len(rows))} rows."
    return dmc.Stack([grid, dmc.Text(rest, size="sm", c="dimmed")], gap="xs")


def _definition(column: Column) -> dict[str, object]:
    definition: dict[str, object] = {"field": column.field, "headerName": column.title}
    if column.help:
        definition["headerTooltip"] = column.help
    if column.kind == "text":
        definition |= {"filter": "agTextColumnFilter", "tooltipField": column.field, "flex": 1, "minWidth": 120}
    else:
        shown = {"function": f"{column.kind}(params.value)"}
        definition |= {"type": "rightAligned", "valueFormatter": shown, "sortingOrder": ["desc", "asc", None]}
        if column.kind == "share":
            definition["cellStyle"] = {"function": "shareBar(params.value)"}
    if column.width:
        definition |= {"width": column.width, "flex": None}
    return definition
