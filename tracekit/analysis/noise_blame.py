"""Blame: which phases of a step a noise made longer, and through which resource.

Phases are seen. Resources are told by what the program's time went to: threads that were ready and waited for a CPU
(cpu), the same work taking more CPU time (memory: its bandwidth and the caches), or neither, in which case something
was awaited: storage while loading, the network while communicating. What was awaited is looked for in the phases that
wait, what was computed more slowly in those that compute.
"""

from collections.abc import Mapping, Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from tracekit.analysis.counters import Increases
from tracekit.analysis.noise import Block, Paired
from tracekit.analysis.people import find_people
from tracekit.analysis.phases import PHASES, step_phases
from tracekit.analysis.steps import Steps
from tracekit.run.reader import Run

Costs = dict[str, float]  # of a step: its phases, ns, and what is below

_DELAY, _CPU, _MISSES = "waiting for a CPU", "CPU time", "cache misses"
_COUNTERS = {_DELAY: "thread.run_delay_ns", _CPU: "process.cpu_ns", _MISSES: "perf.cache_misses"}
_LOADING, _COMMUNICATION = "loading wait", "communication"
_AWAITED = {_LOADING: "disk", _COMMUNICATION: "network"}
_SPOKEN = {_LOADING: "loading"}
_LEAST = 0.02  # shares below are not told: what is left over by the division


class Blame(msgspec.Struct):
    """The share of a slowdown that came about in a phase through a resource (cpu, memory, disk, network, other)."""

    phase: str
    resource: str
    share: float


def block_costs(run: Run, steps: Steps, blocks: Sequence[Block]) -> list[Costs]:
    """What a step of each block of a run consists of; NaN where that was not recorded. Waiting for a CPU and cache
    misses are those of all processes and threads, CPU time that of the process which stands for the run."""
    if steps.main is None or not blocks:
        return []
    phases = step_phases(run, steps)
    mine = phases[phases["process"] == steps.main]
    numbers = mine["step"].to_numpy()[:: len(PHASES)]
    times = mine["duration_ns"].to_numpy(dtype=np.float64).reshape(-1, len(PHASES))
    table = steps.of(steps.main)
    starts, durations = (table[name].to_numpy(dtype=np.int64) for name in ("start_ns", "duration_ns"))
    counts = np.array([len(block.durations_ns) for block in blocks])
    first = np.array([block.first for block in blocks])
    begin, end = starts[first], (starts + durations)[first + counts - 1]
    increases = Increases(run, list(_COUNTERS.values()))
    everyone = [person.process for person in find_people(run)]
    of = {_DELAY: everyone, _CPU: [steps.main], _MISSES: everyone}
    grown = {name: _sum(increases, of[name], counter, begin, end) / counts for name, counter in _COUNTERS.items()}
    found = []
    for at in range(len(blocks)):
        here = times[(numbers >= first[at]) & (numbers < first[at] + counts[at])]
        by_phase = here.mean(axis=0) if len(here) else np.full(len(PHASES), np.nan)
        found.append(
            dict(zip(PHASES, by_phase.tolist(), strict=True)) | {name: float(grown[name][at]) for name in grown}
        )
    return found


def _sum(
    increases: Increases, processes: Sequence[int], counter: str, begin: NDArray[np.int64], end: NDArray[np.int64]
) -> NDArray[np.float64]:
    """What all of them grew by; NaN where none was read."""
    each = np.array([increases.within(process, counter, begin, end) for process in processes])
    known = ~np.isnan(each)
    return np.where(known.any(axis=0), np.where(known, each, 0).sum(axis=0), np.nan)


def blame(paired: Sequence[Paired], costs: Mapping[tuple[int, int], Costs]) -> list[Blame]:
    """The blame for a slowdown, the largest share first; [] where steps got no longer, or nothing is known. `costs` by
    a block's run and start."""

    def change(name: str) -> float:
        changes = [_of(each.block, name, costs) - _silent(each, name, costs) for each in paired]
        known = [value for value in changes if not np.isnan(value)]
        return float(np.median(known)) if known else np.nan

    longer = {phase: max(change(phase), 0.0) for phase in PHASES}
    whole = sum(longer.values())
    if np.isnan(whole) or whole <= 0:
        return []
    phases = {phase: value / whole for phase, value in longer.items()}
    resources = _resources(change(_DELAY) / whole, change(_CPU) / whole)
    found = [
        Blame(_SPOKEN.get(phase, phase), resource, share)
        for (phase, resource), share in _divide(phases, resources).items()
        if share >= _LEAST
    ]
    return sorted(found, key=lambda each: -each.share)


def more_cache_misses(paired: Sequence[Paired], costs: Mapping[tuple[int, int], Costs]) -> float | None:
    """How many more cache misses a step has than in silence, new/old - 1; None where the machine counts none."""
    both = [(_of(each.block, _MISSES, costs), _silent(each, _MISSES, costs)) for each in paired]
    known = [noisy / silent - 1 for noisy, silent in both if silent > 0 and not np.isnan(noisy)]
    return float(np.median(known)) if known else None


def _of(block: Block, name: str, costs: Mapping[tuple[int, int], Costs]) -> float:
    return costs[block.run, block.start_ns][name]


def _silent(paired: Paired, name: str, costs: Mapping[tuple[int, int], Costs]) -> float:
    return sum(share * _of(block, name, costs) for block, share in paired.silence)


def _resources(delay: float, cpu: float) -> dict[str, float] | None:
    """The shares of the slowdown by what the time went to; None where the counters were not read. A thread of a team
    that is late makes the others spin, so what waited for a CPU comes before what ran longer."""
    if np.isnan(delay) or np.isnan(cpu):
        return None
    waited = min(max(delay, 0.0), 1.0)
    computed = min(max(cpu, 0.0), 1.0 - waited)
    return {"cpu": waited, "memory": computed, "awaited": 1.0 - waited - computed}


def _divide(phases: Mapping[str, float], resources: Mapping[str, float] | None) -> dict[tuple[str, str], float]:
    """Shares of phases and of resources to shares of both: what was awaited belongs to the phases that wait first."""
    if resources is None:
        return {(phase, "other"): share for phase, share in phases.items()}
    waiting = sum(phases[phase] for phase in _AWAITED)
    awaited_there = min(waiting, resources["awaited"])
    left = resources["awaited"] - awaited_there
    computing = {"cpu": resources["cpu"], "memory": resources["memory"], "other": left}
    in_all = sum(computing.values())
    found = {}
    for phase, share in phases.items():
        awaited = share * awaited_there / waiting if phase in _AWAITED and waiting else 0.0
        if awaited:
            found[phase, _AWAITED[phase]] = awaited
        for resource, part in computing.items():
            if in_all:
                found[phase, resource] = (share - awaited) * part / in_all
    return found
