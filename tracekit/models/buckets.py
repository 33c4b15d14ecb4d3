"""The time of a data-parallel step with other gradient buckets, from what one run saw of it.

What a bucket costs is not known but by when the run's own buckets were back, and by the CPU time of the threads that
sent them. So a replay is made with many an alpha and share of that CPU time which goes with a bucket, whatever its
size, each with the beta with which the pass ends when it did, and others around it; and each counts as much as it is
like the run: where costs that are as likely differ in what they say of other buckets, the prediction is a range.
"""

from collections.abc import Callable
from dataclasses import replace
from itertools import product

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq

from tracekit.analysis.gradient_passes import GradientPasses
from tracekit.analysis.report_schema import BucketForecast, BucketSummary, WhatIf
from tracekit.models.ddp_replay import (
    DEFAULT_CAP_MB,
    FIRST_BUCKET,
    MIB,
    Gradients,
    Network,
    buckets_of,
    replay_pass,
)
from tracekit.run.manifest import Wrapped
from tracekit.settings.exploration import CAPS_MB

Floats = NDArray[np.float64]

_MS = 1e3
# The costs that are tried: alpha, s, and around the beta, s per byte, with which the pass ends when it did.
_ALPHAS, _BETAS = np.geomspace(2e-5, 2e-2, 19), (1e-13, 1e-6)
_AROUND = np.linspace(0.9, 1.1, 7)
_SETUPS = np.geomspace(6e-5, 3e-3, 5)
# What is known of alpha before anything was seen, as buckets that are large say little of it: an all-reduce of nothing
# takes some 0.3 ms with gloo over a link between two network namespaces, and 0.03 to 3 ms on most networks.
_USUAL_ALPHA, _ALPHA_FACTOR = 3e-4, 3.0
# Nor is of the CPU time how much goes with each bucket: with gloo another one takes 0.5 to 0.8 ms of a CPU in each of
# two ranks that share two CPUs.
_USUAL_SETUP, _SETUP_FACTOR = 6e-4, 2.0
# What the main thread computes to have a bucket sent, s.
_LAUNCH = 5e-5
# A replay that misses the run by more than this share of a step is not like it; medians are known to no better.
_LIKE = 0.01
# Costs that are less likely by so much are left out.
_LEAST_WEIGHT = 1e-3
_CLOSE = 1e-3  # of the logarithm of beta
# By how much the replay misses the ratio of two caps at 19 of 20 points of `benchmarks/ddp.py`.
MODEL_ERROR = 0.07
# And by how much more it may, s, where steps are short: when a thread that sends gets a CPU from another one no run
# tells, and a second bucket made steps of 4.7 ms there 1 ms longer, of which a third was replayed.
HANDOVER_ERROR = 1e-3
# What else may be: another network, or half of the bytes; what it takes to turn gradients into these is not known.
_NETWORKS: dict[str, Callable[[Network], Network]] = {
    "half the bandwidth": lambda each: replace(each, beta=each.beta * 2),
    "twice the bandwidth": lambda each: replace(each, beta=each.beta / 2),
    "half the latency": lambda each: replace(each, alpha=each.alpha / 2),
    "twice the latency": lambda each: replace(each, alpha=each.alpha * 2),
}
_HALVED = "half the bytes, as of a hook that sends bfloat16"
_ADDED_UP = (2, 4)  # gradient accumulation: what a batch then takes on average


