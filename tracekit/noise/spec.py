"""What noise is asked for: `KIND=DOSE[@WHERE]…`, such as memory=4GB/s, cpu=2@3-4, disk=50MB/s@/scratch."""

import math
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from tracekit.errors import TracekitError
from tracekit.record.topology import format_cpu_list

INTERFACES = Path("/sys/class/net")
NODES = Path("/sys/devices/system/node")
# What was asked and done is logged so often, as whole numbers.
LOG_EVERY_S, _FEWEST = 0.1, 3
_MOST_NICE = 19
# With more processes on a CPU a program beside them would have less than a ninth of it; hundreds take minutes to start.
_MOST_PER_CPU = 8
_PREFIXES = {"": 1.0} | {
    letter + binary: float(base**power)
    for power, letters in enumerate((("k", "K"), ("M",), ("G",), ("T",)), start=1)
    for letter in letters
    for binary, base in (("", 1000), ("i", 1024))
}
_ADVICE = "as in: memory=4GB/s, cpu=2@3-4, disk=50MB/s@/scratch"


class NoiseError(TracekitError):
    """Noise that cannot be made as asked."""


@dataclass(frozen=True)
class Kind:
    """A kind of noise: what its dose is of, and the unit that `asked` and `done` are counted in.

    `rate`: the dose is so much per second; otherwise it is held all the while.
    """

    name: str
    unit: str  # ns (of CPU time) | bytes | operations
    examples: str
    rate: bool = True

    @property
    def dose_unit(self) -> str:
        """What doses are counted in."""
        return "CPUs" if self.unit == "ns" else f"{self.unit}/s" if self.rate else self.unit

    @property
    def per_dose(self) -> float:
        """What a dose of 1 is in a second, in the unit: CPUs are seconds of CPU time per second."""
        return 1e9 if self.unit == "ns" else 1.0


KINDS = {
    kind.name: kind
    for kind in (
        Kind("cpu", "ns", "cpu=2, cpu=50%"),
        Kind("busy", "ns", "busy=1"),
        Kind("memory", "bytes", "memory=4GB/s"),
        Kind("cache", "bytes", "cache=8GB/s"),
        Kind("capacity", "bytes", "capacity=2GB", rate=False),
        Kind("disk", "bytes", "disk=50MB/s"),
        Kind("metadata", "operations", "metadata=500/s"),
        Kind("network", "bytes", "network=1Gb/s"),
    )
}
ON_DISK = ("disk", "metadata")
ON_CPUS = ("cpu", "busy")
IO_IDLE = "ionice3"  # the class of `ionice -c 3`
# Tools of others, and the kinds of noise that they may make: those of which the kernel keeps account.
BACKENDS = {"stress-ng": ON_CPUS, "fio": ("disk",), "iperf3": ("network",)}


@dataclass(frozen=True)
class Spec:
    """One noise: `label` as it was asked for, its kind, its dose (CPUs, bytes/s, operations/s, bytes), and where.

    `cpus`: those that its processes run on, () for any. `nice`: how far they stand back. `io_idle`: the disk is theirs
    when nobody else wants it. `backend`: the tool that makes it, "" for our own. `instead`: the label of the one that
    this is tried for.
    """

    label: str
    kind: Kind
    dose: float
    cpus: tuple[int, ...] = ()
    folder: str = ""
    interface: str = ""
    host: str = ""
    nice: int = 0
    io_idle: bool = False
    backend: str = ""
    instead: str = ""

    @property
    def rate(self) -> float:
        """What is asked for in a second, or to be held, in the kind's unit."""
        return self.dose * self.kind.per_dose

    @property
    def processes(self) -> int:
        """How many processes make it: no process has more than one CPU."""
        if self.kind.name in ON_CPUS:
            return min(max(math.ceil(self.dose), 1), _MOST_PER_CPU * (len(self.cpus) or len(os.sched_getaffinity(0))))
        return max(len(self.cpus), 1) if self.kind.name in ("memory", "cache") else 1

    def cpus_of(self, number: int) -> tuple[int, ...]:
        """The CPUs of process `number` of them: one each where there are enough."""
        return (self.cpus[number],) if 1 < self.processes <= len(self.cpus) else self.cpus

    def with_dose(self, dose: float) -> "Spec":
        """The same with another dose."""
        _, at, where = self.label.partition("@")
        return replace(self, label=f"{self.kind.name}={dose_text(self.kind, dose)}{at}{where}", dose=dose)

    def standing_back(self, spare: Sequence[int]) -> "Spec":
        """The same of a guest that stands back as far as the kernel lets it: on CPUs that are spare where they are
        enough, with nice 19, and with the disk when nobody else wants it. Itself where there is nothing to change."""
        places = [format_cpu_list(spare[: self.processes])] if not self.cpus and len(spare) >= self.processes else []
        places += ["nice19"] if self.nice < _MOST_NICE else []
        places += [IO_IDLE] if self.kind.name in ON_DISK and not self.io_idle else []
        return replace(parse("@".join((self.label, *places))), instead=self.label) if places else self

    def without_dose(self) -> "Spec":
        """What it has in common with those that differ in their dose alone."""
        return replace(self, label="", dose=0.0)


