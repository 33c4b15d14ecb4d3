"""Guidelines: simple sentences on how to set thread counts, and how many of all configurations each of them beats.

A configuration gives every group of like layers one of the counts tried; its step time is the sum of what the layers
took at their counts, and the switches between them. Where there are too many configurations to look at each, so many
are drawn at random, evenly.
"""

import re

import numpy as np
from numpy.typing import NDArray

from tracekit.analysis.exploration import REST, Exploration
from tracekit.analysis.report_schema import Guideline
from tracekit.models.switching import SwitchCosts, plan_cost

_MOST_CONFIGURATIONS = 1024

Choice = NDArray[np.intp]
Times = NDArray[np.float64]


def guidelines(measured: Exploration, costs: SwitchCosts) -> list[Guideline]:
    """The guidelines for this program, the best first. `beats` is the share of the configurations that are slower."""
    times = np.nanmedian(measured.times, axis=0)
    calls = np.array([max(section.calls, 1.0) for section in measured.sections])
    configurations, grid = _configurations(measured, _groups(measured, times))
    step = np.array([plan_cost(times, calls, costs, choice) for choice in configurations])
    found = []
    for sentence, choice in _sentences(measured, times).items():
        cost = plan_cost(times, calls, costs, choice)
        found.append(Guideline(sentence, float(np.mean(step > cost)), len(configurations), grid))
    return sorted(found, key=lambda guideline: -guideline.beats)


def _groups(measured: Exploration, times: Times) -> NDArray[np.intp]:
    """Like layers have one count in a configuration: those with the same input and about the same times."""
    keys = []
    for section, row in zip(measured.sections, times, strict=True):
        shape = ";".join(measured.shapes.get(section.name, [re.sub(r"\d+", "", section.name)]))
        magnitude = tuple(np.round(np.log2(np.maximum(row, 1))).astype(int))
        keys.append((section.direction, shape, magnitude, section.name == REST))
    numbers = {key: number for number, key in enumerate(dict.fromkeys(keys))}
    return np.array([numbers[key] for key in keys])


def _configurations(measured: Exploration, groups: NDArray[np.intp]) -> tuple[list[Choice], str]:
    counts, group_count = len(measured.counts), int(groups.max()) + 1
    words = f"{', '.join(map(str, measured.counts))} threads for each of {group_count} groups of like layers"
    if counts**group_count <= _MOST_CONFIGURATIONS:
        every = np.indices((counts,) * group_count).reshape(group_count, -1).T
        return [choice[groups] for choice in every], f"all configurations of {words}"
    drawn = np.random.default_rng(0).integers(0, counts, (_MOST_CONFIGURATIONS, group_count))
    return [choice[groups] for choice in drawn], f"{_MOST_CONFIGURATIONS} configurations, drawn evenly, of {words}"


def _sentences(measured: Exploration, times: Times) -> dict[str, Choice]:
    """Guidelines by their sentence, as the choice that they lead to."""
    length, most = len(measured.sections), len(measured.counts) - 1
    result: dict[str, Choice] = {
        f"Run everything with {count} thread{'s' if count > 1 else ''}.": np.full(length, at)
        for at, count in enumerate(measured.counts)
    }
    serial = times[:, 0]
    # The rest of the step is no layer, and may seem to take less than nothing.
    layers = np.array([section.name != REST for section in measured.sections])
    limit = _limit(serial[layers], times[layers].argmin(axis=1) == 0)
    if limit is not None:
        sentence = (
            f"Give {measured.counts[0]} thread to layers that take less than {limit / 1e6:.2g} ms a step with it, and"
            f" {measured.counts[most]} to the others."
        )
        result[sentence] = np.where(serial < limit, 0, most)
    result["Give every layer the count that is best for it alone."] = times.argmin(axis=1)
    return result


def _limit(serial: Times, is_best_alone: NDArray[np.bool_]) -> float | None:
    """The time on one thread that tells best which layers are fastest on one; None where all or none are."""
    if is_best_alone.all() or not is_best_alone.any():
        return None
    order = np.argsort(serial)
    best = is_best_alone[order]
    wrong = [np.sum(~best[:at]) + np.sum(best[at:]) for at in range(1, len(best))]
    at = int(np.argmin(wrong)) + 1
    return float(np.sqrt(serial[order][at - 1] * serial[order][at]))
