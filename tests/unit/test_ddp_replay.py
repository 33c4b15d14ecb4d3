"""Gradient buckets: how they are filled, and what a pass takes with them, where the answer is known anyway."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from tracekit.analysis.gradient_passes import GradientPasses, _comes
from tracekit.models.buckets import MODEL_ERROR, _gradients, bucket_forecasts, filled
from tracekit.models.ddp_replay import MIB, Gradients, Network, buckets_of, replay_pass
from tracekit.run.manifest import Wrapped


def gradients(sizes: list[int], compute: float = 0.016) -> Gradients:
    """Each takes as long to compute."""
    return Gradients(np.array(sizes), np.arange(1, len(sizes) + 1) * compute / len(sizes), compute)


def evenly(count: int) -> NDArray[np.float64]:
    """When the gradients of so many parameters come, in the model's order."""
    return np.arange(count, 0.0, -1.0)


@given(st.lists(st.integers(1, 10 * MIB), min_size=1, max_size=40), st.floats(1.0, 50.0 * MIB), st.booleans())
def test_a_bucket_is_closed_by_the_gradient_that_fills_it(sizes: list[int], cap: float, is_small_first: bool) -> None:
    first = float(MIB) if is_small_first else None
    buckets = buckets_of(sizes, cap, first)
    assert buckets[0] == 0 and set(np.diff(buckets)) <= {0, 1}
    for number in range(int(buckets[-1]) + 1):
        members = np.array(sizes)[buckets == number]
        limit = first if number == 0 and first is not None else cap
        assert members[:-1].sum() < limit
        assert members.sum() >= limit or number == buckets[-1]


def test_torch_fills_buckets_alike() -> None:
    """Torch's own function, which is told the same sizes and caps, in the same order."""
    import torch.distributed as dist
    from torch import empty

    sizes = [300, 80_000, 300, 500_000, 200, 90_000, 600_000, 100, 100]
    tensors = [empty(size) for size in sizes]
    theirs, _ = dist._compute_bucket_assignment_by_size(tensors, [MIB, 2 * MIB], [False] * len(sizes))
    ours = buckets_of([4 * size for size in sizes], 2 * MIB, MIB)
    assert sorted(theirs) == [np.flatnonzero(ours == number).tolist() for number in range(int(ours[-1]) + 1)]


def test_a_model_that_looks_for_unused_parameters_fills_buckets_from_its_first_one() -> None:
    import torch.distributed as dist
    from torch import empty

    sizes = [300, 80_000, 300, 500_000, 200, 90_000, 600_000, 100, 100]  # in the order of the model
    theirs, _ = dist._compute_bucket_assignment_by_size([empty(size) for size in sizes], [MIB, 2 * MIB], [False] * 9)
    model = Wrapped(find_unused_parameters=True, sizes=[4 * size for size in sizes])
    ours = filled(model, 2 * MIB, MIB)[::-1]
    sent = sorted(theirs, reverse=True)  # from the last one
    assert sent == [np.flatnonzero(ours == number).tolist() for number in range(int(ours[0]) + 1)]


def test_layers_tell_whether_gradients_come_in_the_order_of_the_model() -> None:
    """GIVEN an embedding that the model has last and uses first; one within another layer is around what that does."""
    model = Wrapped(names=["a.weight", "a.b.weight", "a.b.bias", "c.weight"], sizes=[8, 16, 8, 8])
    frame = pd.DataFrame({"name": ["module.a", "module.a.b", "module.c"]})
    comes, in_order = _comes(frame.assign(began=[1.0, 1.5, 0.0], last=[1.0, 1.5, 0.0], ended=[4.0, 3.5, 1.0]), model)
    assert in_order is True
    assert comes.tolist() == [4.0, 3.5, 3.5, 1.0]
    assert _comes(frame.assign(began=[0.0, 0.5, 3.0], last=[0.0, 0.5, 3.0], ended=[3.0, 2.5, 4.0]), model)[1] is False
    assert _comes(frame[:2].assign(began=0.0, last=0.0, ended=1.0), model)[1] is None


