"""Layers: the time of each layer in a step, forward and backward, and the part of it that is its own.

Calls are recorded on some steps only, those inside others on fewer, so times are given per step: the median over the
steps in which the layer was recorded. A call during which the layers inside an nn.LSTM were told apart is slower than
others: what it tells is only how the call divides among them.
"""

import numpy as np
import pandas as pd

from tracekit.analysis.steps import Steps
from tracekit.run.reader import Run

# Rows read into memory at once: about 0.3 GB with what is made of them. Of a run with more, so many stretches of steps
# are read, spread evenly over it.
_ROWS = 1_000_000
_STRETCHES = 20

_COLUMNS = {
    **dict.fromkeys(["layer", "direction"], "str"),
    **dict.fromkeys(["depth", "calls", "steps", "total_ns"], "int64"),
    **dict.fromkeys(["mean_ns", "calls_per_step", "ns_per_step", "self_ns", "share", "layer_ns_per_step"], "float64"),
}
_CALL = ["thread", "name", "direction", "depth", "start_ns", "duration_ns", "watched"]
_KEY = ["name", "direction"]


def layer_times(run: Run, steps: Steps, process: int | None = None) -> pd.DataFrame:
    """The layers of one process (default: the one that stands for the run), the most expensive first.

    One row per `layer` (qualified name) and `direction` (forward, backward), the two of a layer one after the other:

    `depth`             of its outermost call.
    `calls`, `total_ns` all calls recorded in the run, as they were.
    `steps`             the number of steps that the figures below come from; they are NaN where it is 0.
    `mean_ns`           time of a call; from calls in which no inner layers were told apart, if there are any.
    `calls_per_step`, `ns_per_step`   the medians over these steps; a call inside another one of the same layer takes no
                        time of its step beside that one.
    `self_ns`           the part of `ns_per_step` outside the layers it called.
    `share`             `ns_per_step` over the median duration of these steps.
    `layer_ns_per_step` `ns_per_step` of both directions together: what the rows are ranked by.
    """
    process = steps.main if process is None else process
    if process is None:
        process = _busiest_process(run)
    totals = _totals(run, process)
    if totals.empty:
        return pd.DataFrame(columns=list(_COLUMNS)).astype(_COLUMNS)
    table = totals.merge(_per_step(run, steps, process, int(totals["calls"].sum())), how="left", on=_KEY)
    table["steps"] = table["steps"].fillna(0)
    table["mean_ns"] = table["mean_ns"].fillna(table["total_ns"] / table["calls"])
    table["layer_ns_per_step"] = table.groupby("name")["ns_per_step"].transform("sum")
    table["layer_total_ns"] = table.groupby("name")["total_ns"].transform("sum")
    table = table.sort_values(
        ["layer_ns_per_step", "layer_total_ns", "depth", "name", "direction"],
        ascending=[False, False, True, True, False],
    )
    return table.rename(columns={"name": "layer"})[list(_COLUMNS)].astype(_COLUMNS).reset_index(drop=True)


def _busiest_process(run: Run) -> int:
    table = run.sql(
        "SELECT process FROM spans WHERE kind = 'layer' GROUP BY process ORDER BY sum(duration_ns) DESC LIMIT 1"
    )
    return int(table["process"].iloc[0]) if len(table) else -1


def _totals(run: Run, process: int) -> pd.DataFrame:
    return run.sql(
        "SELECT name, direction, min(depth) AS depth, count(*) AS calls, sum(duration_ns)::BIGINT AS total_ns "
        "FROM spans WHERE kind = 'layer' AND process = ? GROUP BY ALL",
        [process],
    )


def _per_step(run: Run, steps: Steps, process: int, calls: int) -> pd.DataFrame:
    """Per layer and direction: `steps`, `mean_ns`, `calls_per_step`, `ns_per_step`, `self_ns`, `share`."""
    rows = _with_steps(_rows(run, steps, process, calls), steps.of(process))
    rows["own_ns"] = rows["duration_ns"] - _children_ns(rows)
    rows["plain_ns"] = rows["duration_ns"].where(~rows["watched"])
    rows["outer_ns"] = rows["duration_ns"].where(~_are_inside_their_own(rows), 0)
    sections = _sections(rows)
    calm = _without_disturbed_steps(rows[~sections])
    result = _summary(calm)
    if sections.any():
        result = _add_sections(result, rows[rows["watched"]], sections[rows["watched"]])
    return result.reset_index()


