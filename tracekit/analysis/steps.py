"""Steps: the iterations of the program's main loop, derived from what was recorded.

Every process takes the first rule that fits:

`explicit`   the program's own `tracekit.step()` marks.
`optimizer`  an optimizer step ends a step: a closure's passes (LBFGS) and accumulated backward passes lie inside it.
`backward`   without an optimizer object, a backward pass ends a step. Passes with no outermost call between them belong
             together (a gradient penalty, two losses). A program that calls its model between two passes of one update
             cannot be told from one that updates after each; `tracekit.step()` says it.
`batches`    without gradients, a step begins with the wait for a batch that the model is then called on.
`calls`      without batches, with a call of the outermost module that takes the most time.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from tracekit.analysis.intervals import Times
from tracekit.analysis.loop import Rows, What, loop_evidence, root_names
from tracekit.analysis.people import Person, find_people
from tracekit.run.reader import Run

COLUMNS = ["process", "step", "start_ns", "duration_ns"]


@dataclass(frozen=True)
class Steps:
    """The steps of a run.

    `frame` has one row per step: `process`, `step` (from 0), `start_ns` (Unix time), `duration_ns`. `rule` and `thread`
    (which runs the main loop) are by process. `main` is the process that stands for the run, None when nothing does.
    """

    frame: pd.DataFrame
    rule: dict[int, str]
    thread: dict[int, int]
    main: int | None
    evidence: dict[int, Rows] = field(repr=False)

    @classmethod
    def none(cls) -> "Steps":
        """Those of a run without any."""
        return cls(pd.DataFrame(columns=COLUMNS, dtype="int64"), {}, {}, None, {})

    def of(self, process: int | None) -> pd.DataFrame:
        """The steps of one process, in order."""
        return self.frame[self.frame["process"] == process]

    def window(self, process: int) -> tuple[int, int] | None:
        """From the start of the first step of a process to the end of its last, None when it has none."""
        mine = self.of(process)
        if mine.empty:
            return None
        last = mine.iloc[-1]
        return int(mine["start_ns"].iloc[0]), int(last["start_ns"] + last["duration_ns"])

    def loop_rows(self, process: int) -> Rows:
        """The evidence on the thread that runs the main loop of a process."""
        return self.evidence[process].on(self.thread[process])


@dataclass(frozen=True)
class _Marks:
    """One moment per step: where it ends, or, for steps that only a beginning shows, where it begins."""

    rule: str
    thread: int
    rows: Rows
    at_end: bool = True


def steps_of(run: Run, process: int | None) -> Steps:
    """The steps of one process of a run, which stands for it."""
    return Steps.none() if process is None else find_steps(run.of(process))


def find_steps(run: Run) -> Steps:
    """Derive the steps of every process that runs a main loop; rule `none` where nothing tells them."""
    evidence = loop_evidence(run)
    roots = root_names(run)
    people = {each.process: each for each in find_people(run)}
    frames, rule, thread = [], {}, {}
    for process, rows in evidence.items():
        mine = roots[roots["process"] == process]
        names = dict(zip(mine["which"], mine["name"], strict=True))
        marks = next((found for found in (find(rows, names) for find in _RULES) if found), None)
        if marks is None:
            rule[process] = "none"
            continue
        rule[process], thread[process] = marks.rule, marks.thread
        starts, ends = _spans(marks, rows.on(marks.thread), people.get(process, Person(process)).began_ns)
        frames.append(
            pd.DataFrame(
                {"process": process, "step": np.arange(len(starts)), "start_ns": starts, "duration_ns": ends - starts}
            )
        )
    frame = pd.concat(frames, ignore_index=True) if frames else pd.DataFrame(columns=COLUMNS, dtype="int64")
    counts = frame.groupby("process").size().to_dict()
    loops = [people.get(process, Person(process)) for process in counts]
    if not all(each.is_helper for each in loops):
        helpers = [each.process for each in loops if each.is_helper]
        frame = frame[~frame["process"].isin(helpers)].reset_index(drop=True)
    main = min(loops, key=lambda each: each.precedence(counts[each.process]), default=None)
    return Steps(frame, rule, thread, None if main is None else main.process, evidence)


# The rules: evidence of a process and the names of its outermost modules -> marks, None when the rule does not fit.


def _explicit(rows: Rows, names: dict[int, str]) -> _Marks | None:
    marks = rows.of(What.MARK)
    if not len(marks):
        return None
    thread = _busiest(marks.thread)
    return _Marks("explicit", thread, marks.on(thread))


def _optimizer(rows: Rows, names: dict[int, str]) -> _Marks | None:
    found = rows.of(What.OPTIMIZER)
    if not len(found):
        return None
    thread = _busiest(found.thread)
    # Of optimizers that take turns (GAN, one for sparse parameters) the one that steps most often follows the loop over
    # the data; of those that step equally often the one that closes the round. A run may end in the middle of a round,
    # so a difference of one is none.
    return _Marks("optimizer", thread, _leaders(found.on(thread).outermost(), _most_frequent_and_last))


def _backward(rows: Rows, names: dict[int, str]) -> _Marks | None:
    found = rows.of(What.BACKWARD)
    if not len(found):
        return None
    thread = _busiest(found.thread)
    passes = found.on(thread).outermost()
    accumulating = passes.where(passes.which != 1)
    # Next to passes that fill .grad, gradients that are only returned are a means (penalties, Hessian products).
    passes = accumulating if len(accumulating) else passes
    for separator in (What.CALL, What.BATCH):
        group = _rounds(passes, rows.of(separator).on(thread))
        if len(group) and group[0] != group[-1]:  # it happens between passes, so it is part of the loop
            return _Marks("backward", thread, passes.where(np.append(group[1:] != group[:-1], True)))
    return _Marks("backward", thread, passes)


def _batches(rows: Rows, names: dict[int, str]) -> _Marks | None:
    found = rows.of(What.BATCH)
    if not len(found):
        return None
    thread = _busiest(found.thread)
    batches, calls = found.on(thread), rows.of(What.CALL).on(thread)
    if len(calls):
        # Batches that are only read through (statistics of the data) are not steps, and of several taken for one call
        # (two loaders side by side) the first begins the step.
        group = _rounds(batches, calls)
        batches = batches.where(_first_of_last_round(group, batches.which) & (group != len(calls)))
        if len(batches) == 1 and len(calls) > 1:
            return None  # one batch taken aside and used again and again: the calls are the loop
    return _Marks("batches", thread, batches, at_end=False) if len(batches) else None


def _calls(rows: Rows, names: dict[int, str]) -> _Marks | None:
    found = rows.of(What.CALL)
    if not len(found):
        return None
    time = pd.Series(found.ends - found.starts)
    thread = int(time.groupby(found.thread).sum().idxmax())
    found = found.on(thread)
    time = pd.Series(found.ends - found.starts)
    called = np.array([names.get(int(number), "") for number in found.which])
    main = found.where(called == time.groupby(called).sum().idxmax())
    return _Marks("calls", thread, _leaders(main, _longest), at_end=False)


_RULES: list[Callable[[Rows, dict[int, str]], _Marks | None]] = [_explicit, _optimizer, _backward, _batches, _calls]


def _busiest(threads: Times) -> int:
    values, counts = np.unique(threads, return_counts=True)
    return int(values[counts.argmax()])


def _leaders(rows: Rows, best: Callable[[pd.DataFrame], int]) -> Rows:
    """One object's rows out of those that are in use over the same time, and so over all times: programs make a new
    optimizer or model for every fold or stage.
    """
    table = pd.DataFrame({"which": rows.which, "start": rows.starts, "end": rows.ends, "time": rows.ends - rows.starts})
    use = table.groupby("which", as_index=False).agg(
        start=("start", "min"),
        end=("end", "max"),
        first_end=("end", "min"),
        count=("start", "size"),
        time=("time", "sum"),
    )
    use = use.sort_values("start")
    first_together = use["start"] >= use["end"].cummax().shift(fill_value=0)
    chosen = {best(together) for _, together in use.groupby(first_together.cumsum())}
    return rows.where(np.isin(rows.which, list(chosen)))


def _most_frequent_and_last(use: pd.DataFrame) -> int:
    most = use["count"].max()
    often = use[(use["count"] >= most - 1) & (2 * use["count"] > most)]
    return int(often.sort_values("first_end")["which"].iloc[-1])


def _longest(use: pd.DataFrame) -> int:
    return int(use.sort_values("time")["which"].iloc[-1])


def _rounds(rows: Rows, separators: Rows) -> NDArray[np.intp]:
    """Numbers the rows so that those with no separator between them have the same number; the number of separators for
    rows after the last one.

    Recording may have given up the separators (calls of a model with very many modules): where more rows than usual
    follow the last one, as many as usual are together.
    """
    group = np.searchsorted(separators.starts, rows.starts)
    last = group == len(separators)
    earlier = np.unique(group[~last], return_counts=True)[1]
    usual = int(np.median(earlier)) if len(earlier) else len(rows)
    if np.count_nonzero(last) > usual:
        group[last] += 1 + np.arange(np.count_nonzero(last)) // usual
    return group


def _first_of_last_round(group: NDArray[np.intp], loader: Times) -> NDArray[np.bool_]:
    """Of the batches in each group, the first after which no loader comes twice."""
    table = pd.DataFrame({"group": group, "loader": loader})
    position = np.arange(len(table))
    again = table.duplicated(keep="last").to_numpy()
    barrier = pd.Series(np.where(again, position, -1)).groupby(group).transform("max").to_numpy()
    in_round = position > barrier
    return in_round & (pd.Series(in_round).groupby(group).cumsum().to_numpy() == 1)


def _spans(marks: _Marks, rows: Rows, process_began: int | None) -> tuple[Times, Times]:
    """Where the steps begin and end, ns. `rows` is all evidence on the thread of the marks."""
    if marks.at_end:
        ends = marks.rows.ends
        return np.concatenate(([_loop_begin(marks.rows, rows, process_began)], ends[:-1])), ends
    starts = marks.rows.starts
    return starts, np.append(starts[1:], rows.ends.max())


def _loop_begin(marks: Rows, rows: Rows, process_began: int | None) -> int:
    """Where the first step begins: at the evidence with which later steps begin, counted back from the first mark, so
    that neither set-up nor a trial pass before the loop counts. A mark with nothing before it leaves only the start of
    the process.
    """
    first = int(marks.starts[0])
    for what in (What.BATCH, What.CALL, What.BACKWARD):
        starts = rows.of(what).starts
        per_step = np.trim_zeros(np.diff(np.searchsorted(starts, marks.ends), prepend=0), "b")
        if not len(per_step) or not per_step[0]:
            continue
        seen = per_step[1:][per_step[1:] > 0]  # in short steps calls are left out now and then
        usual = int(np.median(seen)) if len(seen) else int(per_step[0])
        if usual:
            return min(first, int(starts[max(per_step[0] - usual, 0)]))
    if first == marks.ends[0] and process_began is not None:
        return min(first, process_began)
    return first
