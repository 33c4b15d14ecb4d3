"""Settings of DataLoaders: put in the place of what the program gives, as it makes each loader."""

from collections.abc import Callable, Mapping
from inspect import BoundArguments, Signature, signature
from types import ModuleType
from typing import Any

from tracekit.settings.inside import KEPT_WORKERS, REFUSED_LOADER, by_loader

from .agent import Agent
from .patching import Patches

_PLACE = "place"
# What only workers have: torch refuses it for a loader without.
_OF_WORKERS = {"prefetch_factor": None, "persistent_workers": False, "timeout": 0, "multiprocessing_context": None}


class LoaderSettings:
    """Names every loader as it is made, and gives it the settings of that name."""

    def __init__(self, agent: Agent, patches: Patches) -> None:
        self._agent, self._patches = agent, patches
        self._settings = by_loader(agent.session["settings"])
        self._met: set[str] = set()
        agent.facts_now.append(agent.loaders.facts)

    def hook_loaders(self, module: ModuleType) -> None:
        self._patches.replace(module.DataLoader, "__init__", self._made_to_order)

    def _made_to_order(self, original: Callable[..., Any]) -> Callable[..., Any]:
        known = signature(original)

        def __init__(loader: Any, *args: Any, **kwargs: Any) -> None:
            name = ""
            try:
                name = self._agent.loaders.make()
                wanted = self._settings.get(name)
                given = _bound(known, loader, *args, **kwargs) if wanted else None
                if wanted and given and self._is_meant(name, wanted):
                    self._change(name, given, wanted)
                    _, *args = given.args  # type: ignore[assignment]
                    kwargs = given.kwargs
                if wanted and name not in self._met:  # a killed program shall have said that it made it
                    self._met.add(name)
                    self._agent.write_status()
            except Exception as error:
                self._agent.fail("conditions", error)
            original(loader, *args, **kwargs)
            if name:
                self._agent.loaders.keep(loader, name)

        return __init__

    def _is_meant(self, name: str, wanted: Mapping[str, Any]) -> bool:
        """Whether the loader is made where the one was that the settings were found for, if they say where."""
        place, here = wanted.get(_PLACE), self._agent.loaders.facts_of(name).get(_PLACE)
        if place in (None, here):
            return True
        self._agent.note_missing(
            REFUSED_LOADER + name, f"they are for the loader made at {place}, this one is at {here}"
        )
        return False

    def _change(self, name: str, given: BoundArguments, wanted: Mapping[str, Any]) -> None:
        given.apply_defaults()
        arguments = given.arguments
        values = {key: value for key, value in wanted.items() if key != _PLACE}
        if "num_workers" in values and _is_iterable(arguments["dataset"]):
            self._agent.note_missing(
                KEPT_WORKERS + name,
                "it reads an iterable data set, which other workers would share out in another way",
            )
            del values["num_workers"]
        arguments.update(values)
        if not arguments["num_workers"]:
            arguments.update(_OF_WORKERS)


def _bound(known: Signature, *args: Any, **kwargs: Any) -> BoundArguments | None:
    """The arguments by name; None for those that torch does not take either, which it says itself."""
    try:
        return known.bind(*args, **kwargs)
    except TypeError:
        return None


def _is_iterable(dataset: object) -> bool:
    from torch.utils.data import IterableDataset

    return isinstance(dataset, IterableDataset)
