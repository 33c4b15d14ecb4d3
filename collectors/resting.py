"""Steps that rest: those of a rank that are not followed, nor recorded in detail. Of them only the end is noted."""

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .agent import Agent


class Resting:
    """Whether the steps from here on rest; `acts` are told when that changes."""

    def __init__(self, agent: "Agent") -> None:
        self._agent = agent
        self.is_on = False
        self.acts: list[Callable[[bool], None]] = []

    def consider(self) -> None:
        """To be called where a step ends, once it is known whether the next one is followed."""
        phases = self._agent.phases
        self._turn(phases is not None and not phases.follows and not self._is_more_wanted())

    def end(self) -> None:
        """From here on they do not."""
        self._turn(False)

    def _is_more_wanted(self) -> bool:
        """Whether somebody wants to know more of the next steps than when they end. Where module calls go past us, the
        first one of a step does not, and is a safe point too."""
        agent = self._agent
        more = agent.governor.detailed or (agent.safe_point_due and agent.calls_go_past is None)
        return more or bool(agent.around_backward or agent.after_backward or agent.on_step)

    def _turn(self, is_on: bool) -> None:
        if is_on != self.is_on:
            self.is_on = is_on
            for act in self.acts:
                act(is_on)
