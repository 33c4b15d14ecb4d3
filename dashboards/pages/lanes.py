"""From the index's lanes to the rows and marks that figures draw."""

from collections.abc import Mapping, Sequence

import pandas as pd

from tracekit.analysis.steps import Steps
from tracekit.dashboards.figures.timeline import Row
from tracekit.dashboards.index import Index, Lane
from tracekit.dashboards.sources import STREAMS

# What the lanes of each kind are called, and one event in them.
_WORDS = {
    "step": ("steps", "step"),
    "phase": ("phases", "phase"),
    "range": ("named ranges", "range"),
    "layer": ("layers", "layer call"),
    "collective": ("collectives", "collective"),
    "fetch": ("batches made", "batch"),
    "operator": ("operators", "operator"),
    "gpu": ("GPU", "event"),
}


def rows_of(
    index: Index, steps: Steps, labels: Mapping[int, str], lanes: Sequence[int]
) -> tuple[list[Row], dict[int, int]]:
    """The rows for some lanes (positions in the index): a title for each process, and where each lane is drawn."""
    rows: list[Row] = []
    place: dict[int, int] = {}
    before: Lane | None = None
    for number in lanes:
        lane = index.lanes[number]
        if before is None or before.key.process != lane.key.process:
            rows.append(Row(labels.get(lane.key.process, f"process {lane.key.process}"), title=True))
        if before is None or before.key.row != lane.key.row:
            first = before is None or before.key.row[:3] != lane.key.row[:3]
            rows.append(Row(_label(lane, steps) if first else "", _WORDS[lane.kind][1]))
        place[number] = len(rows) - 1
        before = lane
    return rows, place


def _label(lane: Lane, steps: Steps) -> str:
    word = _WORDS[lane.kind][0]
    if lane.kind == "gpu":
        device, stream = divmod(lane.key.thread, STREAMS)
        return f"{word} {device} · stream {stream}"
    main = steps.thread.get(lane.key.process, lane.key.thread)
    return word if lane.kind in ("step", "phase") or lane.key.thread == main else f"{word} · {lane.key.thread}"


def marks_of(index: Index, steps: Steps, view: pd.DataFrame, place: Mapping[int, int]) -> pd.DataFrame:
    """A view of the index with what figures want besides: row, name and colour in words, and whether it is a bucket."""
    words = [index.names[name] for name in view["name"]]
    marks = view.assign(
        row=view["lane"].map(place).astype("int64"),
        name=[name for name, _ in words],
        colour=[colour for _, colour in words],
        bucket=view["position"] < 0,
    )
    for number in set(view["lane"]):
        if index.lanes[number].kind == "step":
            mine = (marks["lane"] == number) & ~marks["bucket"]
            numbers = steps.of(index.lanes[number].key.process).sort_values("start_ns")["step"].to_numpy()
            marks.loc[mine, "name"] = [f"step {numbers[at]}" for at in marks.loc[mine, "position"]]
    return _stacked(marks, [number for number in place if index.lanes[number].kind == "phase"])


def _stacked(marks: pd.DataFrame, lanes: Sequence[int]) -> pd.DataFrame:
    """Adds `bottom` and `height`, parts of the row: buckets of the lanes that share a row are put on each other, each
    as high as the part of the bucket that it covers."""
    marks = marks.assign(bottom=0.0, height=1.0)
    parts = marks["lane"].isin(lanes) & marks["bucket"]
    height = marks.loc[parts, "covered_ns"] / marks.loc[parts, "duration_ns"]
    top = height.groupby([marks.loc[parts, "row"], marks.loc[parts, "start_ns"]]).cumsum()
    marks.loc[parts, "bottom"], marks.loc[parts, "height"] = top - height, height
    return marks
