"""The cap of the gradient buckets of DistributedDataParallel: how much is sent at once beside the backward pass."""

from collections.abc import Iterable
from typing import Literal

from tracekit.advice.unused_parameters import SETTING as SETTING_OF_LOOK
from tracekit.advice.unused_parameters import found_unused, needless_look
from tracekit.analysis.explored_caps import ExploredCaps, explored_caps
from tracekit.analysis.gradient_passes import gradient_passes
from tracekit.analysis.people import ranks_of, world_of
from tracekit.analysis.report_schema import Advice, BucketForecast, BucketSummary, Gain, Report, Setting, WhatIf
from tracekit.analysis.steps import steps_of
from tracekit.analysis.words import numbers, shell_line
from tracekit.models.buckets import bucket_forecasts, filled
from tracekit.models.ddp_replay import DEFAULT_CAP_MB, FIRST_BUCKET, MIB
from tracekit.run.manifest import Wrapped
from tracekit.run.reader import Run
from tracekit.settings.exploration import BUCKET_CAP, bucket_condition
from tracekit.settings.inside import ENDED_BUCKET_EXPLORATION, LEFT_OUT_COLLECTIVES


def bucket_settings(run: Run, report: Report) -> Advice:
    """Recommend, of the caps for which even the least that is predicted or was measured is a gain, that of the shortest
    expected step.

    Fills `report.buckets`. What would have to be measured is said: `tracekit record --explore buckets` does.
    """
    models = run.manifest.ddp
    if not models:
        explores = any(note.what == LEFT_OUT_COLLECTIVES for note in run.missing)
        why = "Nothing is told of gradient buckets: the program wrapped no model with DistributedDataParallel."
        return Advice([], why if explores else "")
    looked = found_unused(run, models, report.steps.process)
    report.findings += [looked] if looked is not None else []
    further = (
        f" What `{SETTING_OF_LOOK} = false` saves, `tracekit study ddp` measures." if needless_look(report) else ""
    )
    advice = _of_caps(run, report)
    return Advice(advice.settings, advice.why + further)


def _of_caps(run: Run, report: Report) -> Advice:
    steps = steps_of(run, report.steps.process)
    tried, ranks = explored_caps(run, steps), ranks_of(run, report.steps.process)
    ended = _ended(run, {report.steps.process, *(who.process for who in ranks)})
    if tried is not None:
        found = tried.problem or ended or _measured(tried, report.steps.count, world_of(ranks))
    else:
        seen = gradient_passes(run, steps)
        found = seen if isinstance(seen, str) else bucket_forecasts(seen)
        found = found if isinstance(found, str) else _behind(found, _awaited_ms(report))
    if isinstance(found, str):
        why = ended or (found if tried else f"{found}; `{_measured_by(run)}` measures what others take")
        return Advice([], f"Nothing is told of gradient buckets: {why}.")
    model = run.manifest.ddp[0]
    report.buckets = found
    now, best = found.forecasts[0], best_cap(found)
    gain, now_mb = gain_over(now, best), numbers(model.caps_mb)
    if best is now:
        seen = "expected to be" if found.rounds is None else "measured to be"
        return Advice([], f"No other cap than {now_mb} MiB is {seen} faster for the gradient buckets.")
    if gain.low <= 0:
        longer = "a longer run tells more" if found.rounds else f"`{_measured_by(run)}` measures it"
        instead = ", as it may wait for batches instead" if not found.rounds and _awaited_ms(report) > 0 else ""
        return Advice(
            [],
            f"Gradient buckets of {best.cap_mb:g} MiB may be faster than those of {now_mb}, or not"
            f" ({gain.low:+.0%} to {gain.high:+.0%} of a step{instead}): undecided; {longer}.",
        )
    setting = Setting(
        name=BUCKET_CAP,
        current=model.cap,
        recommended=best.cap_mb,
        gain=gain,
        basis="model" if found.rounds is None else "measured",
        effect=effect_on(found.ranks, run.manifest.ddp),
        why=_why(found, best, model),
        apply=shell_line(["tracekit", "apply", f"{report.path}/settings.toml", "--", *report.command]),
    )
    seen = "predicted" if found.rounds is None else "measured"
    return Advice([setting], f"Other gradient buckets are {seen} to save {gain.expected:.0%} of a step.")


def _ended(run: Run, job: set[int | None]) -> str:
    """Why one of these processes ended its exploration, so that what came after is not known, as of a model that was
    wrapped later, or of parameters that were frozen before; "" where none did. Others may have none to end."""
    notes = (note for note in run.missing if note.what == ENDED_BUCKET_EXPLORATION)
    return next((note.why for note in notes if not note.processes or job.intersection(note.processes)), "")