def parse_all(words: Sequence[str], backend: str | None = None) -> list[Spec]:
    """The noises of several words, made by the `backend` if one is named. Raises NoiseError for one that is none, for
    one that is given twice, and for one that the backend does not make."""
    specs = [parse(word + by(backend)) for word in words]
    for at, spec in enumerate(specs):
        if any(spec.label == earlier.label for earlier in specs[:at]):
            raise NoiseError(f"noise {spec.label}: is given twice; give one with the sum of both doses")
    return specs


def by(backend: str | None) -> str:
    """What a noise says of the backend that makes it. Raises NoiseError where there is no such one."""
    if backend and backend not in BACKENDS:
        raise NoiseError(f"--backend {backend}: there are {', '.join(BACKENDS)}")
    return f"@{backend}" if backend else ""


def parse(word: str) -> Spec:
    """The noise of one word. Raises NoiseError."""
    if not word.isprintable() or any(letter.isspace() for letter in word):
        raise NoiseError(f"noise {word!r}: has letters that cannot be printed, or blanks; {_ADVICE}")
    asked, *places = word.split("@")
    name, equals, dose = asked.partition("=")
    if name not in KINDS:
        raise NoiseError(f"noise {word}: there is no kind {name!r}; there are {', '.join(KINDS)}; {_ADVICE}")
    kind = KINDS[name]
    if not equals:
        raise NoiseError(f"noise {word}: has no dose; as in {kind.examples}")
    found = Spec(word, kind, _dose(word, kind, dose))
    for place in places:
        found = _placed(found, place)
    return found


def _dose(word: str, kind: Kind, text: str) -> float:
    number = re.fullmatch(r"(\d+(?:\.\d+)?|\.\d+)\s*([a-zA-Z%]*(?:/s)?)", text)
    unit = number[2] if number else ""
    factor = _factor(kind, unit) if number else None
    dose = float(number[1]) * factor if number and factor else 0.0
    if not 0 < dose < 1e15:
        raise NoiseError(f"noise {word}: {text!r} is no dose of {kind.name}; as in {kind.examples}")
    if kind.rate and dose * kind.per_dose * LOG_EVERY_S < _FEWEST:
        raise NoiseError(
            f"noise {word}: is too little to be told from nothing in {LOG_EVERY_S:g} s; as in {kind.examples}"
        )
    return dose


def _factor(kind: Kind, unit: str) -> float | None:
    """What a unit is in that of doses; None for one that the kind does not have."""
    if kind.unit == "ns":
        return {"": 1.0, "%": 0.01}.get(unit)
    if kind.unit == "operations":
        return {"/s": 1.0, "ops/s": 1.0, "k/s": 1e3, "kops/s": 1e3}.get(unit)
    if kind.rate != unit.endswith("/s"):
        return None
    quantity = unit.removesuffix("/s")
    factor = _PREFIXES.get(quantity[:-1])
    if factor is None or quantity[-1:] not in ("B", "b"):
        return None
    if quantity.endswith("b"):  # bits, as networks are sold
        return factor / 8 if kind.name == "network" else None
    return factor


