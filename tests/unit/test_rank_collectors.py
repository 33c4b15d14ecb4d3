"""What is noted in a rank: changes of phase, and communication until it is found done."""

from collections import Counter
from functools import partial
from threading import Thread
from types import SimpleNamespace
from typing import Any

import pytest

from tracekit.collectors import in_flight, phase_clock
from tracekit.collectors.buckets import Buckets
from tracekit.collectors.collectives import Collectives
from tracekit.collectors.in_flight import NOT_SEEN, InFlight, Sent
from tracekit.collectors.phase_clock import (
    BACKWARD,
    COMMUNICATION,
    FORWARD,
    LOADING,
    NOT_KNOWN,
    OPTIMIZER,
    OTHER,
    PhaseClock,
)
from tracekit.record.wire import ASYNC_CALL, Kind

MS = 1_000_000


class Agent:
    """An agent that keeps what is noted, with a clock of its own."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, step_ns: int = 20 * MS) -> None:
        self.now = 0
        self.noted: list[tuple[int, ...]] = []
        self.words: list[str] = []
        self.spool = SimpleNamespace(note=self.noted.append, intern=self._intern)
        self.calls_go_past: object = None
        self.governor = SimpleNamespace(steps=0, spent_ns=0, typical_step_ns=step_ns, budget=0.01)
        for module in (in_flight, phase_clock):
            monkeypatch.setattr(module, "clock", self._clock)

    def _clock(self) -> int:
        self.now += 1_000  # a look takes a microsecond
        return self.now

    def _intern(self, name: str) -> int:
        if name not in self.words:
            self.words.append(name)
        return self.words.index(name)

    def phases(self) -> list[str]:
        return [self.words[record[0]] for record in self.noted if record[-1] == Kind.CHANGE]


@pytest.fixture
def agent(monkeypatch: pytest.MonkeyPatch) -> Agent:
    return Agent(monkeypatch)


def test_a_phase_that_is_left_gives_way_to_the_one_around_it(agent: Any) -> None:
    """GIVEN a closure that the optimizer calls THEN its forward and backward passes are told apart inside it."""
    clock = PhaseClock(agent)
    clock.enter(OPTIMIZER)
    clock.enter(FORWARD)
    clock.leave(FORWARD)
    clock.enter(BACKWARD)
    clock.enter(COMMUNICATION)  # never left: the backward pass ends with it
    clock.leave(BACKWARD)
    clock.leave(OPTIMIZER)
    clock.leave(OPTIMIZER)  # was not entered
    assert agent.phases() == [OPTIMIZER, FORWARD, OPTIMIZER, BACKWARD, COMMUNICATION, OPTIMIZER, OTHER]
    cpu = [record[4] for record in agent.noted]
    assert cpu == sorted(cpu)
    clock.stop()


def test_an_outermost_call_is_the_forward_pass_but_not_within_a_backward_pass(agent: Any) -> None:
    clock = PhaseClock(agent)
    clock.enter_call()
    clock.leave_call()
    clock.enter(BACKWARD)
    clock.enter_call()  # done again, as what is checkpointed
    clock.leave_call()
    clock.leave(BACKWARD)
    clock.enter(LOADING)
    clock.enter_call()  # a transform of the data set's
    clock.leave_call()
    clock.leave(LOADING)
    clock.by_calls = False  # a model tells its forward pass itself
    clock.enter_call()
    clock.leave_call()
    assert agent.phases() == [FORWARD, OTHER, BACKWARD, OTHER, LOADING, OTHER]
    clock.stop()


def test_who_has_no_more_inputs_sends_its_buckets_in_no_backward_pass(agent: Any) -> None:
    clock = PhaseClock(agent)
    clock.enter_wait()
    clock.enter(FORWARD)
    clock.leave(FORWARD)
    clock.enter(BACKWARD)
    clock.enter_wait()
    clock.leave(BACKWARD)
    assert agent.phases() == [FORWARD, OTHER, BACKWARD, COMMUNICATION, OTHER]
    clock.stop()


def test_the_forward_pass_ends_with_the_call_in_which_a_model_began_to_tell_it(agent: Any) -> None:
    clock = PhaseClock(agent)
    clock.enter_call()
    clock.by_calls = False
    clock.enter(FORWARD)
    clock.leave(FORWARD)
    clock.leave_call()
    assert agent.phases()[-1] == OTHER and not clock._open
    clock.stop()


def test_the_loop_is_where_the_first_optimizer_step_is(agent: Any) -> None:
    """GIVEN a program that becomes a rank on one thread and learns on another THEN the phases are those of that one."""
    clock = PhaseClock(agent)
    clock.enter(COMMUNICATION)
    clock.leave(COMMUNICATION)

    def learn() -> None:
        for phase in (FORWARD, OPTIMIZER, FORWARD):
            clock.enter(phase)
            clock.leave(phase)

    thread = Thread(target=learn)
    thread.start()
    thread.join()
    clock.enter(FORWARD)  # which is not the loop's any more
    clock.leave(FORWARD)
    clock.enter(OPTIMIZER)
    assert agent.phases() == [COMMUNICATION, OTHER, OPTIMIZER, OTHER, FORWARD, OTHER]
    clock.stop()


def test_an_optimizer_within_a_backward_pass_does_not_take_the_loop_to_its_thread(agent: Any) -> None:
    """GIVEN optimizers that step as gradients come, on a thread of the engine's THEN the loop stays where it was."""
    clock = PhaseClock(agent)
    clock.enter(BACKWARD)
    thread = Thread(target=lambda: clock.enter(OPTIMIZER))
    thread.start()
    thread.join()
    clock.leave(BACKWARD)
    assert agent.phases() == [BACKWARD, OTHER]
    clock.stop()


