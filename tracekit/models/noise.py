"""Noises together, from what each does by itself."""

import math
from collections.abc import Mapping, Sequence

import msgspec

from tracekit.analysis.noise import TOGETHER
from tracekit.analysis.noise_effects import NoiseEffect
from tracekit.analysis.noise_verdicts import Slowdown
from tracekit.noise.spec import Spec


class Mix(msgspec.Struct):
    """Noises that were on together: the slowdown that was predicted from each of them, and the one that was seen."""

    noise: str
    predicted: Slowdown
    measured: Slowdown


def together(slowdowns: Sequence[Slowdown]) -> Slowdown:
    """The slowdown of noises that each lengthen what the others leave: factors multiply, and independent errors of
    their logarithms add up by squares. Noises that take from each other do less."""
    logs = [[math.log1p(value) for value in (each.low, each.expected, each.high)] for each in slowdowns]
    expected = sum(each[1] for each in logs)
    below = math.hypot(*(each[1] - each[0] for each in logs))
    above = math.hypot(*(each[2] - each[1] for each in logs))
    return Slowdown(math.expm1(expected - below), math.expm1(expected), math.expm1(expected + above))


def predict(effects: Sequence[NoiseEffect]) -> list[Mix]:
    """The mixes among the effects all of whose parts were seen by themselves too."""
    seen = {each.noise: each.slowdown for each in effects}
    found = []
    for name, measured in seen.items():
        parts = name.split(TOGETHER)
        if len(parts) > 1 and all(part in seen for part in parts):
            found.append(Mix(name, together([seen[part] for part in parts]), measured))
    return found


def largest_safe(specs: Sequence[Spec], effects: Mapping[str, NoiseEffect]) -> list[Spec]:
    """Of noises that differ in their dose alone the largest that is safe, as are all smaller ones: a dose above one
    that is not is no less harmful, whatever its blocks say. Going up that ladder costs no certainty. Of those and one
    that stands back instead, whichever does more."""
    found: dict[Spec, Spec] = {}
    stopped: set[Spec] = set()
    for spec in sorted(specs, key=lambda each: each.dose):
        alike, effect = spec.without_dose(), effects.get(spec.label)
        if effect is None or effect.verdict != "safe":
            stopped.add(alike)
        elif alike not in stopped:
            found[alike] = spec
    for gentle in [spec for spec in found.values() if spec.instead]:
        plain = found.get(next(spec for spec in specs if spec.label == gentle.instead).without_dose())
        if plain is not None:
            does_less = min(gentle, plain, key=lambda spec: effects[spec.label].achieved)
            del found[does_less.without_dose()]
    return list(found.values())


def gentler(specs: Sequence[Spec], effects: Mapping[str, NoiseEffect], spare: Sequence[int]) -> list[Spec]:
    """What to try instead of noises that are unsafe: the least such dose of each, by a guest that stands back from the
    program (`Spec.standing_back`), on `spare` CPUs."""
    least: dict[Spec, Spec] = {}
    for spec in sorted(specs, key=lambda each: each.dose):
        effect = effects.get(spec.label)
        if effect is not None and effect.verdict == "unsafe":
            least.setdefault(spec.without_dose(), spec)
    return [gentle for spec in least.values() if (gentle := spec.standing_back(spare)) != spec]
