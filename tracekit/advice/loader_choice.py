"""Which of the settings that were predicted for a loader to choose."""

from collections.abc import Callable, Sequence

from tracekit.analysis.report_schema import LoaderForecast, LoaderSummary
from tracekit.models.loading import MODEL_ERROR

# A setting is as good as the best when it is as fast to within this; the smallest of those is recommended.
AS_GOOD = 0.01
PREFETCH = 2  # torch's default

Time = Callable[[LoaderForecast], float]


def is_now(loader: LoaderSummary, each: LoaderForecast) -> bool:
    """Whether these are the settings that it has."""
    return (each.num_workers, each.prefetch_factor) == (loader.num_workers, loader.prefetch_factor)


def promising(loader: LoaderSummary) -> LoaderForecast | None:
    """The smallest settings that are within 1 % of those that lose least whichever storage it is. None without any."""
    best = [(time_of, min(map(time_of, loader.forecasts), default=0.0)) for time_of in by_storage(loader)]
    lost = [(time_of, least) for time_of, least in best if least > 0]  # where all takes no time nothing is lost
    return smallest_as_good(
        loader.forecasts, lambda each: max((time_of(each) / least for time_of, least in lost), default=1.0)
    )


def may_gain(loader: LoaderSummary) -> LoaderForecast | None:
    """The settings that may take least, where that is a gain and is not known: all that the model may miss aside. None
    where no settings may gain."""
    fast, _ = by_storage(loader)
    least = min(loader.forecasts, key=fast, default=None)
    return least if least is not None and fast(least) * (1 + AS_GOOD) < loader.batch_ms else None


def by_storage(loader: LoaderSummary) -> tuple[Time, Time]:
    """The time with some settings where what is not known, as how fast storage is, is as good as it may be, and where
    it is as bad: without what the model may miss, of all alike."""
    missed = 1 + missed_by(loader)

    def fast(each: LoaderForecast) -> float:
        return each.expected_ms if each.seen else each.low_ms * missed

    def slow(each: LoaderForecast) -> float:
        return each.expected_ms if each.seen else each.high_ms / missed

    return fast, slow


def smallest_as_good(forecasts: Sequence[LoaderForecast], time_of: Time) -> LoaderForecast | None:
    """The smallest settings that are within 1 % of the best. None without any.

    A worker that may be one batch ahead has nothing to do while that batch is handed over. What this takes no run has
    seen, so it is chosen only where nothing else fits into memory.
    """
    enough = [each for each in forecasts if each.prefetch_factor != 1] or forecasts
    least = min(map(time_of, enough), default=0.0)
    good = [each for each in enough if time_of(each) <= least * (1 + AS_GOOD)]
    return min(good, key=lambda each: (each.num_workers, each.prefetch_factor), default=None)


def about_as_good(forecasts: Sequence[LoaderForecast], time_of: Time, within: float) -> list[LoaderForecast]:
    """By workers, those that lose no more than so much against the smallest settings that are as good as the best, with
    as many batches ahead, or, where these have no workers, as many as torch has unless it is told."""
    best = smallest_as_good(forecasts, time_of)
    if best is None:
        return []
    ahead = best.prefetch_factor or PREFETCH
    alike = [each for each in forecasts if each.prefetch_factor == ahead or not each.num_workers]
    found = [each for each in alike if time_of(each) <= time_of(best) * (1 + within)]
    return sorted(found, key=lambda each: each.num_workers)


def missed_by(loader: LoaderSummary) -> float:
    """What the model may miss."""
    return max(loader.error, MODEL_ERROR)
