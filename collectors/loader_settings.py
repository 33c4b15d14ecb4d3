"""Settings of DataLoaders: put in the place of what the program gives, as it makes each loader."""

from collections.abc import Callable
from inspect import BoundArguments, signature
from multiprocessing import current_process
from types import ModuleType
from typing import Any

from tracekit.settings.inside import KEPT_WORKERS, ORIGIN, REFUSED, WHICH, by_loader

from .agent import Agent
from .patching import Patches, bound, called_like

_SET_LATER = ("num_workers", "prefetch_factor", "in_order", "pin_memory")
# What only workers have: torch refuses it for a loader without.
_OF_WORKERS = {"prefetch_factor": None, "persistent_workers": False, "timeout": 0, "multiprocessing_context": None}


class LoaderSettings:
    """Names every loader as it is made, and gives it the settings that were found for it."""

    def __init__(self, agent: Agent, patches: Patches) -> None:
        self._agent, self._patches = agent, patches
        self._settings = by_loader(agent.session["settings"])
        self._given: dict[str, tuple[str, dict[str, Any]]] = {}  # by loader: the name of its settings, and what it got
        agent.facts_now.append(agent.loaders.facts)

    def hook_loaders(self, module: ModuleType) -> None:
        self._hook(module.DataLoader)

    def hook_stateful_loaders(self, module: ModuleType) -> None:
        self._hook(module.StatefulDataLoader)

    def _hook(self, kind: type) -> None:
        self._patches.replace(kind, "__init__", self._made_to_order)
        for name in ("__iter__", "_get_iterator"):  # a subclass may have one of its own
            self._patches.replace(kind, name, self._counted)

    def _counted(self, original: Callable[..., Any]) -> Callable[..., Any]:
        loaders = self._agent.loaders

        def begin(loader: Any) -> Any:
            loaders.iterated()
            if self._given:
                self._look_whether_it_has_them(loader)
            return original(loader)

        return begin

    def _made_to_order(self, original: Callable[..., Any]) -> Callable[..., Any]:
        known = signature(original)

        def __init__(loader: Any, *args: Any, **kwargs: Any) -> None:
            name = ""
            try:
                name = self._agent.loaders.make()
                meant = self._meant_for(name) if self._settings else None
                given = bound(known, loader, *args, **kwargs) if meant else None
                if meant and given:
                    self._given[name] = meant, self._change(meant, given)
                    _, *args = given.args  # type: ignore[assignment]
                    kwargs = given.kwargs
                    facts = self._agent.loaders.facts_of(name)
                    if "settings" not in facts:  # a killed program shall have said that it took them
                        facts["settings"] = meant
                        self._agent.write_status()
            except Exception as error:
                self._agent.fail("conditions", error)
            original(loader, *args, **kwargs)
            if name:
                self._agent.loaders.keep(loader, name)

        return called_like(original, __init__)

    def _look_whether_it_has_them(self, loader: Any) -> None:
        """A program may set what torch lets it set when the loader is there."""
        try:
            meant, got = self._given.pop(self._agent.loaders.name(loader), ("", {}))
            others = [key for key, value in got.items() if getattr(loader, key, value) != value]
            if others:
                self._agent.note_missing(REFUSED + meant, f"the program sets {', '.join(others)} of it afterwards")
        except Exception as error:
            self._agent.fail("conditions", error)

    def _meant_for(self, name: str) -> str | None:
        """The name under which the settings of a loader stand: those that say that they are for one of its origin, as a
        process may make loaders that others do not, and name it otherwise; or those of its name, if that says nothing
        else."""
        facts = self._agent.loaders.facts_of(name)
        own = self._settings.get(name)
        if own is not None and all(own.get(key) in (None, facts.get(key)) for key in WHICH):
            return name
        by_origin = (each for each, wanted in self._settings.items() if wanted.get(ORIGIN) == facts["origin"])
        return next(by_origin, None)

    def _change(self, name: str, given: BoundArguments) -> dict[str, Any]:
        """Give it the settings that stand under a name; of these, those that a program may set later."""
        given.apply_defaults()
        arguments = given.arguments
        values = {key: value for key, value in self._settings[name].items() if key not in WHICH}
        if values.get("num_workers", arguments["num_workers"]) != arguments["num_workers"] and _is_iterable(
            arguments["dataset"]
        ):
            self._agent.note_missing(
                KEPT_WORKERS + name,
                "it reads an iterable data set, which other workers would share out in another way",
            )
            del values["num_workers"]
        if values.get("num_workers") and current_process().daemon:
            why = "the process is a daemon of multiprocessing, which may have no children"
            self._agent.note_missing(REFUSED + name, why)
            return {}
        arguments.update(values)
        if not arguments["num_workers"]:
            left_out = [key for key in values if arguments[key] != _OF_WORKERS.get(key, arguments[key])]
            if left_out and "num_workers" not in values:
                self._agent.note_missing(REFUSED + name, f"it has no workers, which {', '.join(left_out)} would be of")
            arguments.update(_OF_WORKERS)
        return {key: arguments[key] for key in values if key in _SET_LATER}


def _is_iterable(dataset: object) -> bool:
    from torch.utils.data import IterableDataset

    return isinstance(dataset, IterableDataset)