def _placed(spec: Spec, place: str) -> Spec:
    """The noise in this place too: CPUs, node0, nice19, ionice3, a folder, an interface or a host; or made by this
    backend. Raises NoiseError."""
    if place in BACKENDS:
        if spec.kind.name not in BACKENDS[place]:
            raise NoiseError(f"noise {spec.label}: {place} makes {' and '.join(BACKENDS[place])} alone; leave it out")
        return replace(spec, backend=place)
    if re.fullmatch(r"\d+(-\d+)?(,\d+(-\d+)?)*", place):
        return replace(spec, cpus=_allowed(spec.label, _numbers(spec.label, place)))
    if found := re.fullmatch(r"node(\d+)", place):
        return replace(spec, cpus=_allowed(spec.label, _of_node(spec.label, int(found[1]))))
    if found := re.fullmatch(r"nice(\d+)", place):
        nice = int(found[1][-5:]) if found[1][:-5].strip("0") == "" else 0
        if not 0 < nice <= _MOST_NICE:
            raise NoiseError(f"noise {spec.label}: {place} is no niceness; they go from nice1 to nice{_MOST_NICE}")
        return replace(spec, nice=nice)
    if place == IO_IDLE:
        return replace(spec, io_idle=True)
    if spec.kind.name in ON_DISK and place:
        if not os.path.isdir(place):
            what = "is no folder" if os.path.exists(place) else "does not exist"
            raise NoiseError(f"noise {spec.label}: {place} {what}; name a folder on the disk that is meant")
        return replace(spec, folder=os.path.abspath(place))
    if spec.kind.name == "network" and place:
        is_interface = "/" not in place and (INTERFACES / place).exists()
        return replace(spec, interface=place) if is_interface else replace(spec, host=place)
    raise NoiseError(
        f"noise {spec.label}: {place!r} is no place for {spec.kind.name}; CPUs (@0-3), a NUMA node (@node0),"
        " @nice19 and @ionice3 are, of disk and metadata a folder, of network an interface and a host"
    )


def _numbers(label: str, text: str) -> list[int]:
    numbers: list[int] = []
    for part in text.split(","):
        first, dash, last = part.partition("-")
        if max(len(first), len(last)) > 5 or int(last if dash else first) < int(first):
            raise NoiseError(f"noise {label}: {part!r} is no range of CPUs")
        numbers += range(int(first), int(last if dash else first) + 1)
    return sorted(set(numbers))


def _of_node(label: str, number: int) -> list[int]:
    try:
        return _numbers(label, (NODES / f"node{number}" / "cpulist").read_text(encoding="ascii").strip())
    except OSError:
        raise NoiseError(f"noise {label}: there is no NUMA node {number} here") from None


def _allowed(label: str, cpus: Sequence[int]) -> tuple[int, ...]:
    outside = sorted(set(cpus) - os.sched_getaffinity(0))
    if outside:
        raise NoiseError(f"noise {label}: this job may not run on CPU {outside[0]}")
    return tuple(cpus)


def dose_text(kind: Kind, dose: float) -> str:
    """A dose as one writes it: 4GB/s, 1.5, 500/s."""
    if kind.unit == "ns":
        return _short(dose)
    if kind.unit == "operations":
        return f"{dose:.0f}/s"
    letter, value = ("b", dose * 8) if kind.name == "network" else ("B", dose)
    prefix = next((each for each in ("T", "G", "M", "k") if value >= 0.9995 * _PREFIXES[each]), "")
    return f"{_short(value / _PREFIXES[prefix])}{prefix}{letter}{'/s' if kind.rate else ''}"


def _short(number: float) -> str:
    """Three digits of a number, without an exponent."""
    return f"{float(f'{number:.3g}'):.15g}"
