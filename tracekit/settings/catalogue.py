"""Every setting by name: its meaning, its values, what it changes, and whether this version can apply it."""

import math
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Literal

from tracekit.errors import TracekitError

Value = int | float | bool | str
Effect = Literal["identical", "order", "augmentation", "numerics"]


class SettingsError(TracekitError):
    """Settings that cannot be used; says which file, which setting and what to do."""


@dataclass(frozen=True)
class Kind:
    """A setting. `*` in `name` stands for a name that the user's program gives (of a layer, of a loader).

    `effect`: what it changes in the results of a training: `identical` nothing, `order` the order of the samples,
    `augmentation` what is drawn at random, in the data pipeline or behind it, `numerics` the rounding or more.
    """

    name: str
    type: type[Value]
    meaning: str
    effect: Effect
    low: float = -math.inf
    high: float = math.inf
    applicable: bool = False
    choices: tuple[str, ...] = ()  # of a text; () for any


CATALOGUE = (
    # CPUs are numbered with 16 bits at most: more threads than that are a slip of the keyboard.
    Kind("threads.intra_op", int, "threads inside one operator", "numerics", 1, 65536, applicable=True),
    Kind("threads.inter_op", int, "threads that run operators side by side", "identical", 1, 65536, applicable=True),
    Kind(
        "threads.affinity", str, "the CPUs to run on: 0-7,16, compact, scatter or cores", "identical", applicable=True
    ),
    Kind("threads.layers.*", int, "threads inside the operators of one layer", "numerics", 1, 65536, applicable=True),
    Kind(
        "threads.backward.*",
        int,
        "threads inside the backward pass of one layer",
        "numerics",
        1,
        65536,
        applicable=True,
    ),
    Kind("threads.shapes.*", str, "the inputs that a layer was measured with", "identical", applicable=True),
    Kind(
        "threads.measured_on.*",
        str,
        "where the counts were measured: they hold nowhere else",
        "identical",
        applicable=True,
    ),
    Kind(
        "loader.*.num_workers",
        int,
        "processes that load batches; 0 loads in the program",
        "augmentation",
        0,
        65536,
        applicable=True,
    ),
    Kind("loader.*.prefetch_factor", int, "batches loaded ahead by each worker", "identical", 1, applicable=True),
    Kind(
        "loader.*.pin_memory", bool, "batches in page-locked memory, for copies to a GPU", "identical", applicable=True
    ),
    Kind("loader.*.persistent_workers", bool, "workers that live from epoch to epoch", "order", applicable=True),
    Kind(
        "loader.*.multiprocessing_context",
        str,
        "how workers are started",
        "identical",
        applicable=True,
        choices=("fork", "spawn", "forkserver"),
    ),
    Kind("loader.*.in_order", bool, "batches in the order of the sampler", "order", applicable=True),
    Kind(
        "loader.*.place",
        str,
        "the file and line that makes the loader: its settings hold for no other",
        "identical",
        applicable=True,
    ),
    Kind("loader.*.origin", str, "a mark of the calls that make the loader", "identical", applicable=True),
    Kind("prefetch.ram", int, "memory for samples fetched ahead, bytes", "identical", 0),
    Kind("prefetch.disk", int, "local disk for samples fetched ahead, bytes", "identical", 0),
    Kind("prefetch.outstanding_reads", int, "reads under way at once", "identical", 1),
    # More than two ranks add up an element in the order of its place in the bucket.
    Kind("ddp.bucket_cap_mb", float, "size of a gradient bucket, MiB", "numerics", 0.001, 1 << 20, applicable=True),
    Kind(
        "ddp.first_bucket_mb",
        float,
        "size of the first gradient bucket, MiB, of those that are ready first",
        "numerics",
        0.001,
        1 << 20,
        applicable=True,
    ),
    # Gradients that live in their buckets are divided by the number of ranks, others multiplied with its inverse.
    Kind("ddp.gradient_as_bucket_view", bool, "gradients that live in their buckets", "numerics", applicable=True),
    Kind(
        "ddp.find_unused_parameters",
        bool,
        "a look for parameters that a pass left unused",
        "numerics",
        applicable=True,
    ),
    Kind("ddp.static_graph", bool, "the promise that every step has the same graph", "numerics", applicable=True),
    Kind("node.spare_cores", int, "cores left to others", "identical", 0, 65536),
    Kind("node.allowed_noise", str, "what others may load, together: memory=4GB/s, disk=50MB/s", "identical"),
    Kind("training.lr", float, "learning rate", "numerics", 0),
    Kind("training.warmup_steps", int, "steps over which the learning rate rises", "numerics", 0),
    Kind("training.batch_size", int, "samples in a batch", "numerics", 1),
)


