"""The effects of noises: what is said of each one, from the blocks of one run or of several."""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field

import msgspec
import numpy as np

from tracekit.analysis.counters import MACHINE, Increases
from tracekit.analysis.intervals import union
from tracekit.analysis.noise import (
    SILENCE,
    TOGETHER,
    Block,
    Dose,
    Paired,
    doses,
    less_sure,
    noise_blocks,
    noise_log,
    pair_with_silence,
    silence_with_silence,
)
from tracekit.analysis.noise_blame import Blame, Costs, blame, block_costs, more_cache_misses
from tracekit.analysis.noise_verdicts import MARGIN, Judged, Slowdown, Verdict, judge, tails
from tracekit.analysis.steps import Steps
from tracekit.record.topology import parse_cpu_list
from tracekit.run.reader import Run

# A CPU that is busy for more than half of the time, and that without noise, is one that the program computes on.
_USED = 0.5


class NoiseEffect(msgspec.Struct):
    """What a noise (or several together) does to the steps. `noise` is it as it was asked for, `dose` and `achieved`
    are in `unit` (of several together: shares of their doses, and the least that was achieved); `tails` has the
    slowdown of the 90th and 99th percentile. `detectable`: the least slowdown that so many blocks would find four times
    out of five. `shared_cpus`: of those that it was put on, the ones that the program uses in silence. `cache_misses`:
    by how much a step has more of them than in silence, new/old - 1; None where the machine counts none."""

    noise: str
    dose: float
    achieved: float
    unit: str
    verdict: Verdict
    slowdown: Slowdown
    detectable: float
    blocks: int
    why: str = ""
    tails: dict[str, Slowdown] = {}
    blame: list[Blame] = []
    shared_cpus: list[int] = []
    cache_misses: float | None = None

    @property
    def kind(self) -> str:
        return TOGETHER.join(each.partition("=")[0] for each in self.noise.split(TOGETHER))

    @property
    def place(self) -> str:
        """Where a noise by itself was put, as it was asked for: @0-3@nice19."""
        return "".join(self.noise.partition("@")[1:])

    @property
    def share(self) -> float:
        """Of the dose, what was achieved."""
        return self.achieved / self.dose if self.dose else 0.0


