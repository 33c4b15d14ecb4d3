"""The cap of the gradient buckets of DistributedDataParallel: how much is sent at once beside the backward pass."""

from typing import Literal

from tracekit.advice.unused_parameters import SETTING as SETTING_OF_LOOK
from tracekit.advice.unused_parameters import found_unused, needless_look
from tracekit.analysis.gradient_passes import gradient_passes
from tracekit.analysis.report_schema import Advice, BucketForecast, BucketSummary, Gain, Report, Setting
from tracekit.analysis.steps import steps_of
from tracekit.analysis.words import shell_line
from tracekit.models.buckets import bucket_forecasts
from tracekit.models.ddp_replay import DEFAULT_CAP_MB
from tracekit.run.reader import Run

SETTING = "ddp.bucket_cap_mb"


def bucket_settings(run: Run, report: Report) -> Advice:
    """Recommend, of the caps for which even the least that is predicted is a gain, that of the shortest expected step.

    Fills `report.buckets`. What would have to be measured is said: `tracekit study ddp` does.
    """
    models = run.manifest.ddp
    if not models:
        return Advice([], "")
    looked = found_unused(run, models)
    report.findings += [looked] if looked is not None else []
    further = (
        f" What `{SETTING_OF_LOOK} = false` saves, `tracekit study ddp` measures." if needless_look(report) else ""
    )
    advice = _of_caps(run, report)
    return Advice(advice.settings, advice.why + further)


def _of_caps(run: Run, report: Report) -> Advice:
    seen = gradient_passes(run, steps_of(run, report.steps.process))
    found = seen if isinstance(seen, str) else bucket_forecasts(seen)
    if isinstance(found, str):
        return Advice([], f"Nothing is told of gradient buckets: {found}.")
    report.buckets = found
    now, best = found.forecasts[0], best_cap(found)
    gain = gain_over(now, best)
    if best is now:
        return Advice([], f"No other cap than {now.cap_mb:g} MiB is expected to be faster for the gradient buckets.")
    if gain.low <= 0:
        return Advice(
            [],
            f"Gradient buckets of {best.cap_mb:g} MiB may be faster than those of {now.cap_mb:g}, or not"
            f" ({gain.low:+.0%} to {gain.high:+.0%} of a step): undecided; `tracekit study ddp` measures it.",
        )
    setting = Setting(
        name=SETTING,
        current=found.cap_mb,
        recommended=best.cap_mb,
        gain=gain,
        basis="model",
        effect=effect_on(found.ranks),
        why=_why(found, best),
        apply=shell_line(["tracekit", "apply", f"{report.path}/settings.toml", "--", *report.command]),
    )
    return Advice([setting], f"Other gradient buckets are predicted to save {gain.expected:.0%} of a step.")


def best_cap(summary: BucketSummary) -> BucketForecast:
    """The forecast of the shortest expected step, of those that are certain to be a gain; of all where none is."""
    certain = [each for each in summary.forecasts if gain_over(summary.forecasts[0], each).low > 0]
    return min(certain or summary.forecasts, key=lambda each: each.expected_ms)


def gain_over(now: BucketForecast, other: BucketForecast) -> Gain:
    """What another cap is predicted to save of a step."""
    low, expected, high = (1 - each / now.expected_ms for each in (other.high_ms, other.expected_ms, other.low_ms))
    return Gain(low, expected, high)


def effect_on(ranks: int) -> Literal["identical", "numerics"]:
    """What other buckets change in the results: two ranks add up an element in one order only, and halve it exactly."""
    return "identical" if ranks == 2 else "numerics"


def _why(summary: BucketSummary, best: BucketForecast) -> str:
    now = summary.forecasts[0]
    own = " (torch's own)" if now.cap_mb == DEFAULT_CAP_MB else ""
    return (
        f"{best.buckets} buckets of {best.cap_mb:g} MiB in place of {now.buckets}{own} are replayed to take"
        f" {best.expected_ms:.3g} ms a step, {now.expected_ms:.3g} now; without communication it would be"
        f" {summary.ideal_ms:.3g} ms"
    )
