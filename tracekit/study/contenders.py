"""What a probe tries: the settings that may be as good as any, as far as one run tells."""

import math
from operator import attrgetter

from tracekit.advice.loader_choice import AS_GOOD, about_as_good, by_storage, promising, smallest_as_good
from tracekit.analysis.report_schema import LoaderForecast, LoaderSummary
from tracekit.models.loading import MODEL_ERROR

# So many batches ahead made batches of unlike size, and of busy CPUs, 4 to 8 % faster than 2, and the replay says less.
_DEEP = 8

Cells = dict[str, tuple[int, int]]  # by loader: workers and batches ahead of each


def contenders(loaders: list[LoaderSummary], probed: Cells) -> list[Cells]:
    """What seems best, the most workers that may be as good if storage answers many as fast as few, for all that the
    replay can tell, a number between these, what is best then, what is best if it does not, and the fewest workers that
    may be as good, also with many batches ahead, of all loaders that are `probed` at once; one that has nothing to try
    is left as it is. None twice, and none that the run had."""
    tried: dict[str, list[tuple[int, int]]] = {}
    for loader in (each for each in loaders if each.loader in probed):
        now = loader.num_workers, loader.prefetch_factor
        best, *others = promising(loader), *(smallest_as_good(loader.forecasts, each) for each in by_storage(loader))
        if best is None or (best.num_workers, best.prefetch_factor) == now:
            best, *others = others
        fast, _ = by_storage(loader)
        alike = about_as_good(loader.forecasts, fast, MODEL_ERROR)
        between = _between(loader.forecasts, best, alike[-1]) if best and alike else []
        all_of_them = best, *alike[-1:], *between, *others, *alike[:1]
        cells = [(each.num_workers, each.prefetch_factor) for each in all_of_them if each]
        cells += [_deep(loader, each.num_workers, each.prefetch_factor) for each in alike[:1]]
        if different := [cell for cell in dict.fromkeys(cells) if cell != now]:
            tried[loader.loader] = different
    most = max(map(len, tried.values()), default=0)
    return [{loader: cells[min(number, len(cells) - 1)] for loader, cells in tried.items()} for number in range(most)]


def _between(forecasts: list[LoaderForecast], few: LoaderForecast, many: LoaderForecast) -> list[LoaderForecast]:
    """The number of workers, with as many batches ahead as `many` have, that lies in the middle between few and many:
    as many times the former as the latter are times it. None where there is none between."""
    middle = math.sqrt(max(few.num_workers, 1) * many.num_workers)
    found = [
        each
        for each in forecasts
        if few.num_workers < each.num_workers < many.num_workers and each.prefetch_factor == many.prefetch_factor
    ]
    return sorted(found, key=lambda each: abs(each.num_workers - middle))[:1]


def best_of(tried: list[Cells], loaders: list[LoaderSummary]) -> Cells:
    """What seems best of those for each loader, by what is known of them now."""
    best = tried[0]
    for loader in (each for each in loaders if each.loader in best):
        cells = {each[loader.loader] for each in tried}
        known = [each for each in loader.forecasts if (each.num_workers, each.prefetch_factor) in cells]
        chosen = smallest_as_good(known, attrgetter("expected_ms"))
        if chosen is not None:
            best = best | {loader.loader: (chosen.num_workers, chosen.prefetch_factor)}
    return best


def deep(cells: Cells, loaders: list[LoaderSummary]) -> Cells:
    """As many workers with many batches ahead, as far as they fit into memory."""
    return {each.loader: _deep(each, *cells[each.loader]) for each in loaders if each.loader in cells}


def _deep(loader: LoaderSummary, workers: int, prefetch: int) -> tuple[int, int]:
    alike = [each.prefetch_factor for each in loader.forecasts if each.num_workers == workers]
    return workers, max((each for each in alike if prefetch < each <= _DEEP), default=prefetch)


def rivals_of(best: Cells, others: list[Cells], loaders: list[LoaderSummary]) -> list[Cells]:
    """Those that may be as good as the best for a loader, whether they had turns or not, by the least that each may
    take: what may gain most, or be as good with fewer workers, is worth looking at most."""

    def least(other: Cells) -> float:
        return min(
            (
                each.low_ms / chosen.expected_ms
                for loader in loaders
                for chosen in loader.forecasts
                for each in loader.forecasts
                if best.get(loader.loader) == (chosen.num_workers, chosen.prefetch_factor)
                and other.get(loader.loader) == (each.num_workers, each.prefetch_factor) != best[loader.loader]
            ),
            default=math.inf,
        )

    once = [each for number, each in enumerate(others) if each not in others[:number]]
    return sorted((each for each in once if least(each) <= 1 + AS_GOOD), key=least)


def most_open_first(others: list[Cells], loaders: list[LoaderSummary]) -> list[Cells]:
    """What seems best, and then what may gain most, for where few of them can be tried; those that cannot be as good
    come last."""
    best, *rest = others
    rivals = rivals_of(best, rest, loaders)
    return [best, *rivals, *(each for each in rest if each not in rivals)]


def is_certain(cells: Cells, loaders: list[LoaderSummary]) -> bool:
    """Whether even the most that is told of these takes less than what the loaders have."""
    return all(
        each.high_ms < loader.batch_ms
        for loader in loaders
        for each in loader.forecasts
        if cells.get(loader.loader) == (each.num_workers, each.prefetch_factor)
    )