def bucket_forecasts(seen: GradientPasses) -> BucketSummary | str:
    """The time per step for every cap, that of the run first; or why that cannot be told."""
    sizes = np.array(seen.model.sizes[::-1], dtype=np.int64)
    own_cap = seen.model.bucket_cap_mb
    own = _own_buckets(seen)
    if len(seen.model.caps_mb) > 1:
        return "each of its buckets has a cap of its own"
    if own is None:
        return "its buckets are not those that its parameters make in their order"
    if seen.in_order is False:
        return "its gradients do not come in the reverse of the order in which the model has its parameters"
    if seen.in_order is None and own[-1] == 0:  # several tell it by what is in them
        return "in which order its gradients come was not seen"
    gradients = _gradients(seen, sizes, own)
    likely, missed = _likely_networks(seen, gradients, own)
    if missed > MODEL_ERROR:
        return f"a replay of them misses what was seen by {missed:.0%} of a step"
    passes, replays = seen.passes_per_step, [replay_pass(gradients, own, network) for _, network in likely]
    away = passes * (seen.there.max() - max(each.there.max() for each in replays)) / seen.step
    if away > MODEL_ERROR:
        return (
            f"for {away:.0%} of a step what computes its gradients was off its CPU, and not for what sends them: how"
            " much of that other buckets would hide is not known"
        )
    weights = np.array([weight for weight, _ in likely])
    base = np.array([each.end for each in replays])
    rest = max(seen.step - passes * seen.took, 0.0)

    def of_steps(ends: Floats, is_seen: bool = False) -> tuple[float, float, float]:
        """The time of a step, at least, expected and at most, ms, where its passes end so, by network."""
        times = _MS * seen.step * (rest + passes * ends) / (rest + passes * base)
        low, high = _quantiles(times, weights)
        error = 1.0 if is_seen else 1 + MODEL_ERROR + passes * HANDOVER_ERROR / seen.step
        return low / error, float(np.average(times, weights=weights)), high * error

    def ends(buckets: NDArray[np.intp], change: Callable[[Network], Network], sent: float = 1.0) -> Floats:
        launched = _launched(gradients, own, buckets)
        launched = replace(launched, sizes=np.round(launched.sizes * sent).astype(np.int64))
        return np.array([replay_pass(launched, buckets, change(network)).end for _, network in likely])

    def forecast(cap_mb: float, buckets: NDArray[np.intp]) -> BucketForecast:
        return BucketForecast(
            cap_mb, int(buckets[-1]) + 1, *of_steps(ends(buckets, lambda each: each), is_seen=buckets is own)
        )

    others: dict[bytes, tuple[float, NDArray[np.intp]]] = {}  # caps that make the same buckets are one
    for cap_mb in CAPS_MB:
        buckets = filled(seen.model, cap_mb * MIB)
        if cap_mb != own_cap:  # torch's default is another one, and has its name
            others[buckets.tobytes()] = cap_mb, buckets
        if buckets[-1] == 0:
            break
    others.pop(own.tobytes(), None)
    grid = [forecast(own_cap, own), *(forecast(*other) for other in others.values())]
    computed = gradients.compute * max(seen.ranks / seen.cpus, 1.0) + gradients.finish
    ideal = seen.step - passes * max(seen.took - computed, 0.0)
    otherwise = {("", what): ends(own, change) for what, change in _NETWORKS.items()}
    smaller = filled(seen.model, own_cap * MIB, FIRST_BUCKET)
    if own_cap > 1 and not np.array_equal(smaller, own):
        first = "a first bucket of 1 MiB (ddp.first_bucket_mb = 1)"
        otherwise["identical" if seen.world == 2 else "numerics", first] = ends(smaller, lambda each: each)
    otherwise["numerics", _HALVED] = ends(own, lambda each: each, sent=0.5)
    alone = np.minimum(computed, base)
    for batches in _ADDED_UP:
        added = f"{batches} batches added up before they are sent, each"
        otherwise["numerics", added] = ((batches - 1) * alone + base) / batches
    return BucketSummary(
        cap_mb=own_cap,
        ranks=seen.world,
        passes=seen.passes,
        bytes=seen.model.bytes,
        ideal_ms=_MS * ideal,
        missed=missed,
        forecasts=grid,
        what_if=[WhatIf(*kind, *of_steps(each)) for kind, each in otherwise.items()],
    )


def filled(model: Wrapped, cap_bytes: float, first_bytes: float | None = None) -> NDArray[np.intp]:
    """The bucket of each gradient, as they come. Torch fills them as they come, too; but one that looks for unused
    parameters fills them from the other end, and never again."""
    if not model.find_unused_parameters or model.static_graph:
        return buckets_of(model.sizes[::-1], cap_bytes, first_bytes)
    buckets = buckets_of(model.sizes, cap_bytes, first_bytes)
    return np.asarray((buckets.max(initial=0) - buckets)[::-1])


def _own_buckets(seen: GradientPasses) -> NDArray[np.intp] | None:
    """The bucket of each gradient in the run; None where no rule that is known makes such buckets."""
    cap = seen.model.bucket_cap_mb
    firsts = [None, FIRST_BUCKET] if cap == DEFAULT_CAP_MB else [None]
    for first in firsts:
        buckets = filled(seen.model, cap * MIB, first)
        sizes = np.bincount(buckets, weights=seen.model.sizes[::-1]).astype(np.int64)
        if np.array_equal(sizes, seen.sizes):
            return buckets
    return None