@dataclass
class Blocks:
    """The blocks of one run or several, what their steps consist of, and the doses of the noises, run by run."""

    blocks: list[Block] = field(default_factory=list)
    costs: dict[tuple[int, int], Costs] = field(default_factory=dict)
    doses: list[dict[str, Dose]] = field(default_factory=list)
    busy: list[dict[int, float]] = field(default_factory=list)  # how busy each CPU was in silence, run by run

    def add(self, run: Run, steps: Steps) -> list[Block]:
        """Take in a run; its blocks."""
        log = noise_log(run)
        number = len(self.doses)
        new = noise_blocks(log, steps, number)
        self.blocks += new
        self.doses.append(doses(log))
        self.busy.append(_busy_in_silence(run, new))
        for block, costs in zip(new, block_costs(run, steps, new), strict=True):
            self.costs[number, block.start_ns] = costs
        return new

    def of(self, condition: str) -> list[Block]:
        """The blocks under a condition."""
        return [block for block in self.blocks if block.condition == condition]

    def effects(self, margin: float = MARGIN) -> list[NoiseEffect]:
        """The effect of each noise: those of a kind beside each other, the least dose first."""
        by_name: dict[str, list[Paired]] = {}
        for each in pair_with_silence(self.blocks):
            by_name.setdefault(each.block.condition, []).append(each)
        floor = self.floor(margin)
        effects = [self._effect(name, mine, margin, len(by_name), floor) for name, mine in by_name.items()]
        return sorted(effects, key=lambda effect: (TOGETHER in effect.noise, effect.kind, effect.dose))

    def _effect(self, name: str, mine: Sequence[Paired], margin: float, tried: int, floor: Judged) -> NoiseEffect:
        seconds = 2 * _mean([each.block.seconds for each in mine])
        judged = judge([each.log_ratio for each in mine], margin, tried, seconds, less_sure(mine))
        if floor.verdict == "unsafe":
            judged.verdict = "undecided"
            judged.why = f"silence differs from silence by {floor.slowdown.expected:.1%}: the machine changes too much"
        dose = self._dose(name)
        return NoiseEffect(
            noise=name,
            dose=dose.asked,
            achieved=dose.done,
            unit=dose.unit,
            verdict=judged.verdict,
            slowdown=judged.slowdown,
            detectable=judged.detectable,
            blocks=judged.blocks,
            why=judged.why,
            tails=tails(mine),
            blame=blame(mine, self.costs) if judged.slowdown.expected > 0 else [],
            shared_cpus=[cpu for cpu in _cpus_of(name) if self._uses(cpu)],
            cache_misses=more_cache_misses(mine, self.costs),
        )

    def spare(self, cpus: Sequence[int]) -> list[int]:
        """Those of these CPUs that the program was seen not to use."""
        return [cpu for cpu in cpus if self._busy_share(cpu) <= _USED]

    def _uses(self, cpu: int) -> bool:
        return self._busy_share(cpu) > _USED

    def _busy_share(self, cpu: int) -> float:
        """Of the silence, for how much of it a CPU was busy; NaN where nobody looked."""
        seen = [share for run in self.busy if not math.isnan(share := run.get(cpu, math.nan))]
        return _mean(seen) if seen else math.nan

    def floor(self, margin: float = MARGIN) -> Judged:
        """What silence seems to do to silence."""
        paired = silence_with_silence(self.blocks)
        return judge([each.log_ratio for each in paired], margin, wider=less_sure(paired))

    def _dose(self, condition: str) -> Dose:
        """That of a noise over all runs; of several together the least share that one has achieved."""
        parts = condition.split(TOGETHER)
        each = [[run[noise] for run in self.doses if noise in run] for noise in parts]
        means = [
            Dose(_mean([dose.asked for dose in seen]), _mean([dose.done for dose in seen]), seen[0].unit)
            for seen in each
        ]
        return means[0] if len(parts) == 1 else Dose(1.0, min(dose.share for dose in means), "of the doses")


def noise_effects(run: Run, steps: Steps, margin: float = MARGIN) -> list[NoiseEffect]:
    """The effects of the noises beside one run; of one that cannot be compared with silence, its dose."""
    if not any(manifest.noise for manifest in run.manifests):
        return []
    blocks = Blocks()
    blocks.add(run, steps)
    effects = blocks.effects(margin)
    compared = {part for effect in effects for part in effect.noise.split(TOGETHER)}
    nothing = judge([], margin)
    for noise, dose in blocks.doses[0].items():
        if noise not in compared:
            effect = NoiseEffect(noise, dose.asked, dose.done, dose.unit, nothing.verdict, nothing.slowdown, 0.0, 0)
            effect.why = "there was no silence beside it in the loop; let it go on and off: --pattern 1s/1s"
            effects.append(effect)
    return effects


def _busy_in_silence(run: Run, blocks: Sequence[Block]) -> dict[int, float]:
    silent = [block for block in blocks if block.condition == SILENCE]
    when = union(np.array([b.start_ns for b in silent]), np.array([b.end_ns for b in silent]))
    names = run.sql("SELECT DISTINCT counter FROM counters WHERE counter LIKE 'cpu.%.busy_ns'")["counter"].tolist()
    increases = Increases(run, names)
    return {int(name.split(".")[1]): increases.rate_in(MACHINE, name, when) for name in names}


def _cpus_of(condition: str) -> list[int]:
    """The CPUs that noises were put on, by their labels."""
    lists = [place for place in re.split("[@ ]", condition)[1:] if re.fullmatch(r"\d+(-\d+)?(,\d+(-\d+)?)*", place)]
    return sorted({cpu for each in lists for cpu in parse_cpu_list(each)})


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
