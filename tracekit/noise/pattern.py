"""Patterns: which noises are on, and for how long, one stretch after the other.

    2s/3s                                     all on for 2 s, off for 3 s, and again
    memory:2s off:1s disk+network:3s          one after the other, and again
    random:7 1s memory:25% disk:25% off:50%   for 1 s each, drawn with these shares and the seed 7
    FILE.yaml#M2S2                            a pattern of NOIGENA's configuration file

A noise is named by its label (`memory=4GB/s`) or its kind; `off` is none.
"""

import itertools
import math
import os
import random
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tracekit.noise.spec import NoiseError, Spec

_OFF = "off"
# What NOIGENA calls them: STREAM, LinkTest, IOR, mdtest and spinning.
_NOIGENAS = {
    "MEMORY_NOISE": "memory",
    "NETWORK_NOISE": "network",
    "IO_NOISE": "disk",
    "METADATA_NOISE": "metadata",
    "BUSY_WAIT_NOISE": "busy",
    "NO_NOISE": _OFF,
}
_NOIGENAS_SLOT_S = 1.0  # of random noise: it gives shares of a time, and no length
_LARGEST_FILE = 1 << 20
_MOST_PARTS = 10_000  # of a pattern: a few lines of YAML can stand for millions


@dataclass(frozen=True)
class Stretch:
    """So many seconds, in which the noises with these labels are on."""

    on: frozenset[str]
    seconds: float


Pattern = Callable[[], Iterator[Stretch]]


def always(specs: Sequence[Spec]) -> Pattern:
    """All noises, all the time."""
    return lambda: iter([Stretch(frozenset(spec.label for spec in specs), math.inf)])


def parse_pattern(text: str, specs: Sequence[Spec]) -> Pattern:
    """The pattern of a text as above, over these noises. Raises NoiseError."""
    file, _, name = text.partition("#")
    if file.endswith((".yaml", ".yml")):
        return _noigenas(file, name, specs)
    if name and ":" not in text:
        raise NoiseError(f"pattern {text!r}: a file of patterns is one of YAML, as in FILE.yaml#{name}")
    words = text.split()
    if len(words) == 1 and "/" in text and ":" not in text:
        on, off = (_seconds(text, part) for part in text.split("/", 1))
        everything = frozenset(spec.label for spec in specs)
        return _repeated([Stretch(everything, on), Stretch(frozenset(), off)])
    if words and words[0].split(":")[0] == "random":
        return _random(text, words, specs)
    if not words:
        raise NoiseError("pattern: is empty; as in: 2s/2s, or: memory:2s off:2s")
    stretches = [_stretch(text, word, specs) for word in words]
    _refuse_silence(f"pattern {text!r}", (stretch.on for stretch in stretches))
    return _repeated(stretches)


def _refuse_silence(where: str, labels: Iterable[frozenset[str]]) -> None:
    if not any(labels):
        raise NoiseError(f"{where}: no noise is ever on; give one of them a time, as in: memory:2s off:2s")


def _repeated(stretches: Sequence[Stretch]) -> Pattern:
    return lambda: itertools.cycle(stretches)


def _stretch(text: str, word: str, specs: Sequence[Spec]) -> Stretch:
    names, colon, length = word.rpartition(":")
    if not colon or not names:
        raise NoiseError(f"pattern {text!r}: {word!r} is no stretch such as memory:2s or off:1s")
    return Stretch(_labels(text, _split(names, specs), specs), _seconds(text, length))


def _split(names: str, specs: Sequence[Spec]) -> list[str]:
    """The names that are joined by +: labels may have one of their own, in the name of a folder."""
    for label in sorted((spec.label for spec in specs), key=len, reverse=True):
        if names == label:
            return [label]
        if names.startswith(f"{label}+"):
            return [label, *_split(names[len(label) + 1 :], specs)]
    first, plus, rest = names.partition("+")
    return [first, *_split(rest, specs)] if plus else [first]


def _labels(text: str, names: Iterable[str], specs: Sequence[Spec]) -> frozenset[str]:
    found: set[str] = set()
    for name in names:
        mine = [spec.label for spec in specs if name in (spec.label, spec.kind.name)]
        if not mine and name != _OFF:
            raise NoiseError(
                f"pattern {text!r}: there is no noise {name!r} with a dose; there are"
                f" {', '.join([*(spec.label for spec in specs), _OFF])}"
            )
        found.update(mine)
    return frozenset(found)


def _seconds(text: str, word: str) -> float:
    found = re.fullmatch(r"(\d+(?:\.\d+)?)(ms|s|m)?", word)
    seconds = float(found[1]) * {"ms": 0.001, "m": 60.0}.get(found[2], 1.0) if found else 0.0
    if not 0.01 <= seconds < 1e7:
        raise NoiseError(f"pattern {text!r}: {word!r} is no time such as 2s or 500ms")
    return seconds


def _random(text: str, words: Sequence[str], specs: Sequence[Spec]) -> Pattern:
    _, _, seed = words[0].partition(":")
    shares: dict[frozenset[str], float] = {}
    for word in words[2:]:
        names, _, share = word.rpartition(":")
        number = re.fullmatch(r"(\d+(?:\.\d+)?)%", share)
        if number is None or not names:
            raise NoiseError(f"pattern {text!r}: {word!r} is no share such as memory:25%")
        labels = _labels(text, _split(names, specs), specs)
        shares[labels] = shares.get(labels, 0.0) + float(number[1])
    if len(words) < 3 or (seed and not seed.isdigit()):
        raise NoiseError(f"pattern {text!r}: as in: random:7 1s memory:25% off:75%")
    return _drawn(text, shares, _seconds(text, words[1]), int(seed) if seed else None, math.inf)