def _rows(run: Run, steps: Steps, process: int, calls: int) -> pd.DataFrame:
    """The layer calls of the process, in order; where all are too many, those of some stretches of steps."""
    mine = steps.of(process)
    begins = mine["start_ns"].to_numpy()
    ends = begins + mine["duration_ns"].to_numpy()
    if calls <= _ROWS or mine.empty:
        firsts, count = np.array([0]), len(mine)
    else:
        firsts = np.linspace(0, len(mine), min(_STRETCHES, len(mine)), endpoint=False).astype(np.int64)
        count = max(len(mine) * _ROWS // calls // len(firsts), 1)
    # Rows are sorted by start on disk: each query reads its own part of the file.
    found = [
        run.sql(
            "SELECT thread, name, direction, depth, start_ns, duration_ns, coalesce(watched, false) AS watched "
            "FROM spans WHERE kind = 'layer' AND process = ? AND start_ns >= ? AND start_ns < ? ORDER BY start_ns",
            [process, int(begins[first]), int(ends[min(first + count, len(mine)) - 1])],
        )
        for first in (firsts if len(mine) else ())
    ]
    return pd.concat(found, ignore_index=True) if found else pd.DataFrame(columns=_CALL).astype({"watched": bool})


def _with_steps(rows: pd.DataFrame, mine: pd.DataFrame) -> pd.DataFrame:
    """The rows inside steps, with the number and the duration of their step."""
    begins = mine["start_ns"].to_numpy()
    if not len(begins):
        return rows[:0].assign(step=0, step_ns=0)
    index = np.searchsorted(begins, rows["start_ns"].to_numpy(), side="right") - 1
    durations = mine["duration_ns"].to_numpy()
    inside = (index >= 0) & (rows["start_ns"].to_numpy() < (begins + durations)[index])
    return rows[inside].assign(step=index[inside], step_ns=durations[index[inside]]).reset_index(drop=True)


def _children_ns(rows: pd.DataFrame) -> pd.Series:
    """The time of the calls made directly by each call: those nested in it with no other call in between."""
    result = np.zeros(len(rows), dtype=np.int64)
    start, duration, depth = (rows[name].to_numpy() for name in ("start_ns", "duration_ns", "depth"))
    for _, found in rows.groupby(["thread", "direction"]):
        group = found.index.to_numpy()
        levels = [group[depth[group] == level] for level in np.unique(depth[group])]
        for number, below in enumerate(levels):
            # A layer too short to be recorded leaves a gap in the depths: the parent is the next one recorded above.
            for above in reversed(levels[:number]):
                # By its middle: layers whose backward begins at the same autograd node begin in any order.
                middle = start[below] + duration[below] // 2
                parent = above[np.maximum(np.searchsorted(start[above], middle, side="right") - 1, 0)]
                nested = (start[parent] <= middle) & (middle < start[parent] + duration[parent])
                np.add.at(result, parent[nested], duration[below][nested])
                below = below[~nested]
    return pd.Series(np.minimum(result, duration), index=rows.index)


def _are_inside_their_own(rows: pd.DataFrame) -> pd.Series:
    """Which calls lie inside another one of the same layer, as where a module calls itself."""
    rows = rows.sort_values(["start_ns", "duration_ns"], ascending=[True, False])
    layer = [rows[key] for key in ("thread", *_KEY)]
    ends = (rows["start_ns"] + rows["duration_ns"]).astype("int64")
    end_before = ends.groupby(layer).cummax().groupby(layer).shift()
    # By their middle, as of calls that begin in any order.
    return (rows["start_ns"] + rows["duration_ns"] // 2 < end_before).sort_index()


def _sections(rows: pd.DataFrame) -> pd.Series:
    """Which rows are layers inside an nn.LSTM told apart: marked, and named after a module that is marked itself."""
    marked = pd.Index(rows.loc[rows["watched"], "name"].unique())
    inside = [name for name in marked if _module(name) in marked]
    return rows["watched"] & rows["name"].isin(inside)


def _module(section: str) -> str:
    """`encoder.rnn` for `encoder.rnn.layer1.reverse`."""
    return section.removesuffix(".reverse").rpartition(".")[0]


def _without_disturbed_steps(rows: pd.DataFrame) -> pd.DataFrame:
    """Without the steps in which inner layers were told apart, as far as a layer was recorded in others."""
    disturbed = rows["step"].isin(rows.loc[rows["watched"], "step"])
    seen_calm = (~disturbed).groupby([rows[key] for key in _KEY]).transform("any")
    return rows[~disturbed | ~seen_calm]


def _summary(rows: pd.DataFrame) -> pd.DataFrame:
    # Where no call inside another one was recorded, a layer's own part is not known: its time may be anybody's.
    detailed = rows["step"].isin(rows.loc[rows["depth"] > 0, "step"])
    own_ns = rows["own_ns"].where(detailed | ~detailed.any())
    rows = rows.assign(own_ns=own_ns, plain_outer_ns=rows["outer_ns"].where(~rows["watched"]))
    steps = rows.groupby([*_KEY, "step"], sort=False).agg(
        calls=("duration_ns", "size"), plain=("plain_ns", "count"), plain_ns=("plain_outer_ns", "sum"),
        all_ns=("outer_ns", "sum"), mean_own_ns=("own_ns", "mean"), step_ns=("step_ns", "first"),
    )  # fmt: skip
    # Calls without inner layers stand for all calls of the step.
    scaled = steps["plain_ns"] * steps["calls"] / steps["plain"].where(steps["plain"] > 0)
    steps["ns"] = scaled.fillna(steps["all_ns"])
    steps["own"] = steps["mean_own_ns"] * steps["calls"] / steps["all_ns"].where(steps["all_ns"] > 0)
    result = steps.groupby(level=_KEY, sort=False).agg(
        steps=("ns", "size"), calls_per_step=("calls", "median"), ns_per_step=("ns", "median"), own=("own", "median"),
        step_ns=("step_ns", "median"),
    )  # fmt: skip
    result["self_ns"] = result["ns_per_step"] * result.pop("own")
    means = rows.groupby(_KEY, sort=False)[["plain_ns", "duration_ns"]].mean()
    result["mean_ns"] = means["plain_ns"].fillna(means["duration_ns"])
    result["share"] = result["ns_per_step"] / result.pop("step_ns").where(lambda whole: whole > 0)
    return result


def _add_sections(summary: pd.DataFrame, inner: pd.DataFrame, sections: pd.Series) -> pd.DataFrame:
    """Divide each module that holds inner layers among them, as it was divided in the calls that told them apart.

    The first of these steps is left out where there are others: in it, libraries start up at the expense of one layer.
    """
    owner = inner["name"].where(~sections, inner["name"].map(_module))
    watched_steps = inner.groupby(owner)["step"]
    is_first = (inner["step"] == watched_steps.transform("min")) & (watched_steps.transform("nunique") > 1)
    inner, sections = inner[~is_first], sections[~is_first]
    times = inner.groupby(_KEY)["duration_ns"].agg(["sum", "size"])
    step_counts = inner.groupby(_KEY)["step"].nunique()
    added = []
    for name, direction in inner.loc[sections, _KEY].drop_duplicates().itertuples(index=False):
        module = (_module(name), direction)
        if module not in summary.index or not times.loc[module, "sum"]:
            continue
        part = times.loc[(name, direction), "sum"] / times.loc[module, "sum"]
        whole = summary.loc[module]
        calls = whole["calls_per_step"] * times.loc[(name, direction), "size"] / times.loc[module, "size"]
        ns = whole["ns_per_step"] * part
        added.append(
            {
                "name": name, "direction": direction, "steps": step_counts[(name, direction)], "calls_per_step": calls,
                "ns_per_step": ns, "self_ns": ns, "mean_ns": ns / calls if calls else np.nan,
                "share": whole["share"] * part, "module": module[0],
            }
        )  # fmt: skip
    if not added:
        return summary
    frame = pd.DataFrame(added)
    inside = frame.groupby(["module", "direction"])["ns_per_step"].sum()
    for module, ns in inside.items():
        summary.loc[module, "self_ns"] = max(summary.loc[module, "ns_per_step"] - ns, 0)
    return pd.concat([summary, frame.set_index(_KEY).drop(columns="module")])
