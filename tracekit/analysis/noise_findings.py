"""What is said of the noises beside a run."""

from collections.abc import Sequence

import msgspec

from tracekit.analysis.noise_effects import NoiseEffect
from tracekit.analysis.noise_verdicts import MARGIN
from tracekit.analysis.report_schema import Evidence, Finding
from tracekit.record.topology import format_cpu_list

_ACHIEVED = 0.95  # of the dose: what is less is said


def noise_findings(effects: Sequence[NoiseEffect], margin: float = MARGIN) -> list[Finding]:
    """A finding for each."""
    return [Finding("noise.verdict", _title(each, margin), _evidence(each, margin)) for each in effects]


def _evidence(effect: NoiseEffect, margin: float) -> Evidence:
    evidence: Evidence = msgspec.to_builtins(effect)
    return {**evidence, "kind": effect.kind, "margin": margin}


def _title(effect: NoiseEffect, margin: float) -> str:
    slow = effect.slowdown
    text = f"{effect.noise} is {effect.verdict}"
    if effect.share < _ACHIEVED:
        text += f" (of the dose {effect.share:.0%} was achieved)"
    if effect.blocks >= 2:
        text += f": the time of a step changes by {slow.expected:+.1%} ({slow.low:+.1%} to {slow.high:+.1%})"
        text += f", margin {margin:.1%}"
    if effect.verdict == "unsafe" and effect.blame:
        most = effect.blame[0]
        text += f"; {most.share:.0%} of it in {most.phase}, by {most.resource}"
        if most.resource == "memory" and effect.cache_misses is not None:
            text += f" ({effect.cache_misses:+.0%} cache misses)"
    if effect.shared_cpus:
        plural = "s" if len(effect.shared_cpus) > 1 else ""
        text += f"; it ran on CPU{plural} {format_cpu_list(effect.shared_cpus)}, which the program uses"
    return text + (f"; {effect.why}" if effect.why else "")
