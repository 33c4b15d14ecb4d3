"""Which CPUs a setting `threads.affinity` means: a list, or a way to lay threads out."""

from collections.abc import Sequence

from tracekit.settings.catalogue import SettingsError

_LARGEST_CPU = 1 << 16  # Linux is built for 8,192 at most
LAYOUTS = ("compact", "scatter", "cores")


def choose_cpus(value: str, threads: int, nodes: Sequence[Sequence[int]], allowed: Sequence[int]) -> list[int]:
    """The CPUs for so many threads. `nodes` holds one CPU of each physical core that may be used, by NUMA node;
    `allowed` every CPU that may be used.

    `compact` fills one node after the other, `scatter` takes the nodes in turn, `cores` takes one CPU of every core;
    else the value is a list such as 0-3,8. Raises SettingsError for CPUs that are not allowed, or none.
    """
    cores = [cpu for node in nodes for cpu in node] or list(allowed)
    if value == "cores":
        return cores
    if value == "compact":
        return cores[:threads] if threads <= len(cores) else list(allowed)
    if value == "scatter":
        width = max((len(node) for node in nodes), default=0)
        in_turn = [node[place] for place in range(width) for node in nodes if place < len(node)] or cores
        return in_turn[:threads] if threads <= len(in_turn) else list(allowed)
    try:
        wanted = _parse(value)
    except ValueError:
        raise SettingsError(
            f"threads.affinity: {value!r} is no list of CPUs such as 0-3,8, and none of {', '.join(LAYOUTS)}"
        ) from None
    outside = sorted(set(wanted) - set(allowed))
    if outside or not wanted:
        raise SettingsError(f"threads.affinity: this job may not run on CPU {outside[0] if outside else value!r}")
    return wanted


def layouts_to_try(threads: int, nodes: Sequence[Sequence[int]], allowed: Sequence[int]) -> list[str]:
    """The layouts under which so many threads have fewer CPUs than they may use, one for each set of CPUs.

    None for one thread: it gains nothing from staying in its place, and those that load data would stay there too.
    """
    found: dict[tuple[int, ...], str] = {}
    for layout in LAYOUTS if threads > 1 else ():
        cpus = tuple(sorted(choose_cpus(layout, threads, nodes, allowed)))
        if len(cpus) < len(allowed):
            found.setdefault(cpus, layout)
    return list(found.values())


def _parse(text: str) -> list[int]:
    numbers: set[int] = set()
    for part in text.split(","):
        first, dash, last = part.partition("-")
        if int(last if dash else first) > _LARGEST_CPU:
            raise ValueError(part)
        numbers.update(range(int(first), int(last if dash else first) + 1))
    return sorted(numbers)
