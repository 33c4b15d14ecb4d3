"""Thread counts that ranks try: all of them the same, together."""

from types import SimpleNamespace
from typing import Any

import pytest
from torch.distributed import HashStore

from tracekit.collectors import exploration as explorer
from tracekit.collectors.agreement import Agreement
from tracekit.collectors.exploration import Exploration
from tracekit.settings.exploration import exploration


def test_supervisors_of_a_job_tell_the_same_order() -> None:
    of_job, again, other = (exploration([1, 2, 4], job) for job in ("slurm 1.0", "slurm 1.0", "slurm 2.0"))
    assert of_job == again and of_job["seed"] != other["seed"]
    assert exploration([1, 2])["seed"] != exploration([1, 2])["seed"]


def rank(explore: dict[str, Any], own: int) -> Any:
    agent: Any = SimpleNamespace(
        session={"explore": explore}, missing={}, governor=SimpleNamespace(steps=100), step_source_rank=1, collectors={}
    )
    agent.note_missing = agent.missing.__setitem__
    return Exploration(agent, SimpleNamespace(common=own, observe=None, withdraw=lambda: None))  # type: ignore[arg-type]


@pytest.mark.parametrize(("job", "counts", "own", "steps", "agree"), [
    ("job", [1, 2], 2, 2, True),
    ("another", [1, 2], 2, 2, False),  # a supervisor that draws for itself
    ("job", [1, 2, 4], 2, 2, False),  # more CPUs
    ("job", [1, 2], 3, 2, False),  # a count of its own, which is tried too
    ("job", [1, 2], 2, 0, False),  # it has not come to a step yet
])  # fmt: skip
def test_ranks_that_would_not_change_together_do_not_explore(
    job: str, counts: list[int], own: int, steps: int, agree: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = HashStore()
    monkeypatch.setattr(explorer, "of_all_ranks", lambda what: Agreement(store, what, 2))
    first, second = rank(exploration([1, 2], "job"), 2), rank(exploration(counts, job), own)
    begun: list[Any] = []
    monkeypatch.setattr(Exploration, "_probe", lambda self, torch: begun.append(self))
    monkeypatch.setattr(Exploration, "_write", lambda *what: None)
    monkeypatch.setattr(Exploration, "_next", lambda self: None)
    for each, count in ((first, 4), (second, steps), (first, 6)):
        for _ in range(count):
            each._step_ended()
    assert bool(begun) == agree and first._is_off != agree
    assert any("would not change together" in what for what in first._agent.missing) != agree


def test_where_one_rank_stops_the_others_do_in_their_next_round(monkeypatch: pytest.MonkeyPatch) -> None:
    """GIVEN ranks that explore together, or would have WHEN one stops THEN no other goes on alone."""
    store = HashStore()
    monkeypatch.setattr(explorer, "compiles", lambda: False)  # another test may have
    monkeypatch.setattr(explorer, "of_all_ranks", lambda what: Agreement(store, what, 2))
    first, second = (rank(exploration([1, 2], "job"), 2) for _ in range(2))
    for name, act in (("_probe", lambda self, torch: None), ("_write", lambda *what: None)):
        monkeypatch.setattr(Exploration, name, act)
    goes_on = Exploration._next
    monkeypatch.setattr(Exploration, "_next", lambda self: None)
    for each in (first, second, first):
        for _ in range(6):
            each._step_ended()
    assert not first._is_off
    second._stop("it compiles", "planted")
    goes_on(first)
    assert first._is_off and any("another rank has stopped" in what for what in first._agent.missing)
