"""When a rank takes a pass for over, what it owes to the others, and which caps it tries."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.nn.parallel import distributed

from tracekit.collectors import bucket_exploration as explored
from tracekit.collectors.bucket_exploration import BucketExploration
from tracekit.collectors.ddp_configuration import configuration_of
from tracekit.collectors.patching import Patches
from tracekit.collectors.workers_to_fork import NO_WORKER
from tracekit.settings.exploration import bucket_exploration

MIB = 1 << 20


class Reducer:
    """One that has had no gradients, as torch makes them."""

    def __init__(self) -> None:
        self.marked, self.is_finished, self.rebuilt = [0, 0], True, 0

    def get_backward_stats(self) -> list[int]:
        return [*self.marked]

    def _rebuild_buckets(self) -> bool:
        if not self.is_finished:
            raise RuntimeError("expected to have finished reduction")
        self.rebuilt += 1
        return True


class Model:
    """A wrapped model of these gradients, MiB, each sparse or not, under torch's own cap."""

    def __init__(self, *gradients: float, sparse: tuple[int, ...] = (), **config: Any) -> None:
        self.module = torch.nn.ParameterList([torch.empty(round(each * MIB / 4)) for each in gradients])
        self._sparse = [at in sparse for at in range(len(gradients))]
        self._bucket_config = distributed._BucketCapacityConfig.create(
            **{"bucket_cap_mb": None, "bucket_cap_mb_list": None, "use_python_reducer": False, **config}
        )
        self.bucket_bytes_cap = self._bucket_config.bucket_bytes_cap
        self.bucket_bytes_cap_default = not config
        self.bucket_bytes_cap_list = list(self._bucket_config.per_bucket_bytes_caps)
        self.require_backward_grad_sync, self.find_unused_parameters, self.static_graph = True, False, False
        self.reducer = Reducer()

    def _build_params_for_reducer(self) -> tuple[list[Any], list[bool]]:
        return list(self.module), self._sparse

    def _get_ddp_logging_data(self) -> dict[str, object]:
        return {}


def explorer() -> Any:
    """In the rank that chooses what is tried, with all others always of its mind."""
    agent: Any = SimpleNamespace(
        session={"explore": bucket_exploration()}, missing={}, worker=NO_WORKER, governor=SimpleNamespace(steps=0),
        spool=SimpleNamespace(intern=len, write=lambda *record: None),
    )  # fmt: skip
    agent.note_missing = agent.missing.__setitem__
    found: Any = BucketExploration(agent, Patches())
    found._module = distributed
    return found


@pytest.fixture
def given(monkeypatch: pytest.MonkeyPatch) -> tuple[Any, Model]:
    """A rank at the end of a block, the next to come."""
    monkeypatch.setattr(explored, "compiles", lambda: False)  # another test may have
    model, found = Model(), explorer()
    found._model, found._count = lambda: model, lambda: found.collectives
    found._conditions, found._queue = [("own", 0), ("other", 1)], [1, 0]
    found._agreement = SimpleNamespace(offer=lambda *what: None, is_reached=lambda: True)
    found._block, found._left, found.collectives, found._parameters = 0, 1, 0, []

    def give(model: Model, config: object) -> None:
        model.reducer = Reducer()

    monkeypatch.setattr("tracekit.collectors.bucket_exploration._give", give)
    return found, model


def run_engine(found: Any, model: Model, with_gradients: bool) -> None:
    found.enter()
    found.collectives += 1
    if with_gradients:
        model.reducer.marked[0] += 1
    found.leave(failed=False)


def test_a_run_of_the_engine_without_gradients_of_the_model_is_not_its_pass(given: tuple[Any, Model]) -> None:
    """GIVEN a run that communicates, as the backward pass of an all-gather, before that of the model THEN the buckets
    are others behind the latter."""
    found, model = given
    found._begin_pass(model)
    before = model.reducer
    run_engine(found, model, with_gradients=False)
    assert model.reducer is before and found._left == 1
    run_engine(found, model, with_gradients=True)
    assert model.reducer is not before and found._block == 1


def test_a_pass_whose_gradients_are_not_all_reduced_is_not_over(given: tuple[Any, Model]) -> None:
    found, model = given
    found._begin_pass(model)
    model.reducer.is_finished = False
    run_engine(found, model, with_gradients=True)
    assert found._left == 1


@pytest.mark.parametrize("is_called", [True, False])  # an agent that switches itself off has taken its hooks out
def test_who_stops_behind_a_change_still_forms_its_buckets(is_called: bool, given: tuple[Any, Model]) -> None:
    """GIVEN a rank that stops alone before the first pass with a new reducer is over THEN it has it form its buckets at
    the end of that pass, as the others do, and does nothing any more."""
    found, model = given
    found._begin_pass(model)
    run_engine(found, model, with_gradients=True)
    found._stop("of its own")
    for _ in range(3):
        if is_called:
            found._begin_pass(model)
        run_engine(found, model, with_gradients=False)
        run_engine(found, model, with_gradients=True)
        assert model.reducer.rebuilt == 1
    assert found._block == 1 and "of its own" in found._agent.missing["an exploration of gradient buckets"]


def test_sparse_gradients_have_buckets_of_their_own() -> None:
    """GIVEN a sparse gradient that comes last THEN no cap puts it together with another one."""
    for sparse, counts in (((), {"25": 2, "0.25": 3, "4": 1}), ((0,), {"25": 3, "4": 2})):
        _, found = explorer()._that_differ(Model(0.5, 0.5, 3, sparse=sparse))
        assert found == {f"ddp.bucket_cap_mb={cap}": count for cap, count in counts.items()}


@pytest.mark.parametrize(("config", "counts"), [
    ({}, {"25": 2, "0.25": 4, "16": 2, "50": 1}),  # its first bucket is smaller, and another 25 has no name beside it
    ({"bucket_cap_mb": 25}, {"25": 1, "0.25": 4, "16": 2}),
    ({"bucket_cap_mb_list": [1, 25]}, {"1,25": 2, "0.25": 4, "16": 2, "25": 1}),
])  # fmt: skip
def test_configurations_are_compared_and_not_their_largest_caps(config: dict[str, Any], counts: dict[str, int]) -> None:
    model = Model(8, 8, 8, 8, **config)
    conditions, found = explorer()._that_differ(model)
    assert found == {f"ddp.bucket_cap_mb={cap}": count for cap, count in counts.items()}
    assert [name for name, _ in conditions] == list(found)
    told = configuration_of(model)
    assert (told["bucket_cap_mb"], told["bucket_caps_mb"]) == (25.0, config.get("bucket_cap_mb_list", []))
    assert told["is_default_cap"] == (not config)


def test_who_is_no_rank_has_nothing_to_try(monkeypatch: pytest.MonkeyPatch) -> None:
    """GIVEN processes with steps that wrap no model THEN those tell that are ranks, and do not load for one."""
    for ranks, worker, is_told in (("1", NO_WORKER, False), ("2", 0, False), ("2", NO_WORKER, True)):
        monkeypatch.setenv("WORLD_SIZE", ranks)
        found = explorer()
        found._agent.worker, found._agent.governor.steps = worker, 100
        found._end()
        assert bool(found._agent.missing) == is_told