def find(name: str) -> Kind | None:
    """The setting of this name; None when there is none."""
    return next((kind for kind in CATALOGUE if _matches(kind.name, name)), None)


def _matches(pattern: str, name: str) -> bool:
    before, star, after = pattern.partition("*")
    if not star:
        return name == pattern
    return name.startswith(before) and name.endswith(after) and len(name) > len(before) + len(after)


def key_path(name: str) -> list[str]:
    """The tables and the key of a setting in a settings file: `["threads", "layers", "encoder.rnn"]`.

    Raises SettingsError when there is no such setting.
    """
    kind = find(name)
    if kind is None:
        raise SettingsError(f"no setting is called {name!r}{did_you_mean(name)}")
    before, star, after = kind.name.partition("*")
    middle = [name[len(before) : len(name) - len(after)]] if star else []
    return [word for word in before.split(".") if word] + middle + [word for word in after.split(".") if word]


def check(name: str, value: object) -> Value:
    """The value as the setting takes it. Raises SettingsError (without the file's name) when it cannot take it."""
    kind = find(name)
    if kind is None:
        raise SettingsError(f"no setting is called {name!r}{did_you_mean(name)}")
    if kind.type is float and type(value) is int and abs(value) <= sys.float_info.max:
        value = float(value)
    if type(value) is not kind.type:
        raise SettingsError(f"{name} must be {_sort(kind)}, not {value!r}")
    if kind.choices and value not in kind.choices:
        raise SettingsError(f"{name} must be {_sort(kind)}, not {value!r}")
    if isinstance(value, int | float) and not kind.low <= value <= kind.high:
        raise SettingsError(f"{name} must be {_sort(kind)}, not {value!r}")
    return value


def _sort(kind: Kind) -> str:
    if kind.choices:
        return f"one of {', '.join(kind.choices)}, in quotes"
    noun = {int: "a whole number", float: "a number", bool: "true or false", str: "a text in quotes"}[kind.type]
    bounds = [f"at least {kind.low:g}"] if kind.low > -math.inf else []
    bounds += [f"at most {kind.high:g}"] if kind.high < math.inf else []
    return f"{noun}, {' and '.join(bounds)}" if bounds else noun


def did_you_mean(name: str) -> str:
    """`; did you mean …?` for a name close to that of a setting, else the names there are."""
    known = [kind.name for kind in CATALOGUE]
    close = get_close_matches(name, known, n=1)
    return f"; did you mean {close[0]}?" if close else f"; there are {', '.join(known)}"


def check_applicable(settings: Mapping[str, object]) -> None:
    """Raise SettingsError when this version cannot apply one of the settings: a run must be what it says it is."""
    able = [kind.name for kind in CATALOGUE if kind.applicable]
    for name in settings:
        kind = find(name)
        if name.startswith("node."):
            raise SettingsError(
                f"{name}: is what may run beside the program, nothing to set in it; remove it from the settings"
            )
        if kind is None or not kind.applicable:
            raise SettingsError(
                f"{name}: this version of tracekit cannot apply it; remove it from the settings"
                f" (it can apply {', '.join(able)})"
            )
