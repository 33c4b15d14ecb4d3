"""Clocks of several hosts: by how much each is ahead of the first one, told by what must have come before what.

Nobody leaves a meeting before the last one has entered it. Each meeting of two hosts so gives a lower and an upper
bound for the difference of their clocks. A straight line (offset and drift) is put between them, as far from all of
them as can be (a linear programme; cf. Doleschal et al. 2008, who interpolate and then correct): how far another line
between them may be is how unsure it is. Where one host always comes late that is as much as it is late by; but all
leave a meeting almost together, whoever was late, so the line goes as far towards the one that this tells as the bounds
let it.
"""

from dataclasses import dataclass, replace
from itertools import product

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linprog

from tracekit.analysis.meetings import Floats, Meetings

# Of the bounds the tightest count; so many stretches of time have one of each.
_STRETCHES = 200
# Who comes last leaves a little later or earlier than the others: meetings of both kinds count alike, if a kind has so
# many stretches.
_FEWEST_STRETCHES = 8
_ROUNDED_NS = 1.0  # by which a line may break a bound


@dataclass(frozen=True)
class Clock:
    """To be taken from the times of a host: `offset_ns` at `at_ns`, and `drift` more for each ns since. It may be wrong
    by `unsure_ns` either way; below 0 no straight line fits, and some meetings are left before they are entered."""

    host: str
    at_ns: int
    offset_ns: float
    drift: float
    unsure_ns: float

    def ahead(self, times: NDArray[np.int64]) -> NDArray[np.int64]:
        """By how much the host's clock is ahead at these times of its own, ns."""
        return np.round(self.offset_ns + self.drift * (times - self.at_ns)).astype(np.int64)


def aligned(meetings: Meetings) -> tuple[Meetings, list[Clock]]:
    """The meetings with all times by the clock of the first rank's host, and the clocks of the other hosts; [] where
    there are none."""
    hosts = np.array(meetings.hosts)
    first = hosts == hosts[0]
    at = int(meetings.left[first, 0].max())
    clocks = [
        _clock(host, at, meetings, first, hosts == host) for host in dict.fromkeys(meetings.hosts) if host != hosts[0]
    ]
    entered, left = meetings.entered.copy(), meetings.left.copy()
    for clock in clocks:
        own = hosts == clock.host
        entered[own] -= clock.ahead(entered[own])
        left[own] -= clock.ahead(left[own])
    return replace(meetings, entered=entered, left=left), clocks


def _clock(host: str, at: int, meetings: Meetings, first: NDArray[np.bool_], own: NDArray[np.bool_]) -> Clock:
    entered, left = meetings.entered - at, meetings.left - at
    # In true time nobody of one host leaves before anybody of the other has entered.
    most = (left[own].min(axis=0) - entered[first].max(axis=0)).astype(np.float64)
    least = (entered[own].max(axis=0) - left[first].min(axis=0)).astype(np.float64)
    when = entered[own].max(axis=0).astype(np.float64)
    stretch = _stretches(when)
    upper, lower = _tightest(stretch, most), _tightest(stretch, -least)
    scale = max(float(np.ptp(when)), 1.0)
    middle = float(np.median((most + least) / 2))
    # With t in units of the run's length and differences from `middle`: least + m <= a + b t <= most - m.
    rows = [[1.0, when[each] / scale, 1.0] for each in upper] + [[-1.0, -when[each] / scale, 1.0] for each in lower]
    bounds = [most[each] - middle for each in upper] + [middle - least[each] for each in lower]
    offset, drift, margin = _line(np.array(rows), np.array(bounds))
    if margin > 0:
        together = left[own].mean(axis=0) - left[first].mean(axis=0) - middle
        own_last = entered[own].max(axis=0) - entered[first].max(axis=0) - middle > offset + drift * when / scale
        leaving = _leaving(stretch, own_last, when / scale, together)
        moved = _towards(leaving, np.array([offset, drift]), np.array(rows)[:, :2], np.array(bounds))
        ends = np.array([when.min(), when.max()]) / scale
        offset, drift = moved
        margin = max(margin, _farthest(np.array(rows)[:, :2], np.array(bounds), np.array([offset, drift]), ends))
    return Clock(host, at, middle + offset, drift / scale, margin)


def _leaving(stretch: NDArray[np.int64], own_last: NDArray[np.bool_], when: Floats, together: Floats) -> Floats | None:
    """The a and b of the line a + b t through how much later one host leaves; None where too few say so."""
    points = []
    for last in (False, True):
        of_kind = np.flatnonzero(own_last == last)
        places = [of_kind[stretch[of_kind] == each] for each in np.unique(stretch[of_kind])]
        if len(places) >= _FEWEST_STRETCHES:
            points += [(np.median(when[at]), np.median(together[at]), len(places) ** -0.5) for at in places]
    if not points:
        return None
    times, later, weights = np.array(points).T
    slope, start = np.polyfit(times, later, 1, w=weights)
    return np.array([start, slope])


def _towards(wanted: Floats | None, line: Floats, rows: Floats, bounds: Floats) -> tuple[float, float]:
    """From a line that keeps all bounds as far as possible towards the one that is wanted."""
    if wanted is not None:
        room, taken = bounds - rows @ line, rows @ (wanted - line)
        part = np.divide(room, taken, out=np.ones_like(room), where=taken > room).min()
        line = line + max(min(float(part), 1.0), 0.0) * (wanted - line)
    return float(line[0]), float(line[1])


def _farthest(rows: Floats, bounds: Floats, line: Floats, ends: Floats) -> float:
    """How far another line that keeps all bounds may be from this one, at the begin and the end of the run."""
    apart = [0.0]
    for at, sign in product(ends.tolist(), (-1.0, 1.0)):
        other = linprog(
            [sign, sign * at], A_ub=rows, b_ub=bounds + _ROUNDED_NS, bounds=[(None, None)] * 2, method="highs"
        ).x
        if other is not None:  # where the bounds leave one line alone there may be none for the solver
            apart.append(abs(float((other - line) @ [1.0, at])))
    return max(apart)


def _line(rows: Floats, bounds: Floats) -> tuple[float, float, float]:
    """The a, b and the largest m with rows (a, b, m) <= bounds. Where m would be negative some bounds are wrong, as
    where a thread was kept from its CPU just as it looked at the clock: then the line that breaks the fewest by the
    least, and that m."""
    free = [(None, None)]
    found = linprog([0, 0, -1], A_ub=rows, b_ub=bounds, bounds=free * 3, method="highs").x
    if found[2] < 0:
        slack = -np.eye(len(rows))
        nearest = linprog(
            [0, 0, *np.ones(len(rows))],
            A_ub=np.hstack([rows[:, :2], slack]),
            b_ub=bounds,
            bounds=free * 2 + [(0, None)] * len(rows),
            method="highs",
        ).x
        return float(nearest[0]), float(nearest[1]), float(found[2])
    return float(found[0]), float(found[1]), float(found[2])


def _stretches(when: Floats) -> NDArray[np.int64]:
    length = max(float(np.ptp(when)), 1.0)
    return np.minimum((when - when.min()) / length * _STRETCHES, _STRETCHES - 1).astype(np.int64)


def _tightest(stretch: NDArray[np.int64], bounds: Floats) -> list[int]:
    """The place of the smallest bound of each stretch of time."""
    order = np.lexsort((bounds, stretch))
    return order[np.append(True, np.diff(stretch[order]) > 0)].tolist()
