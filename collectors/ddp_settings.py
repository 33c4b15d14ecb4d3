"""Settings of DistributedDataParallel: put in the place of what the program gives, as it wraps each model."""

from collections.abc import Callable
from inspect import signature
from types import ModuleType
from typing import Any

from tracekit.settings.inside import WRAPPED_MODELS, of_ddp

from .agent import Agent
from .patching import Patches

# With one of its own a program has decided on the size of every bucket.
_BUCKET_CAP, _BUCKET_CAPS = "bucket_cap_mb", "bucket_cap_mb_list"


class DDPSettings:
    """Gives every model that is wrapped the settings of the run."""

    def __init__(self, agent: Agent, patches: Patches) -> None:
        self._agent, self._patches = agent, patches
        self._settings = of_ddp(agent.session["settings"])
        self._was_told = False

    def hook(self, module: ModuleType) -> None:
        """`module` is torch.nn.parallel.distributed."""
        if self._settings:
            self._patches.replace(module.DistributedDataParallel, "__init__", self._made_to_order)

    def _made_to_order(self, original: Callable[..., Any]) -> Callable[..., Any]:
        known = signature(original)

        def __init__(model: Any, *args: Any, **kwargs: Any) -> None:
            try:
                args, kwargs = self._changed(known, model, args, kwargs)
            except TypeError:
                pass  # what torch does not take either: it says so itself
            except Exception as error:
                self._agent.fail("conditions", error)
            else:
                self._tell()
            original(model, *args, **kwargs)

        return __init__

    def _tell(self) -> None:
        if not self._was_told:
            self._was_told = True
            self._agent.describe(**{WRAPPED_MODELS: True})

    def _changed(
        self, known: Any, model: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        given = known.bind(model, *args, **kwargs)
        settings = {name: value for name, value in self._settings.items() if name in known.parameters}
        if _BUCKET_CAP in settings and _BUCKET_CAPS in known.parameters:
            settings[_BUCKET_CAPS] = None
        given.arguments.update(settings)
        _, *changed = given.args
        return tuple(changed), given.kwargs