def _measured_by(run: Run) -> str:
    """The command that measures other buckets: one run that tries them in turn, where that can be, or whole runs."""
    model = run.manifest.ddp[0]
    is_whole = model.static_graph or model.gradient_as_bucket_view or model.hook or model.compiled
    is_whole |= run.manifest.may_use_gpu
    return "tracekit study ddp" if is_whole or len(run.manifest.ddp) > 1 else "tracekit record --explore buckets"


def _awaited_ms(report: Report) -> float:
    """For how long of a step, ms, the loop waits for batches that workers make beside it."""
    own = (each for each in report.loaders if each.process == report.steps.process and each.num_workers > 0)
    return sum(each.wait for each in own) * (report.steps.median_ms or 0.0)


def _behind(found: BucketSummary, awaited_ms: float) -> BucketSummary:
    """The same where batches are waited for as well: they may come no sooner, whatever the gradients take."""
    own_ms = found.forecasts[0].expected_ms
    others: list[BucketForecast | WhatIf] = [*found.forecasts[1:], *found.what_if]
    for each in others:
        each.high_ms = min(each.high_ms + awaited_ms, max(each.high_ms, own_ms))
    return found


def _measured(tried: ExploredCaps, steps: int, ranks: int) -> BucketSummary:
    """What an exploration has found, the run's own cap first."""
    model = tried.model

    def count(*caps_mb: float) -> int:
        """As it was told; else as far as the parameters tell it."""
        if told := model.buckets.get(bucket_condition(*caps_mb)):
            return told
        is_known = len(caps_mb) == 1 and model.sizes and len(model.sizes) == model.parameters
        first = FIRST_BUCKET if caps_mb[0] == model.bucket_cap_mb and _is_torchs_own(model) else None
        return int(filled(model, caps_mb[0] * MIB, first).max()) + 1 if is_known else 0

    own = BucketForecast(model.bucket_cap_mb, count(*model.caps_mb), *[tried.own_ms] * 3)
    others = [
        BucketForecast(
            each.cap_mb, count(each.cap_mb), *(tried.own_ms * at for at in (each.low, each.ratio, each.high))
        )
        for each in sorted(tried.others, key=lambda each: each.cap_mb)
    ]
    return BucketSummary(
        cap_mb=model.bucket_cap_mb,
        ranks=ranks,
        passes=steps,
        bytes=model.bytes,
        ideal_ms=None,
        missed=None,
        forecasts=[own, *others],
        rounds=tried.rounds,
        caps_mb=model.bucket_caps_mb,
    )


def _is_torchs_own(model: Wrapped) -> bool:
    is_told = model.is_default_cap
    return is_told if is_told is not None else model.caps_mb == [DEFAULT_CAP_MB]


def best_cap(summary: BucketSummary) -> BucketForecast:
    """The forecast of the shortest expected step, of those that are certain to be a gain; of all where none is."""
    certain = [each for each in summary.forecasts if gain_over(summary.forecasts[0], each).low > 0]
    return min(certain or summary.forecasts, key=lambda each: each.expected_ms)


def gain_over(now: BucketForecast, other: BucketForecast) -> Gain:
    """What another cap is predicted to save of a step."""
    low, expected, high = (1 - each / now.expected_ms for each in (other.high_ms, other.expected_ms, other.low_ms))
    return Gain(low, expected, high)


def effect_on(ranks: int, models: Iterable[Wrapped]) -> Literal["identical", "numerics"]:
    """What other buckets change in the results: two ranks add up an element in one order only, and halve it exactly,
    unless the program does something else with each bucket, or compiles other graphs for other buckets. Without a look
    for unused parameters torch forms other buckets, too."""
    return "identical" if ranks == 2 and not any(each.hook or each.compiled for each in models) else "numerics"


def _why(summary: BucketSummary, best: BucketForecast, model: Wrapped) -> str:
    now = summary.forecasts[0]
    own = " (torch's own)" if _is_torchs_own(model) else ""
    others = f"buckets of {best.cap_mb:g} MiB in place of those of {numbers(model.caps_mb)}{own}"
    if best.buckets and now.buckets:
        others = f"{best.buckets} buckets of {best.cap_mb:g} MiB in place of {now.buckets}{own}"
    both = f"{best.expected_ms:.3g} ms a step, {now.expected_ms:.3g} now"
    if summary.rounds is not None:
        return f"{others} took {both}, in up to {summary.rounds} rounds of blocks of steps in one run"
    return f"{others} are replayed to take {both}; without communication it would be {summary.ideal_ms:.3g} ms"