def _drawn(text: str, shares: dict[frozenset[str], float], slot_s: float, seed: int | None, total_s: float) -> Pattern:
    _refuse_silence(f"pattern {text!r}", (labels for labels, share in shares.items() if share > 0))
    if abs(sum(shares.values()) - 100) > 0.01:
        raise NoiseError(f"pattern {text!r}: the shares add up to {sum(shares.values()):g} %, not to 100 %")

    def draw() -> Iterator[Stretch]:
        drawer, left = random.Random(seed), total_s
        while left > 0:
            (on,) = drawer.choices(list(shares), list(shares.values()))
            yield Stretch(on, min(slot_s, left))
            left -= slot_s

    return draw


def _noigenas(file: str, name: str, specs: Sequence[Spec]) -> Pattern:
    import yaml

    path = Path(file)
    try:
        if os.path.getsize(path) > _LARGEST_FILE:
            raise NoiseError(f"{file}: is too large for a file of patterns")
        document = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise NoiseError(f"{file}: cannot be read ({error.strerror})") from error
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError, ValueError) as error:
        raise NoiseError(f"{file}: is not valid YAML: {' '.join(str(error).split())[:200]}") from error
    patterns = document.get("NOISE_PATTERNS") if isinstance(document, dict) else None
    if not isinstance(patterns, dict):
        raise NoiseError(f"{file}: has no NOISE_PATTERNS, as NOIGENA's configuration has")
    known = {str(each).removeprefix("PATTERN_"): body for each, body in patterns.items()}
    if name.removeprefix("PATTERN_") not in known:
        raise NoiseError(f"{file}: name one of its patterns, as in {file}#{next(iter(known), 'M2S2')}; {_there(known)}")
    body = known[name.removeprefix("PATTERN_")]
    sequence = body.get("Sequence") if isinstance(body, dict) else None
    return _sequence(f"{file}#{name}", sequence, specs, itertools.count(1))


def _there(names: Iterable[object]) -> str:
    return "there are " + ", ".join(map(str, names))


def _sequence(where: str, items: Any, specs: Sequence[Spec], parts_seen: Iterator[int]) -> Pattern:
    """A NOIGENA sequence: its parts one after the other, once."""
    if not isinstance(items, list):
        raise NoiseError(f"{where}: has no Sequence")
    parts: list[Pattern] = []
    for item in items:
        if next(parts_seen) > _MOST_PARTS:
            raise NoiseError(f"{where}: has more than {_MOST_PARTS} parts")
        if not isinstance(item, dict) or len(item) != 1:
            raise NoiseError(f"{where}: {str(item)[:50]!r} is no noise of a Sequence")
        ((word, value),) = item.items()
        if word == "REPEATED_NOISE":
            parts.append(_again(where, value, specs, parts_seen))
        elif word == "RANDOM_NOISE":
            parts.append(_noigenas_random(where, value, specs))
        elif word in _NOIGENAS:
            # The words are one of its configurations, which have no doses, and the seconds.
            length = str(value).split()[-1:] or [""]
            stretch = Stretch(_labels(where, [_NOIGENAS[word]], specs), _seconds(where, length[0]))
            parts.append(lambda stretch=stretch: iter([stretch]))  # type: ignore[misc]
        else:
            raise NoiseError(f"{where}: {word!r} is no noise; {_there(_NOIGENAS)}")
    return lambda: itertools.chain.from_iterable(part() for part in parts)


def _again(where: str, value: Any, specs: Sequence[Spec], parts_seen: Iterator[int]) -> Pattern:
    if not isinstance(value, dict):
        raise NoiseError(f"{where}: REPEATED_NOISE has no REPEAT and Sequence")
    inner = _sequence(where, value.get("Sequence"), specs, parts_seen)
    times = str(value.get("REPEAT", "inf"))
    if times.lower() not in ("inf", ".inf", "infinity") and not times.isdigit():
        raise NoiseError(f"{where}: REPEAT is {times!r}, which is neither a number nor inf")
    rounds: Callable[[], Iterable[int]] = (lambda: range(int(times))) if times.isdigit() else itertools.count
    if next(inner(), None) is None:
        raise NoiseError(f"{where}: an empty Sequence is repeated")
    return lambda: itertools.chain.from_iterable(inner() for _ in rounds())


def _noigenas_random(where: str, value: Any, specs: Sequence[Spec]) -> Pattern:
    if not isinstance(value, dict):
        raise NoiseError(f"{where}: RANDOM_NOISE has no TIME and shares")
    shares: dict[frozenset[str], float] = {}
    for word, share in value.items():
        if word in _NOIGENAS and isinstance(share, int | float):
            labels = _labels(where, [_NOIGENAS[word]], specs)
            shares[labels] = shares.get(labels, 0.0) + share
        elif str(word).upper() not in ("SEED", "TIME"):
            raise NoiseError(f"{where}: {word!r} is no noise; {_there(_NOIGENAS)}")
    seed = next((each for word, each in value.items() if str(word).upper() == "SEED"), None)
    if seed is not None and not isinstance(seed, int):
        raise NoiseError(f"{where}: Seed is {seed!r}, which is no whole number")
    return _drawn(where, shares, _NOIGENAS_SLOT_S, seed, _seconds(where, str(value.get("TIME", ""))))
