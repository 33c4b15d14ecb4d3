"""What pages ask of an exploration of thread counts: what differs most, the plan over a step, what was measured."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from tracekit.analysis.report_schema import Gain, LayerThreadTimes, ThreadExploration
from tracekit.dashboards.figures import text

# A drift smaller than this is none that anyone would act on.
_STEADY = 0.01


@dataclass(frozen=True)
class Segment:
    """A part of the step under one thread count; it stands for `layers` layers that follow each other."""

    label: str
    count: int
    ms: float
    layers: int = 1


def known(time: Gain | None) -> bool:
    """Whether a time was measured: too few rounds leave it out, or leave NaN."""
    return time is not None and math.isfinite(time.expected)


def layer_label(layer: LayerThreadTimes) -> str:
    """The layer and its direction; the rest of the step has none."""
    return f"{layer.layer} {layer.direction}".rstrip()


def difference_ms(layer: LayerThreadTimes) -> float:
    """From the count with the shortest time to the one with the longest; 0 where fewer than two are known."""
    times = [time.expected for time in layer.times.values() if known(time)]
    return max(times) - min(times) if times else 0.0


def by_difference(layers: Sequence[LayerThreadTimes]) -> list[LayerThreadTimes]:
    """The layers for which the count matters most first."""
    return sorted(layers, key=difference_ms, reverse=True)


def planned_step(layers: Sequence[LayerThreadTimes]) -> list[Segment]:
    """The layers under the counts planned for them, in the order in which they run; nothing where there is no plan."""
    return [
        Segment(layer_label(layer), layer.planned, layer.times[str(layer.planned)].expected)
        for layer in layers
        if layer.planned is not None and known(layer.times.get(str(layer.planned)))
    ]


def step_at(layers: Sequence[LayerThreadTimes], count: int) -> list[Segment]:
    """The layers under one count for all, in the order in which they run."""
    return [
        Segment(layer_label(layer), count, layer.times[str(count)].expected)
        for layer in layers
        if known(layer.times.get(str(count)))
    ]


def without_slivers(segments: Sequence[Segment], thinnest_ms: float) -> list[Segment]:
    """Neighbours under the same count made one where each is shorter than `thinnest_ms`: no one sees them apart."""
    merged: list[Segment] = []
    mergeable = False
    for segment in segments:
        thin = segment.ms < thinnest_ms
        if thin and mergeable and merged[-1].count == segment.count:
            before = merged.pop()
            layers = before.layers + segment.layers
            merged.append(Segment(f"{layers} short layers", segment.count, before.ms + segment.ms, layers))
        else:
            merged.append(segment)
        mergeable = thin
    return merged


def in_threads(count: int) -> str:
    return f"{count} thread" if count == 1 else f"{count} threads"


def in_words(found: ThreadExploration) -> list[str]:
    """What was measured and what disturbed it, a sentence each."""
    *others, last = [str(count) for count in found.counts] or ["no"]
    counts = f"{', '.join(others)} and {last}" if others else last
    blocks = "1 block of steps" if found.blocks == 1 else f"{text.number(found.blocks)} blocks of steps"
    rounds = "1 round" if found.rounds == 1 else f"{text.number(found.rounds)} rounds"
    return [
        f"{blocks} ran with {counts} threads in turn, each round with every count once, in random order;"
        f" {rounds} can be used.",
        _disturbed(found.disturbed),
        _drift(found),
    ]


def _disturbed(blocks: int) -> str:
    if not blocks:
        return "No block was disturbed."
    subject = "1 block was" if blocks == 1 else f"{text.number(blocks)} blocks were"
    return f"{subject} left out: something kept the program from its CPUs."


def _drift(found: ThreadExploration) -> str:
    if found.drift is None or not math.isfinite(found.drift):
        return "There are too few steps to tell whether the program became slower or faster by itself meanwhile."
    if abs(found.drift) < _STEADY:
        return f"From the first third of the run to the last, steps with {in_threads(found.current)} stayed as fast."
    became = "slower" if found.drift > 0 else "faster"
    return (
        f"From the first third of the run to the last, steps with {in_threads(found.current)} became"
        f" {text.percent(abs(found.drift))} {became}; every round meets that alike."
    )
