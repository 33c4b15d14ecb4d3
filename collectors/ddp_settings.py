"""Settings of DistributedDataParallel: put in the place of what the program gives, as it wraps each model."""

from collections.abc import Callable
from inspect import signature
from types import ModuleType
from typing import Any

from tracekit.settings.inside import WRAPPED_MODELS, of_ddp

from .agent import Agent
from .patching import Patches, bound

# A list, one for each bucket and the last for all others, comes before the cap.
_BUCKET_CAP, _BUCKET_CAPS, _FIRST_BUCKET = "bucket_cap_mb", "bucket_cap_mb_list", "first_bucket_mb"
_TORCHS_CAP_MB = 25.0


class DDPSettings:
    """Gives every model that is wrapped the settings of the run."""

    def __init__(self, agent: Agent, patches: Patches) -> None:
        self._agent, self._patches = agent, patches
        self._settings = of_ddp(agent.session["settings"])
        self._first_mb: float | None = self._settings.pop(_FIRST_BUCKET, None)
        if _BUCKET_CAP in self._settings or self._first_mb is not None:
            self._settings[_BUCKET_CAPS] = None
        self._was_told = False

    def hook(self, module: ModuleType) -> None:
        """`module` is torch.nn.parallel.distributed."""
        if self._settings:
            self._patches.replace(module.DistributedDataParallel, "__init__", self._made_to_order)

    def _made_to_order(self, original: Callable[..., Any]) -> Callable[..., Any]:
        known = signature(original)

        def __init__(model: Any, *args: Any, **kwargs: Any) -> None:
            try:
                given = bound(known, model, *args, **kwargs)
                if given is not None:
                    given.arguments.update(self._settings)
                    if self._first_mb is not None:
                        cap = given.arguments.get(_BUCKET_CAP) or _TORCHS_CAP_MB
                        given.arguments[_BUCKET_CAPS] = [self._first_mb, cap]
                    _, *args = given.args  # type: ignore[assignment]
                    kwargs = given.kwargs
                    self._tell()
            except Exception as error:
                self._agent.fail("conditions", error)
            original(model, *args, **kwargs)

        return __init__

    def _tell(self) -> None:
        if not self._was_told:
            self._was_told = True
            self._agent.describe(**{WRAPPED_MODELS: True})