def test_of_short_steps_only_as_many_are_followed_as_the_budget_pays_for(monkeypatch: pytest.MonkeyPatch) -> None:
    agent: Any = Agent(monkeypatch, step_ns=200_000)
    clock = PhaseClock(agent)
    for step in range(4000):
        agent.governor.steps = step
        clock.step_ended()
        for phase in (FORWARD, BACKWARD, OPTIMIZER):
            clock.enter(phase)
            clock.leave(phase)
    followed = agent.phases().count(FORWARD)
    assert 256 <= followed < 1200
    # What is left out is marked once, and nothing else of it is there.
    assert agent.phases().count(NOT_KNOWN) <= followed
    assert agent.phases().count(FORWARD) == agent.phases().count(OPTIMIZER)
    spent = agent.governor.spent_ns / (4000 * agent.governor.typical_step_ns)
    assert spent < 0.05
    clock.stop()


@pytest.mark.parametrize("by_calls", [True, False])
def test_steps_are_not_followed_in_which_nothing_tells_the_forward_pass(by_calls: bool, agent: Any) -> None:
    """GIVEN calls that go past us on a rank, as they cost it too much THEN its forward pass is no other phase, and
    where those calls alone tell it, its phases are not known; a model that is wrapped tells it, when it is called."""
    clock = PhaseClock(agent)
    agent.calls_go_past, clock.by_calls = object(), by_calls
    agent.governor.steps = 1
    clock.enter(BACKWARD)
    clock.leave(BACKWARD)
    clock.step_ended()
    assert clock.follows != by_calls and (agent.phases()[-1] == NOT_KNOWN) == by_calls
    buckets = Buckets.__new__(Buckets)
    buckets._agent, buckets._passes = SimpleNamespace(phases=clock), []  # type: ignore[assignment]
    buckets._in_forward(lambda: None)()
    agent.governor.steps = 2
    clock.step_ended()
    assert clock.follows
    clock.stop()


