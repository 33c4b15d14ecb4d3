"""The condition: settings applied inside the process, and what torch is like there."""

from types import ModuleType

from .agent import Agent


class Conditions:
    """Applies the session's settings when torch has been imported, and describes the torch build.

    Not optional and not a collector that can be left out: it goes with every recorded process.
    """

    def install(self, agent: Agent) -> None:
        self._agent = agent
        agent.when_imported("conditions", "torch", self._apply)

    def off(self) -> None:
        pass

    def _apply(self, torch: ModuleType) -> None:
        from tracekit.settings.inside import apply

        apply(torch, self._agent.session["settings"])
        self._agent.describe(
            torch={
                "version": torch.__version__,
                "cuda": torch.version.cuda,
                "openmp": _openmp(),
                "intra_op": torch.get_num_threads(),
                "inter_op": torch.get_num_interop_threads(),
            }
        )


def _openmp() -> str:
    """The OpenMP runtime that is loaded into this process, by the name of its library."""
    with open("/proc/self/maps", encoding="utf-8", errors="replace") as maps:
        text = maps.read()
    for name in ("libgomp", "libiomp5", "libomp"):
        if f"/{name}" in text:
            return name
    return ""
