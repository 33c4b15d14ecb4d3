"""What all figures share. Their paper is transparent and their ink comes from assets/style.css, so that one figure fits
the light and the dark scheme."""

import plotly.graph_objects as go
from dash import dcc

# Plotly's own settings of a figure in the page: no logo, no upload, only the buttons that do something here.
CONFIG: dcc.Graph.Config = {
    "displaylogo": False,
    "responsive": True,
    "doubleClick": "autosize",
    "modeBarButtonsToRemove": ["select2d", "lasso2d", "zoomIn2d", "zoomOut2d", "autoScale2d", "resetScale2d"],
    "toImageButtonOptions": {"format": "svg", "filename": "tracekit"},
}

AXIS: dict[str, object] = {
    "showline": False,
    "zeroline": False,
    "ticks": "",
    "automargin": True,
    "title": {"standoff": 10},
}
FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'DejaVu Sans', sans-serif"


# Stands where a figure is still to come.
EMPTY = {
    "layout": {
        "height": 400,
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        "xaxis": {"visible": False},
        "yaxis": {"visible": False},
    }
}


def layout_of(height: int) -> dict[str, object]:
    """The layout that figures have in common, but for the axes."""
    return {
        "height": height,
        "margin": {"l": 48, "r": 16, "t": 12, "b": 44},
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        "font": {"family": FONT, "size": 12},
        "hoverlabel": {"align": "left", "font": {"family": FONT, "size": 12}, "namelength": -1},
        "legend": {"orientation": "h", "x": 0, "xanchor": "left", "y": 1, "yanchor": "bottom", "traceorder": "normal"},
        "dragmode": "zoom",
    }


def styled(figure: go.Figure, height: int, **layout: object) -> go.Figure:
    """The figure with the common layout and axes; `layout` adds to it or replaces parts."""
    figure.update_layout({"template": "none", **layout_of(height), **layout})
    figure.update_xaxes(AXIS)
    figure.update_yaxes(AXIS)
    return figure
