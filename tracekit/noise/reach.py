"""How much of a kind of noise this machine can give: a ladder of doses up to that."""

import os
import time

from tracekit.noise.generators import Generators
from tracekit.noise.spec import KINDS, ON_CPUS, NoiseError, Spec, dose_text, parse

# Of what it can give. The top is what is reached without anybody else: beside a program it may be less.
RUNGS = (0.25, 0.5, 1.0)
_FLAT_OUT_S = 0.5
_MORE_THAN_ANY = {"operations": 1e8, "bytes": 1e14}
# Held memory takes nothing from a program but what it wants itself, and waiting busily takes what computing takes.
USUAL = ("cpu", "memory", "cache", "disk", "metadata", "network")


def ladder(kind: str, where: str = "") -> list[Spec]:
    """The noises of a kind to try, in this place (`@…`), the least first. Raises NoiseError where there are none."""
    most = reach(kind, where)
    found = [parse(f"{kind}={dose_text(KINDS[kind], most * rung)}{where}") for rung in RUNGS]
    return list({spec.label: spec for spec in found}.values())


def reach(kind: str, where: str = "") -> float:
    """The largest dose that this machine gives: CPUs are counted, all else is tried for half a second."""
    if kind not in KINDS or kind == "capacity":
        usual = ", ".join(name for name in KINDS if name != "capacity")
        raise NoiseError(f"{kind!r} is no kind of noise with a ladder of doses; there are {usual}")
    most = 1.0 if kind in ON_CPUS else _MORE_THAN_ANY[KINDS[kind].unit]
    word = f"{kind}={dose_text(KINDS[kind], most)}{where}"
    try:
        spec = parse(word)
        return float(len(spec.cpus) or len(os.sched_getaffinity(0))) if kind in ON_CPUS else _flat_out(spec)
    except NoiseError as error:
        raise NoiseError(str(error).replace(word, f"{kind}{where}")) from error  # nobody asked for that dose


def _flat_out(spec: Spec) -> float:
    generators = Generators([spec])
    try:
        generators.set([spec.label])
        time.sleep(_FLAT_OUT_S / 5)  # the first pieces open what is closed
        began, before = time.monotonic(), generators.done()[spec.label]
        time.sleep(_FLAT_OUT_S)
        done, lasted = generators.done()[spec.label] - before, time.monotonic() - began
        why = generators.failed().get(spec.label)
    finally:
        generators.close()
    if why or not done:
        raise NoiseError(f"noise {spec.label}: {why or 'nothing was done in half a second'}")
    return done / lasted
