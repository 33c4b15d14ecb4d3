"""Accounts: what is established of each process by itself, from its own rows and those of the workers it started.

The report of a run is made of the accounts of its processes. An account is small, whatever the process recorded, so
they may be made one after the other, or by many machines at once: `Each` says how.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Any, Protocol, TypeVar

from tracekit.analysis.communication import Communication, communication_of
from tracekit.analysis.completeness import unfinished_steps
from tracekit.analysis.counters import counter_levels, counters_by_phase
from tracekit.analysis.garbage import GarbageUse, garbage_use
from tracekit.analysis.meetings import Way, find_ways
from tracekit.analysis.people import Person, find_people
from tracekit.analysis.report_schema import CounterSummary, ProcessSteps
from tracekit.analysis.steps import Steps, find_steps
from tracekit.analysis.threads import Loop, ThreadUse, thread_use
from tracekit.run.manifest import Missing
from tracekit.run.reader import Run

T = TypeVar("T")

_MS = 1e6


class Each(Protocol):
    """Gives a function, which another process may call, each item of one or more series, as `map` does."""

    def __call__(self, function: Callable[..., T], *items: Iterable[Any]) -> Iterable[T]: ...


def in_turn(function: Callable[..., T], *items: Iterable[Any]) -> Iterable[T]:
    """Calls it here, for one after the other."""
    return map(function, *items)


@dataclass(frozen=True)
class Account:
    """What one process did. `summary`, `loop` and `use` of its threads are None where it has no steps. `unfinished`:
    the step under way at its end. `ways` lead to its meetings; its `communication` is by group. `garbage`: None where
    none was collected."""

    person: Person
    summary: ProcessSteps | None = None
    loop: Loop | None = None
    use: ThreadUse | None = None
    counters: list[CounterSummary] = field(default_factory=list)
    unfinished: list[Missing] = field(default_factory=list)
    ways: list[Way] = field(default_factory=list)
    communication: list[Communication] = field(default_factory=list)
    garbage: GarbageUse | None = None


def people_of(run: Run) -> list[Person]:
    """The processes that may have a loop, those too that did not get as far as saying who they are."""
    people = find_people(run)
    known = {who.process for who in people}
    seen = run.sql(
        "SELECT DISTINCT process FROM spans UNION SELECT DISTINCT process FROM batches "
        "UNION SELECT DISTINCT process FROM collectives ORDER BY process"
    )
    strangers = [Person(int(process)) for process in seen["process"] if int(process) not in known]
    return [who for who in people if not who.is_loader_worker] + strangers


def account_of(run: Run, person: Person) -> Account:
    """The account of a process; `run` is what was recorded of it."""
    steps, process = find_steps(run), person.process
    ways, communication = find_ways(run, person), communication_of(run, person)
    window = steps.window(process)
    if window is None:
        return Account(person, ways=ways, communication=communication)
    times = steps.frame["duration_ns"] / _MS
    began = window[0] if person.began_ns is None else person.began_ns
    return Account(
        person,
        ProcessSteps(process, person.role or "", len(times), steps.rule[process], float(times.median())),
        Loop(process, began, *window),
        thread_use(run, steps, person),
        counters_of(run, process, steps),
        unfinished_steps(steps),
        ways,
        communication,
        garbage_use(run, person, window),
    )


def with_steps(accounts: Sequence[Account]) -> list[Account]:
    """Those of the processes with a main loop; of helpers only where nobody else has one. That of the process which
    stands for the run comes first."""
    found = [(each.person.precedence(each.summary.count), each) for each in accounts if each.summary is not None]
    if not all(each.person.is_helper for _, each in found):
        found = [(place, each) for place, each in found if not each.person.is_helper]
    main = min(found, key=itemgetter(0), default=(None, None))[1]
    return sorted((each for _, each in found), key=lambda each: (each is not main, each.person.process))


def counters_of(run: Run, process: int, steps: Steps) -> list[CounterSummary]:
    """The counters of a process, or of the machine, by the phases of the steps."""
    grown = counters_by_phase(run, steps)
    found = []
    for (whose, name, unit, source), rows in grown.groupby(["process", "counter", "unit", "source"], sort=True):
        if whose == process:
            phases = dict(zip(rows["phase"], rows["value"].tolist(), strict=True))
            found.append(CounterSummary(process, str(name), unit, source, float(rows["value"].sum()), phases))
    for row in counter_levels(run, steps).itertuples(index=False):
        if row.process == process:
            found.append(CounterSummary(process, row.counter, row.unit, row.source, float(row.highest)))
    return found