def test_a_layer_is_through_when_the_next_one_begins() -> None:
    """GIVEN an encoder and a decoder, whose words have no gradient, so that both embeddings are seen to end with the
    whole pass THEN the decoder's is there when the encoder begins; and a block's own with the last within it."""
    names = ["block.scale", "block.embed.weight", "block.rnn.weight", "words.weight", "rnn.weight"]
    model = Wrapped(names=names, sizes=[8] * 5)
    rows = pd.DataFrame({
        "name": ["module.block", "module.block.embed", "module.block.rnn", "module.words", "module.rnn"],
        "began": [31.0, 90.0, 31.0, 30.0, 5.0], "ended": [91.0, 91.0, 90.0, 91.0, 30.0],
    })  # fmt: skip
    assert _comes(rows.assign(last=rows["began"]), model)[0].tolist() == [91.0, 91.0, 90.0, 31.0, 30.0]


def test_what_the_model_has_before_a_parameter_comes_after_it() -> None:
    """GIVEN a shortcut that is seen to end with the first layer, as they have the same input."""
    model = Wrapped(names=["first.weight", "second.weight", "shortcut.weight"], sizes=[8] * 3)
    rows = pd.DataFrame({"name": ["first", "second", "shortcut"], "began": [2.0, 1.0, 0.0], "ended": [3.0, 2.0, 3.0]})
    assert _comes(rows.assign(last=[2.0, 1.0, 1.0]), model)[0].tolist() == [3.0, 2.0, 2.0]


def test_a_layer_that_two_buckets_share_is_there_for_each_when_that_is_full() -> None:
    """GIVEN the two gradients of a layer, which come together for all that is known, in two buckets of the run."""
    sizes, network = [MIB] * 4, Network(1e-3, 5e-9, cpus=2.0)
    own = buckets_of(sizes, 3 * MIB)
    seen = replay_pass(gradients(sizes), own, network)
    run = GradientPasses(
        model=Wrapped(bucket_cap_mb=3.0, parameters=4, bytes=sum(sizes), sizes=sizes),
        passes=100, ranks=1, world=2, cpus=2.0, step=seen.end + 0.01, took=seen.end, computing=0.016, finishing=0.0,
        passes_per_step=1, sizes=np.bincount(own, weights=sizes).astype(np.int64), there=seen.there, back=seen.back,
        unsure=np.zeros(2), cpu_per_byte=0.0, comes=np.array([2.0, 2.0, 1.0, 1.0]), in_order=True, spread=0.0,
    )  # fmt: skip
    there = _gradients(run, np.array(sizes), own).there
    assert there[2:].tolist() == pytest.approx([0.012, 0.016])


