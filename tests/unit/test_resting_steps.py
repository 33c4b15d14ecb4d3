"""Steps of a rank of which only the end is noted: torch has its own engine back."""

from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from tracekit.collectors.resting import Resting
from tracekit.collectors.steps import BACKWARD, OPTIMIZER, Steps


def engine(*args: object, **kwargs: object) -> str:
    return "torch's"


@pytest.fixture
def module() -> Any:
    found: Any = ModuleType("autograd")
    found._engine_run_backward = engine
    return found


def hooked(module: Any, source: int) -> tuple[Steps, Any]:
    """The collector of steps, which this source tells apart, and the agent."""
    steps = Steps()
    spool = SimpleNamespace(note=lambda record: None, intern=lambda name: 0)
    resting = SimpleNamespace(acts=[])
    agent: Any = SimpleNamespace(resting=resting, step_source_rank=source, spool=spool, after_fork=[])
    steps._agent = agent
    steps._hook_engine(module)
    assert module._engine_run_backward is not engine
    return steps, agent


def test_torch_has_its_engine_back_while_steps_rest(module: Any) -> None:
    _, agent = hooked(module, OPTIMIZER)
    ours = module._engine_run_backward
    for act in agent.resting.acts:
        act(True)
    assert module._engine_run_backward is engine
    for act in agent.resting.acts:
        act(False)
    assert module._engine_run_backward is ours


def test_passes_that_tell_the_steps_apart_go_on_being_seen(module: Any) -> None:
    _, agent = hooked(module, BACKWARD)
    for act in agent.resting.acts:
        act(True)
    assert module._engine_run_backward is not engine


def test_what_the_program_has_put_there_stays(module: Any) -> None:
    """GIVEN a program that replaces ours, or a collector that is off THEN nothing of ours comes back."""
    steps, agent = hooked(module, OPTIMIZER)
    (rest,) = agent.resting.acts
    rest(True)
    steps.off()
    assert not agent.resting.acts and module._engine_run_backward is engine
    module._engine_run_backward = theirs = lambda: None
    rest(False)
    assert module._engine_run_backward is theirs


@pytest.mark.parametrize(
    ("facts", "is_on"),
    [
        ({}, True),
        ({"follows": True}, False),
        ({"detailed": True}, False),
        ({"safe_point_due": True}, False),
        ({"safe_point_due": True, "calls_go_past": ()}, True),
        ({"on_step": [print]}, False),
        ({"after_backward": [print]}, False),
        ({"around_backward": [print]}, False),
        ({"phases": None}, False),
    ],
)
def test_steps_rest_of_which_nobody_wants_more_than_the_end(facts: dict[str, Any], is_on: bool) -> None:
    """GIVEN what is wanted of the next steps THEN they rest or not; who hangs on it is told of changes alone."""
    told: list[bool] = []
    given: dict[str, Any] = {
        "safe_point_due": False,
        "calls_go_past": None,
        "on_step": [],
        "after_backward": [],
        "around_backward": [],
    }
    given["phases"] = SimpleNamespace(follows=facts.get("follows", False))
    given["governor"] = SimpleNamespace(detailed=facts.get("detailed", False))
    agent: Any = SimpleNamespace(**given | facts)
    resting = Resting(agent)
    resting.acts.append(told.append)
    resting.consider()
    resting.consider()
    assert resting.is_on is is_on and told == [True] * is_on
    resting.end()
    assert not resting.is_on and told == [True, False] * is_on
