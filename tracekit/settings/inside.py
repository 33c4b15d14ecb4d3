"""How settings are applied inside a process of the program, right after torch has been imported."""

from collections.abc import Mapping
from types import ModuleType
from typing import Any

# What a run misses whose plan does not fit the process, in the words of the manifest.
REFUSED_PLAN = "the thread plan"
# The same of counts that were in force until the program set its own.
ENDED_PLAN = "the thread counts, from then on"
# The same of what a program with one thread forks, if it does not run the loop.
FORKED_WITH_ONE = "threads.intra_op in what the program forks"
# What a run misses from where its exploration ended before its time.
ENDED_EXPLORATION = "the exploration of thread counts"
ENDED_BUCKET_EXPLORATION = "an exploration of gradient buckets"
# And what it misses as it explores.
LEFT_OUT_COLLECTIVES = "collectives"
# Of a loader that is not the one that its settings were found for, or is not there, or a model; and of an iterable one.
REFUSED, KEPT_WORKERS = "settings of ", "num_workers of "
_LOADER, _DDP = "loader.", "ddp."
# What takes the settings of DistributedDataParallel, as a process says that it was there.
WRAPPED_MODELS = "DistributedDataParallel"
PLACE, ORIGIN = "place", "origin"  # of a loader: where the program makes it, and by which calls
WHICH = (PLACE, ORIGIN)
_MEASURED_ON = "threads.measured_on."


def is_refusal(what: str) -> bool:
    """Whether a run that misses this has not had its settings in force, or not to its end."""
    return what in (REFUSED_PLAN, ENDED_PLAN) or what.startswith((REFUSED, KEPT_WORKERS))


def is_of_threads(what: str) -> bool:
    """Whether a process that misses this has not had some of its thread counts in force, or not to its end."""
    return what.startswith((REFUSED_PLAN, ENDED_PLAN))


def by_loader(settings: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """The settings of loaders, by loader: from `loader.<name>.<key>`."""
    found: dict[str, dict[str, Any]] = {}
    for setting, value in settings.items():
        if setting.startswith(_LOADER):
            name, _, key = setting[len(_LOADER) :].rpartition(".")
            found.setdefault(name, {})[key] = value
    return found


def of_ddp(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of DistributedDataParallel, by the name of its argument."""
    return {name.removeprefix(_DDP): value for name, value in settings.items() if name.startswith(_DDP)}


def never_taken(settings: Mapping[str, Any], taken: set[str]) -> dict[str, str]:
    """What is missing of the settings of loaders and wrapped models when only these were taken, and why."""
    without = of_ddp(settings) and WRAPPED_MODELS not in taken
    missing = {REFUSED + WRAPPED_MODELS: "the program wrapped no model with it"} if without else {}
    left = {name: values for name, values in by_loader(settings).items() if name not in taken}
    return missing | {
        REFUSED + name: f"the program made none at {values[PLACE]} by the calls that they were found for"
        if PLACE in values
        else "the program made no such loader"
        for name, values in left.items()
    }


def mismatch(settings: Mapping[str, Any], here: Mapping[str, str]) -> str | None:
    """Why a plan that was measured elsewhere is not applied here; None where it fits or does not tell."""
    for name, value in here.items():
        measured = settings.get(_MEASURED_ON + name)
        if measured is not None and measured != value:
            return (
                f"it was measured with {name} {measured!r} and this is {value!r}; measure again: tracekit study threads"
            )
    return None


def apply(torch: ModuleType, settings: dict[str, Any]) -> None:
    """Set what the settings name. A program that sets the same itself, later, has the last word."""
    if "threads.intra_op" in settings:
        torch.set_num_threads(settings["threads.intra_op"])
    if "threads.inter_op" in settings:
        torch.set_num_interop_threads(settings["threads.inter_op"])