def test_gradients_of_a_recurrent_layer_come_together() -> None:
    """GIVEN two layers in one module, in both directions THEN those of each come when it is through, the last first;
    and without layers each when as many bytes have come as there are after it."""
    parts = ["l0", "l0_reverse", "l1", "l1_reverse"]
    names = [f"rnn.{kind}_{part}" for part in parts for kind in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")]
    model = Wrapped(names=names, sizes=[40, 40, 10, 10] * 4)
    rows = pd.DataFrame({"name": ["module.rnn"], "began": [0.0], "last": [1.0], "ended": [5.0]})
    comes, in_order = _comes(rows, model)
    assert in_order is True
    assert comes.tolist() == [5.0] * 4 + [4.0] * 4 + [3.0] * 4 + [2.0] * 4
    others = Wrapped(names=["rnn.weight_ih_l0", "rnn.weight_ih_l1", "rnn.weight_hh_l0_g"], sizes=[8] * 3)
    assert _comes(rows, others)[0].tolist() == [5.0] * 3  # whose part the last one is its name does not tell
    assert _comes(rows[:0], Wrapped(names=["a.b", "c.d"], sizes=[1, 3]))[0].tolist() == [4.0, 3.0]


@settings(max_examples=50, deadline=None)
@given(
    st.lists(st.integers(1000, 10 * MIB), min_size=1, max_size=20),
    st.floats(0.0, 0.01),
    st.floats(1e-11, 1e-8),
    st.floats(0.0, 1e-8),
    st.floats(0.0, 0.002),
    st.integers(1, 4),
    st.floats(1.0, 8.0),
)
def test_no_pass_is_shorter_than_its_parts(
    sizes: list[int], alpha: float, beta: float, gamma: float, setup: float, ranks: int, cpus: float
) -> None:
    """Not than what is computed, nor than what the network and the CPUs have to do; nor longer than one after the
    other; and no bucket is back before it was there."""
    network = Network(alpha, beta, gamma, setup, cpus=cpus, ranks=ranks)
    whole, buckets = gradients(sizes), buckets_of(sizes, MIB)
    found = replay_pass(whole, buckets, network)
    total, count = float(sum(sizes)), int(buckets[-1]) + 1
    alone = max(ranks / cpus, 1.0)
    work = whole.compute + total * gamma + count * setup
    assert found.end >= max(whole.compute, total * beta, ranks * work / cpus) * (1 - 1e-6)
    assert found.end <= work * alone * 2 + total * beta + count * alpha + 1e-6
    assert (found.back >= found.there + alpha + setup - 1e-9).all()


def test_what_is_sent_while_computing_goes_on_costs_nothing() -> None:
    """GIVEN a network that takes 1 ms for each of 8 buckets, one after the other, and CPUs of its own THEN the pass
    waits for the last bucket alone; and with one bucket for all of it, for all."""
    whole = gradients([MIB] * 8)
    network = Network(0.0, 1e-3 / MIB, lanes=1, cpus=2.0)
    assert replay_pass(whole, buckets_of([MIB] * 8, MIB), network).end == pytest.approx(0.017)
    assert replay_pass(whole, buckets_of([MIB] * 8, 8 * MIB), network).end == pytest.approx(0.024)


def test_what_communicates_on_the_cpu_that_computes_is_not_hidden() -> None:
    """GIVEN one CPU, and buckets of 1 ms of it each THEN the pass takes both, whatever the buckets."""
    whole, network = gradients([MIB] * 8), Network(0.0, 0.0, 1e-3 / MIB)
    for cap in (1, 8):
        assert replay_pass(whole, buckets_of([MIB] * 8, cap * MIB), network).end == pytest.approx(0.024)


def test_what_each_bucket_takes_of_the_cpu_that_computes_makes_many_dear() -> None:
    """GIVEN two ranks on two CPUs that compute all the while, and 1 ms of a CPU for each bucket, whatever its size THEN
    eight take 7 ms more than one: nobody has that CPU to spare."""
    whole, network = gradients([MIB] * 8), Network(0.0, 0.0, 0.0, 1e-3, cpus=2.0, ranks=2)
    ends = [replay_pass(whole, buckets_of([MIB] * 8, cap * MIB), network).end for cap in (1, 8)]
    assert ends == pytest.approx([0.024, 0.017])


def test_latency_makes_small_buckets_dear() -> None:
    whole, network = gradients([MIB] * 8, compute=1e-6), Network(0.002, 1e-9, lanes=1, cpus=2.0)
    ends = [replay_pass(whole, buckets_of([MIB] * 8, cap * MIB), network).end for cap in (1, 2, 4, 8)]
    assert ends == sorted(ends, reverse=True)
    assert ends[0] - ends[-1] == pytest.approx(7 * 0.002, rel=0.01)


@settings(max_examples=20, deadline=None)
@given(st.floats(1e-4, 3e-3), st.floats(1e-10, 1e-8))
def test_a_planted_network_is_found_again(alpha: float, beta: float) -> None:
    """GIVEN a run whose buckets a known network brings back THEN what is predicted of other caps is what that network
    would take, in the range at least; and of the run's own what it took."""
    sizes = [2048, MIB] * 12
    own = buckets_of(sizes, 25 * MIB, MIB)
    whole, network = gradients(sizes, 0.03), Network(alpha, beta, 0.0, cpus=2.0)
    seen = replay_pass(whole, own, network)
    run = GradientPasses(
        model=Wrapped(bucket_cap_mb=25.0, parameters=len(sizes), bytes=sum(sizes), sizes=sizes[::-1]),
        passes=100, ranks=1, world=2, cpus=2.0, step=seen.end + 0.01, took=seen.end, computing=0.03, finishing=0.0,
        passes_per_step=1,
        sizes=np.bincount(own, weights=sizes).astype(np.int64), there=seen.there, back=seen.back,
        unsure=np.zeros(len(seen.back)), cpu_per_byte=0.0, comes=evenly(len(sizes)), in_order=True, spread=0.0,
    )  # fmt: skip
    found = bucket_forecasts(run)
    assert not isinstance(found, str) and found.missed is not None and found.missed < 0.05
    assert found.forecasts[0].expected_ms == pytest.approx(1e3 * run.step)
    for each in found.forecasts[1:]:
        truth = 10 + 1e3 * replay_pass(whole, buckets_of(sizes, each.cap_mb * MIB), network).end
        assert each.low_ms <= truth <= each.high_ms
        assert each.high_ms / each.low_ms >= (1 + MODEL_ERROR) ** 2 * 0.999
    halved = replace(whole, sizes=whole.sizes // 2)
    otherwise = {
        "half the bandwidth": replay_pass(whole, own, replace(network, beta=2 * beta)).end,
        "twice the bandwidth": replay_pass(whole, own, replace(network, beta=beta / 2)).end,
        "half the latency": replay_pass(whole, own, replace(network, alpha=alpha / 2)).end,
        "twice the latency": replay_pass(whole, own, replace(network, alpha=2 * alpha)).end,
        "half the bytes, as of a hook that sends bfloat16": replay_pass(halved, own, network).end,
        "4 batches added up before they are sent, each": (3 * whole.compute + seen.end) / 4,
    }
    told = {each.what: each for each in found.what_if}
    for what, end in otherwise.items():
        assert told[what].low_ms <= 10 + 1e3 * end <= told[what].high_ms, what
        assert told[what].effect == ("numerics" if "bytes" in what or "batches" in what else "")


@settings(max_examples=15, deadline=None)
@given(st.floats(1e-4, 1e-3), st.floats(3e-4, 1.2e-3), st.floats(1e-10, 1e-9), st.integers(1, 12))
def test_what_ranks_that_share_cpus_would_take_is_in_the_range(
    alpha: float, setup: float, gamma: float, layers: int
) -> None:
    """GIVEN two ranks on two CPUs that had one bucket in a pass, each of which takes CPU time whatever its size THEN
    what other buckets would take is not known, and in the range that is told."""
    sizes = [2048, MIB] * layers
    own = buckets_of(sizes, 400 * MIB)
    whole = gradients(sizes, 0.02)
    network = Network(alpha, 1e-9, gamma, setup, cpus=2.0, ranks=2)
    seen = replay_pass(whole, own, network)
    run = GradientPasses(
        model=Wrapped(bucket_cap_mb=400.0, parameters=len(sizes), bytes=sum(sizes), sizes=sizes[::-1]),
        passes=100, ranks=2, world=2, cpus=2.0, step=seen.end + 0.01, took=seen.end, computing=0.02, finishing=0.0,
        passes_per_step=1,
        sizes=np.array([sum(sizes)]), there=seen.there, back=seen.back, unsure=np.array([seen.end / 2]),
        cpu_per_byte=setup / sum(sizes) + gamma, comes=evenly(len(sizes)), in_order=True, spread=0.01,
    )  # fmt: skip
    found = bucket_forecasts(run)
    assert not isinstance(found, str)
    for each in found.forecasts[1:]:
        truth = 10 + 1e3 * replay_pass(whole, buckets_of(sizes, each.cap_mb * MIB), network).end
        assert each.low_ms <= truth <= each.high_ms


def test_passes_count_as_often_as_a_step_has_them_and_waiting_is_no_communication() -> None:
    """GIVEN four buckets of one pass a step, then of four, THEN what another cap gains or loses comes four times; and
    where this rank waited for another one for 20 ms, a step without communication is as much longer."""
    sizes = [MIB] * 4
    network, own = Network(1e-3, 5e-9, 0.0, 0.0, cpus=2.0, ranks=1), buckets_of(sizes, 1 * MIB)
    gradients = Gradients(np.array(sizes), np.linspace(0.005, 0.02, 4), 0.02, 0.0)
    seen = replay_pass(gradients, own, network)
    run = GradientPasses(
        model=Wrapped(bucket_cap_mb=1.0, parameters=4, bytes=sum(sizes), sizes=sizes),
        passes=100, ranks=1, world=2, cpus=2.0, step=seen.end + 0.01, took=seen.end, computing=0.02, finishing=0.0,
        passes_per_step=1,
        sizes=np.array(sizes), there=seen.there, back=seen.back, unsure=np.zeros(len(seen.back)), cpu_per_byte=0.0,
        comes=evenly(4), in_order=True, spread=0.0,
    )  # fmt: skip
    of_four, waited = replace(run, step=0.01 + 4 * run.took, passes_per_step=4), replace(run, step=run.step + 0.02)
    found = [bucket_forecasts(each) for each in (run, of_four, waited)]
    one, four, late = (each for each in found if not isinstance(each, str))
    assert len(one.forecasts) > 1 and one.ideal_ms is not None
    for each, more in zip(one.forecasts, four.forecasts, strict=True):
        assert more.expected_ms - 10 == pytest.approx(4 * (each.expected_ms - 10), rel=0.05)
    assert late.ideal_ms == pytest.approx(one.ideal_ms + 20)


def test_buckets_that_no_rule_makes_are_not_regrouped() -> None:
    sizes = [MIB] * 4
    own = np.array([0, 1, 1, 1])
    run = GradientPasses(
        model=Wrapped(bucket_cap_mb=2.0, parameters=4, bytes=4 * MIB, sizes=sizes),
        passes=10, ranks=1, world=2, cpus=2.0, step=0.02, took=0.01, computing=0.01, finishing=0.0,
        passes_per_step=1,
        sizes=np.bincount(own, weights=sizes).astype(np.int64), there=np.array([0.002, 0.01]),
        back=np.array([0.005, 0.01]), unsure=np.zeros(2), cpu_per_byte=0.0, comes=evenly(4), in_order=True,
        spread=0.0,
    )  # fmt: skip
    assert isinstance(bucket_forecasts(run), str)


@pytest.mark.parametrize(("cap", "in_order", "is_told"), [
    (1.0, True, True), (1.0, None, True), (1.0, False, False), (50.0, True, True), (50.0, None, False),
])  # fmt: skip
def test_gradients_in_another_order_are_not_regrouped(cap: float, in_order: bool | None, is_told: bool) -> None:
    """GIVEN four buckets, or one THEN several tell the order by what is in them, and one does not."""
    sizes = [MIB, 2 * MIB, MIB, 2 * MIB]
    own = buckets_of(sizes, cap * MIB)
    whole, network = gradients(sizes), Network(1e-3, 5e-9, cpus=2.0)
    seen = replay_pass(whole, own, network)
    run = GradientPasses(
        model=Wrapped(bucket_cap_mb=cap, parameters=4, bytes=sum(sizes), sizes=sizes[::-1]),
        passes=100, ranks=1, world=2, cpus=2.0, step=seen.end + 0.01, took=seen.end, computing=0.016, finishing=0.0,
        passes_per_step=1, sizes=np.bincount(own, weights=sizes).astype(np.int64), there=seen.there, back=seen.back,
        unsure=np.zeros(len(seen.back)), cpu_per_byte=0.0, comes=evenly(4), in_order=in_order, spread=0.0,
    )  # fmt: skip
    assert isinstance(bucket_forecasts(run), str) != is_told
