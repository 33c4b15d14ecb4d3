"""Settings of DataLoaders: put in the place of what the program gives, as it makes each loader."""

from collections.abc import Callable, Mapping
from inspect import BoundArguments, signature
from types import ModuleType
from typing import Any

from .agent import Agent
from .patching import Patches

_PREFIX = "loader."
# What only workers have: torch refuses it for a loader without.
_OF_WORKERS = {"prefetch_factor": None, "persistent_workers": False, "timeout": 0, "multiprocessing_context": None}


class LoaderSettings:
    """Names every loader as it is made, and gives it the settings of that name."""

    def __init__(self, agent: Agent, patches: Patches) -> None:
        self._agent, self._patches = agent, patches
        self._settings = by_loader(agent.session["settings"])
        agent.facts_now.append(agent.loaders.facts)
        agent.before_exit.append(self._say_what_was_not_met)

    def hook_loaders(self, module: ModuleType) -> None:
        self._patches.replace(module.DataLoader, "__init__", self._made_to_order)

    def _made_to_order(self, original: Callable[..., Any]) -> Callable[..., Any]:
        known = signature(original)

        def __init__(loader: Any, *args: Any, **kwargs: Any) -> None:
            try:
                name = self._agent.loaders.make()
                wanted = self._settings.get(name)
                if wanted is not None:
                    given = known.bind(loader, *args, **kwargs)
                    self._change(name, given, wanted)
                    _, *args = given.args  # type: ignore[assignment]
                    kwargs = given.kwargs
            except TypeError:
                name = ""  # arguments that torch does not take either: it says so
            except Exception as error:
                name = ""
                self._agent.fail("conditions", error)
            original(loader, *args, **kwargs)
            if name:
                self._agent.loaders.keep(loader, name)

        return __init__

    def _change(self, name: str, given: BoundArguments, wanted: Mapping[str, Any]) -> None:
        given.apply_defaults()
        arguments = given.arguments
        if "num_workers" in wanted and _is_iterable(arguments["dataset"]):
            self._agent.note_missing(
                f"num_workers of {name}",
                "it reads an iterable data set, which other workers would share out in another way",
            )
            wanted = {key: value for key, value in wanted.items() if key != "num_workers"}
        arguments.update(wanted)
        if not arguments["num_workers"]:
            arguments.update(_OF_WORKERS)

    def _say_what_was_not_met(self) -> None:
        if not self._agent.governor.steps:
            return  # a launcher, or a worker: loaders are not its business
        for name in self._settings.keys() - self._agent.loaders.names():
            self._agent.note_missing(f"settings of {name}", "the program made no such loader")


def by_loader(settings: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """The settings of loaders, by loader: from `loader.<name>.<key>`."""
    found: dict[str, dict[str, Any]] = {}
    for setting, value in settings.items():
        if setting.startswith(_PREFIX):
            name, _, key = setting[len(_PREFIX) :].rpartition(".")
            found.setdefault(name, {})[key] = value
    return found


def _is_iterable(dataset: object) -> bool:
    from torch.utils.data import IterableDataset

    return isinstance(dataset, IterableDataset)