def _gradients(seen: GradientPasses, sizes: NDArray[np.int64], own: NDArray[np.intp]) -> Gradients:
    """When each gradient was there: between two buckets of the run as its layer tells."""
    # What was computed until a bucket was there is the share that it took of the time until the last one was.
    closed = seen.computing * np.maximum.accumulate(seen.there) / max(float(seen.there.max()), 1e-9)
    comes, closed_before = seen.comes[::-1], np.append(0.0, closed)
    ends = np.array([comes[own == number].max() for number in range(int(own[-1]) + 1)])
    there = np.clip(np.interp(comes, np.append(0.0, ends), closed_before), closed_before[own], closed[own])
    return Gradients(sizes, there, seen.computing, seen.finishing)


def _launched(gradients: Gradients, own: NDArray[np.intp], buckets: NDArray[np.intp]) -> Gradients:
    """The gradients when other buckets than the run's own have to be sent between them."""
    there = np.maximum.accumulate(np.maximum(gradients.there + _LAUNCH * (buckets - own), 0.0))
    compute = max(gradients.compute + _LAUNCH * float(buckets[-1] - own[-1]), float(there[-1]))
    return replace(gradients, there=there, compute=compute)


def _likely_networks(
    seen: GradientPasses, gradients: Gradients, own: NDArray[np.intp]
) -> tuple[list[tuple[float, Network]], float]:
    """The costs of a bucket that are like the run, each with its weight; and what the best of them misses."""
    beside = 0.0 if np.isnan(seen.cpu_per_byte) else seen.cpu_per_byte * float(seen.sizes.sum())
    most = beside / len(seen.sizes)
    tolerance = max(_LIKE, seen.spread)

    def network(alpha: float, setup: float, beta: float) -> Network:
        gamma = (most - setup) * len(seen.sizes) / float(seen.sizes.sum())
        return Network(alpha, beta, gamma, setup, cpus=seen.cpus, ranks=seen.ranks)

    def late(log_beta: float, alpha: float, setup: float) -> float:
        return replay_pass(gradients, own, network(alpha, setup, float(np.exp(log_beta)))).end - seen.took

    def beta_of(alpha: float, setup: float) -> float:
        lowest, highest = np.log(_BETAS)
        if late(lowest, alpha, setup) >= 0:
            return _BETAS[0]
        if late(highest, alpha, setup) <= 0:
            return _BETAS[1]
        return float(np.exp(brentq(late, lowest, highest, (alpha, setup), xtol=_CLOSE)))

    setups = np.unique(np.minimum(_SETUPS, most)).tolist()
    networks = [
        network(alpha, setup, beta * around)
        for alpha, setup in product(_ALPHAS.tolist(), setups)
        for beta in [beta_of(alpha, setup)]
        for around in _AROUND.tolist()
    ]
    misses = np.array([_missed(seen, gradients, own, each) for each in networks])
    unlike = misses**2 / tolerance**2 + _unusual([each.alpha for each in networks], _USUAL_ALPHA, _ALPHA_FACTOR)
    if most > 0:
        unlike += _unusual([each.setup for each in networks], _USUAL_SETUP, _SETUP_FACTOR)
    weights = np.exp(-(unlike - unlike.min()) / 2)
    likely = [(float(weight), each) for weight, each in zip(weights, networks, strict=True)]
    return [each for each in likely if each[0] > _LEAST_WEIGHT], float(misses.min())


def _unusual(costs: list[float], usual: float, factor: float) -> Floats:
    return np.asarray((np.log(np.array(costs) / usual) / np.log(factor)) ** 2)


def _missed(seen: GradientPasses, gradients: Gradients, own: NDArray[np.intp], network: Network) -> float:
    """By which share of a step a replay misses the end of the pass, and when the buckets were back."""
    found = replay_pass(gradients, own, network)
    late = np.maximum(found.back - seen.back, 0) + np.maximum(seen.back - seen.unsure - found.back, 0)
    return float(seen.passes_per_step * np.hypot(found.end - seen.took, np.sqrt(np.mean(late**2))) / seen.step)


def _quantiles(times: Floats, weights: Floats) -> tuple[float, float]:
    """The 2.5 % and 97.5 % points of weighted values."""
    order = np.argsort(times)
    below = np.cumsum(weights[order]) / weights.sum()
    at = np.minimum(np.searchsorted(below, [0.025, 0.975]), len(times) - 1)
    low, high = times[order][at]
    return float(low), float(high)