def test_ranks_follow_the_same_steps_many_on_end(monkeypatch: pytest.MonkeyPatch) -> None:
    def followed(step_ns: int) -> set[int]:
        agent: Any = Agent(monkeypatch, step_ns)
        clock, seen = PhaseClock(agent), set()
        for step in range(2000):
            agent.governor.steps = step
            clock.step_ended()
            before = len(agent.noted)
            clock.enter(FORWARD)
            clock.leave(FORWARD)
            if FORWARD in [agent.words[record[0]] for record in agent.noted[before:]]:
                seen.add(step)
            assert clock.follows == (step in seen)
        clock.stop()
        return seen

    slow, fast = followed(200_000), followed(100_000)
    assert set(range(256)) <= fast < slow
    for seen in (slow, fast):
        blocks = Counter(step // 16 for step in seen)
        assert 20 < len(blocks) < 100 and set(blocks.values()) == {16}


@pytest.mark.parametrize("drift", [0.0, 0.4])
def test_what_following_costs_beyond_our_account_is_seen_in_the_steps(
    drift: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """GIVEN steps of 10 ms that get 400 us longer where they are followed, of which we account for a few THEN
    no more are followed than the budget pays for; also in a program that gets slower by the hour, with a pause of a
    second now and then."""
    agent: Any = Agent(monkeypatch, step_ns=10 * MS)
    clock = PhaseClock(agent)
    followed, due = [], 0
    for step in range(20_000):
        agent.governor.steps = step
        if step >= due:
            due = clock.step_ended()
        for phase in (FORWARD, BACKWARD, OPTIMIZER):
            clock.enter(phase)
            clock.leave(phase)
        followed.append(clock.follows)
        pause = 1000 * MS if step % 997 == 0 else 0
        agent.now += int(10 * MS * (1 + drift * step / 20_000)) + 400_000 * clock.follows + pause
    share = sum(followed[4000:]) / 16_000
    assert share == pytest.approx(10 * MS * 0.01 * phase_clock._SHARE / 400_000, rel=0.5)
    clock.stop()


def test_whether_a_step_is_followed_is_known_before_it_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    """GIVEN who asks at the end of a step, whenever that is said to be due THEN all that is told then holds for the
    steps up to the next time; and from a new start on some are followed."""
    agent: Any = Agent(monkeypatch, step_ns=200_000)
    clock = PhaseClock(agent)
    told: list[bool] = []
    clock.on_turn.append(told.append)
    due, turns = 0, 0
    for step in range(2000):
        agent.governor.steps = step
        if step >= due:
            before, due = len(told), clock.step_ended()
            assert step < due <= step + 16
            turns += len(told) - before
            assert not told or told[-1] == clock.follows
        if clock.follows:
            before = len(told)
            clock.enter(FORWARD)
            clock.leave(FORWARD)
            assert len(told) == before
    assert turns == len(told) > 10 and told[:2] == [False, True]
    clock.start_anew()
    assert clock.follows and told[-1]
    for step in range(2000, 2032):
        agent.governor.steps = step
        clock.step_ended()
        assert clock.follows
    clock.stop()


def test_what_a_step_that_is_not_followed_is_left_in_is_not_known(monkeypatch: pytest.MonkeyPatch) -> None:
    """GIVEN steps that end in the optimizer, and one whose forward pass was never left THEN what follows the gap is
    told of its phases from its first one on."""
    agent: Any = Agent(monkeypatch, step_ns=1)
    clock = PhaseClock(agent)
    for step in range(258):
        clock.enter(FORWARD)
        clock.enter(OPTIMIZER)
        agent.governor.steps = step + 1
        clock.step_ended()
        clock.leave(OPTIMIZER)
    assert agent.phases()[-3:] == [FORWARD, OPTIMIZER, NOT_KNOWN]
    agent.governor.typical_step_ns = 1 << 40
    agent.governor.steps = 1000
    clock.step_ended()
    clock.enter(FORWARD)
    clock.leave(FORWARD)
    assert agent.phases()[-3:] == [NOT_KNOWN, FORWARD, OTHER]
    clock.stop()


def test_no_turn_is_taken_within_a_backward_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    """GIVEN steps that are too short to be followed, and end as gradients come THEN the turn is put off until one ends
    outside of the pass: within it torch may hold what who is told of the turn waits for."""
    agent: Any = Agent(monkeypatch, step_ns=1)
    clock = PhaseClock(agent)
    for step in range(300):
        agent.governor.steps = step
        clock.step_ended()
        if step == 200:
            clock.enter(BACKWARD)
        clock.enter(OPTIMIZER)
        clock.leave(OPTIMIZER)
    within = clock.follows
    clock.leave(BACKWARD)
    agent.governor.steps += 16
    clock.step_ended()
    assert [within, clock.follows] == [True, False]
    clock.stop()


def test_communication_is_noted_when_it_is_found_done(agent: Any) -> None:
    works = InFlight(agent)
    done = {"first": False, "second": False}
    for number, name in enumerate(done):
        works.add(
            Sent(number, agent.now, agent.now + 500, 0, number, 4096, ASYNC_CALL), partial(done.__getitem__, name)
        )
    works.look()
    assert agent.noted == []
    agent.now += 5 * MS
    done["second"] = True
    works.look()
    (record,) = agent.noted
    op, _, ready, end, _, sequence, size, held, unsure, how, kind = record
    assert (op, sequence, size, held, how, kind) == (1, 1, 4096, 500, ASYNC_CALL, Kind.COLLECTIVE)
    assert ready < end and 5 * MS <= unsure <= end - ready
    works.give_up()
    assert agent.noted[1][8] == NOT_SEEN and agent.noted[1][3] == agent.noted[1][2] + 500


def test_a_program_that_never_waits_fills_no_memory(agent: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(in_flight, "_MOST", 3)
    works = InFlight(agent)
    for number in range(5):
        works.add(Sent(0, 0, 0, 0, number, 1, ASYNC_CALL), lambda: False)
    assert [record[5] for record in agent.noted] == [3, 4]
    works.forget()
    works.give_up()
    assert len(agent.noted) == 2


def test_what_another_thread_is_in_is_told_behind_all_that_this_one_does(agent: Any) -> None:
    """GIVEN a thread that never comes out of a collective THEN the rank is in that one where this thread is in none,
    and in none when that has come out of it."""
    told: list[object] = []
    collectives: Any = Collectives()
    collectives._in_flight = InFlight(agent)
    collectives.entered = SimpleNamespace(
        goes_on=True, begin=lambda *what: told.append(what), end=lambda: told.append(0)
    )
    collectives._open[1] = (7, 8, 9)
    collectives.look()
    collectives._open.clear()
    collectives.look()
    assert told == [(7, 8, 9), 0]
