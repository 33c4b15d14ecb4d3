"""What is told of loaders, and how that compares with what is true."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from _loading_rounds import Times, unsure
from _loading_workloads import Workload

from tracekit.advice.loader_choice import AS_GOOD
from tracekit.models.loading import MODEL_ERROR

# A range that is no wider than the error of the model, or little, is a value.
NARROW = 1.02 * (1 + MODEL_ERROR) ** 2


@dataclass(frozen=True)
class Told:
    """What a report says of the loader with the most batches: its summary, and the settings to have."""

    loader: dict[str, Any]
    grid: dict[str, dict[str, float]]
    chosen: str
    gain: dict[str, float]  # of the workers and batches ahead, and of what else is recommended, each by itself

    @classmethod
    def by(cls, report: dict[str, Any], workload: Workload) -> "Told":
        loader = max(report["loaders"], key=lambda each: each["batches"])
        own = f"loader.{loader['loader']}."
        advised = {each["name"].removeprefix(own): each for each in report["settings"] if each["name"].startswith(own)}
        values = {name: each["recommended"] for name, each in advised.items()}
        grid = {cell_of(each["num_workers"], each["prefetch_factor"]): each for each in loader["forecasts"]}
        chosen = cell_of(values.get("num_workers", workload.workers), values.get("prefetch_factor", workload.prefetch))
        chosen += ":persistent" * ("persistent_workers" in values) + ":unordered" * ("in_order" in values)
        return cls(loader, grid, chosen, {name: each["gain"]["expected"] for name, each in advised.items()})

    @property
    def ranges(self) -> list[str]:
        """The cells of which no value is told, but a range."""
        return [cell for cell, each in self.grid.items() if each["high_ms"] > each["low_ms"] * NARROW]

    def against(self, rounds_ms: dict[str, Times], now: str) -> dict[str, Any]:
        """How it compares with what is true: the time per batch of each cell, by round."""
        true_ms = {cell: float(np.median(times)) for cell, times in rounds_ms.items()}
        both, ranges = sorted(true_ms.keys() & self.grid.keys()), self.ranges
        known = [cell for cell in both if cell not in ranges]
        expected = {cell: self.grid[cell]["expected_ms"] for cell in both}
        return {
            "errors": {cell: expected[cell] / true_ms[cell] - 1 for cell in known},
            "errors_of_gains": {
                cell: (expected[cell] / self.loader["batch_ms"]) / (true_ms[cell] / true_ms[now]) - 1
                for cell in known
                if cell != now
            },
            "covered": {
                cell: self.grid[cell]["low_ms"] <= true_ms[cell] <= self.grid[cell]["high_ms"]
                for cell in both
                if cell in ranges
            },
            "predicted_ms": {
                cell: [self.grid[cell][f"{end}_ms"] for end in ("low", "expected", "high")] for cell in both
            },
            "error_now": self.loader["error"],
            "gains": self.gain,
        }


@dataclass(frozen=True)
class Swept:
    """What a third of the rounds of the grid tells of the others: the time per batch of each cell, and the settings to
    have, the smallest within 1 % of the best."""

    first_ms: dict[str, float]
    others_ms: dict[str, float]

    @classmethod
    def by(cls, rounds_ms: dict[str, Times]) -> "Swept":
        third = max(min(map(len, rounds_ms.values())) // 3, 1)
        return cls(*({cell: float(np.median(each[part])) for cell, each in rounds_ms.items()}
                     for part in (slice(third), slice(third, None))))  # fmt: skip

    @property
    def chosen(self) -> str:
        as_good = [cell for cell, each in self.first_ms.items() if each <= min(self.first_ms.values()) * (1 + AS_GOOD)]
        return min(as_good, key=lambda cell: [int(number) for number in cell.split(":")])

    def against(self, now: str) -> dict[str, Any]:
        errors = {cell: self.first_ms[cell] / other - 1 for cell, other in self.others_ms.items()}
        of_gains = {cell: (1 + error) / (1 + errors[now]) - 1 for cell, error in errors.items() if cell != now}
        return {"errors": errors, "errors_of_gains": of_gains, "covered": {}}


def chosen_against(rounds: dict[str, Times], chosen: str, now: str, best: str) -> dict[str, Any]:
    """How fast the recommended settings are, as a share of the best, and times the settings of the run."""
    ours = rounds[chosen][:, 0]
    of_the_best, of_the_current = (rounds[cell][:, 0] / ours for cell in (best, now))
    return {
        "recommended": chosen,
        "of_the_best": float(np.median(of_the_best)),
        "unsure": unsure(of_the_best),
        "of_the_current": float(np.median(of_the_current)),
        "of_the_current_unsure": unsure(of_the_current),
    }


def cell_of(workers: int, prefetch: int) -> str:
    """The name of some workers and batches ahead in a grid."""
    return f"{workers}:{prefetch if workers else 0}"
