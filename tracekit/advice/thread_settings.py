"""Thread counts as settings: one for everything, and others for single layers."""

from collections.abc import Mapping
from typing import Literal

from tracekit.analysis.report_schema import Gain, Setting
from tracekit.analysis.words import counted, shell_line

COMMON, AFFINITY = "threads.intra_op", "threads.affinity"
BY_LAYER = {"forward": "threads.layers", "backward": "threads.backward"}  # by direction

# The share of waiting from which on times say as much of the neighbours as of the program: it is about what plans gain.
MUCH_WAITING = 0.1

Values = Mapping[str, int | str]


def counts_by_layer(values: Values, prefix: str) -> dict[str, int]:
    """The counts below `threads.layers` or `threads.backward`, by layer."""
    return {name[len(prefix) + 1 :]: int(count) for name, count in values.items() if name.startswith(f"{prefix}.")}


def is_by_layer(values: Values) -> bool:
    return any(counts_by_layer(values, prefix) for prefix in BY_LAYER.values())


def thread_settings(
    values: Values, current: int, gain: Gain, basis: Literal["measured", "model"], why: str, apply: list[str]
) -> list[Setting]:
    """The settings that differ from `current` for everything; they have one gain together. `apply` is the command."""
    common = int(values.get(COMMON, current))
    layers = {prefix: counts_by_layer(values, prefix) for prefix in BY_LAYER.values()}
    command = shell_line(["tracekit", "apply", *apply])
    settings: list[Setting] = []

    def add(name: str, recommended: int | dict[str, int], what: str) -> None:
        words = f"{what}: {why}" if what else why
        settings.append(
            Setting(
                name, current, recommended, gain, basis, "numerics", words, shell_line(["tracekit", "apply", *apply])
            )
        )

    if common != current:
        others = " but the layers below, together with them" if any(layers.values()) else ""
        add(COMMON, common, f"{counted(common, 'thread')} for everything{others}")
    for prefix, counts in layers.items():
        if counts:
            add(prefix, counts, "")
    if AFFINITY in values:
        settings.append(
            Setting(AFFINITY, None, str(values[AFFINITY]), gain, basis, "identical", f"{why}; with the count", command)
        )
    return settings
