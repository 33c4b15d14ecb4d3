"""Clocks of several hosts: by how much each is ahead of the first one, told by what must have come before what.

Nobody leaves a meeting before the last one has entered it. Each meeting of two hosts so gives a lower and an upper
bound for the difference of their clocks. A straight line (offset and drift) is put between them, as far from all of
them as can be (a linear programme; cf. Doleschal et al. 2008, who interpolate and then correct): how far another line
between them may be is how unsure it is. Where one host always comes late that is as much as it is late by; but all
leave a meeting almost together, whoever was late, if that is quick, so the line goes as far towards the one that this
tells as the bounds let it. Clocks drift otherwise as they get warm or are set right: where no straight line fits it has
several pieces. Hosts of one kernel, as supervisors beside each other on a node, have one clock, and what each added to
it for Unix time is known: of these no line is asked, unless some of their meetings could not be then (a time namespace
has a clock of its own).
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from scipy.optimize import linprog

from tracekit.analysis.meetings import Floats, Meetings, Times, may_have_one_clock

# Of the bounds the tightest count; so many stretches of meetings have one of each.
_STRETCHES = 200
# Where no straight line fits it has twice as many pieces as it takes, if there are enough of these stretches in each:
# as many would hardly fit, and be the worse known the surer they seem.
_PIECES = (4, 8, 16)
# Who comes last leaves a little later or earlier than the others, and always by as much: meetings of a kind count if
# there are some in so many stretches; of all there are, so many at most.
_FEWEST_STRETCHES, _MOST_MEETINGS = 8, 2000
# Those of them tell that were the quickest by the clock of who came last: of nine recordings (1 to 6 s) of two hosts,
# of one machine, two thirds of them were wrong by 3 to 56 us, means of all by 260 to 640.
_QUICK = 2 / 3
# What is too small to be parted one rank has before the others, whoever came last: one or two numbers of two hosts
# misled by 28 to 86 us in ten recordings, 8 numbers and more by 0 to 16 in thirteen. They count if all are so.
_PARTED_BYTES = 16  # for each rank
_LITTLE = 1e-6  # what it costs to leave 0, of what it is worth to be near
_ROUNDED_NS = 1.0  # by which a line may break a bound


@dataclass(frozen=True)
class Clock:
    """To be taken from the times of a host: `offsets_ns` at the times `at_ns` of its own (2 or more), and what lies on
    straight lines through these. It may be wrong by `unsure_ns` either way; below 0 no line fits, and some meetings are
    left before they are entered."""

    host: str
    at_ns: Times
    offsets_ns: Floats
    unsure_ns: float

    @property
    def offset_ns(self) -> float:
        """By how much it was ahead at first."""
        return float(self.offsets_ns[0])

    @property
    def drift(self) -> float:
        """How much further it went for each ns, on average."""
        return float((self.offsets_ns[-1] - self.offsets_ns[0]) / (self.at_ns[-1] - self.at_ns[0]))

    def further(self, host: str, ahead_ns: int) -> "Clock":
        """That of another host, which is always ahead of it by so much."""
        return Clock(host, self.at_ns + ahead_ns, self.offsets_ns + ahead_ns, self.unsure_ns)

    def ahead(self, times: Times) -> Times:
        """By how much the host's clock is ahead at these times of its own, ns."""
        piece = np.clip(np.searchsorted(self.at_ns, times) - 1, 0, len(self.at_ns) - 2)
        slope = np.diff(self.offsets_ns) / np.diff(self.at_ns)
        return np.round(self.offsets_ns[piece] + slope[piece] * (times - self.at_ns[piece])).astype(np.int64)


def aligned(meetings: Meetings) -> tuple[Meetings, list[Clock]]:
    """The meetings with all times by the clock of the first rank's host, and the clocks of the other hosts; [] where
    there are none."""
    hosts = np.array(meetings.hosts)
    known = _known(meetings)
    told_by = np.array([known[host][0] for host in meetings.hosts])
    ahead = np.array([known[host][1] for host in meetings.hosts])[:, None]
    of_kernels = replace(meetings, entered=meetings.entered - ahead, left=meetings.left - ahead)
    first = told_by == hosts[0]
    at = int(of_kernels.left[first, 0].max())
    of_first = {hosts[0]: Clock(hosts[0], at + np.arange(2), np.zeros(2), 0.0)}
    for host in dict.fromkeys(told_by[~first].tolist()):
        of_first[host] = _clock(host, at, of_kernels, first, told_by == host)
    clocks = [of_first[by].further(host, ahead_ns) for host, (by, ahead_ns) in known.items() if host != hosts[0]]
    entered, left = meetings.entered.copy(), meetings.left.copy()
    for clock in clocks:
        own = hosts == clock.host
        entered[own] -= clock.ahead(entered[own])
        left[own] -= clock.ahead(left[own])
    return replace(meetings, entered=entered, left=left), clocks


def _known(meetings: Meetings) -> dict[str, tuple[str, int]]:
    """By host, the first one whose clock it has, and by how much it is ahead of that one, ns: those of one kernel have
    one clock, if their meetings can be then."""
    hosts = np.array(meetings.hosts)
    known = {host: (host, 0) for host in meetings.hosts}
    firsts: dict[str, tuple[str, int]] = {}  # by boot: the first host, and what it added
    for host, (boot, added) in dict(zip(meetings.hosts, meetings.clocks, strict=False)).items():
        first, added_first = firsts.setdefault(boot or host, (host, added))
        if host != first:
            further, together = added - added_first, np.isin(hosts, (first, host))
            ahead = np.where(hosts[together] == host, further, 0)[:, None]
            if may_have_one_clock(meetings.entered[together] - ahead, meetings.left[together] - ahead):
                known[host] = first, further
    return known


def _clock(host: str, at: int, meetings: Meetings, first: NDArray[np.bool_], own: NDArray[np.bool_]) -> Clock:
    entered, left = meetings.entered - at, meetings.left - at
    # In true time nobody of one host leaves before anybody of the other has entered.
    most = (left[own].min(axis=0) - entered[first].max(axis=0)).astype(np.float64)
    least = (entered[own].max(axis=0) - left[first].min(axis=0)).astype(np.float64)
    when = entered[own].max(axis=0)
    begin, length = int(when.min()), max(int(np.ptp(when)), 1)
    share = (when - begin) / length  # of the run
    stretch = np.arange(len(when)) * _STRETCHES // max(len(when), _STRETCHES)
    upper, lower = _tightest(stretch, most), _tightest(stretch, -least)
    middle = float(np.median((most + least) / 2))
    bounds = np.concatenate([most[upper] - middle, middle - least[lower]])

    def rows(pieces: int) -> Floats:
        return np.concatenate([_weights(share[upper], pieces), -_weights(share[lower], pieces)])

    straight, unsure = _line(rows(1), bounds)
    line = straight
    for pieces in (each for each in _PIECES if unsure <= 0):
        if _fewest(stretch, np.minimum(share * pieces, pieces - 1).astype(np.int64), pieces) >= _FEWEST_STRETCHES:
            _, fits = _line(rows(pieces // 2), bounds)
            line, unsure = _line(rows(pieces), bounds) if fits > 0 else (straight, unsure)
    if unsure > 0:
        of_ends = _weights(share, len(line) - 1)
        own_last = entered[own].max(axis=0) - entered[first].max(axis=0) - middle > of_ends @ line
        # Who goes on beside a meeting for longer than it waits there leaves it when it comes back, and not with others.
        some = _parted(meetings, stretch)
        if len(some) > _MOST_MEETINGS:  # at random: buckets of a step come in turns
            some = np.sort(np.random.default_rng(0).choice(some, _MOST_MEETINGS, replace=False))
        waits = (left - entered >= 2 * meetings.beside)[:, some]
        sides = [(entered[side].max(axis=0)[some], _usual(left[side][:, some], waits[side])) for side in (own, first)]
        wanted = _leaving(sides, own_last[some], stretch[some], of_ends[some], line, middle)
        line = _towards(wanted, line, rows(len(line) - 1), bounds)
        unsure = max(unsure, _farthest(rows(len(line) - 1), bounds, line))
    return Clock(host, at + begin + np.linspace(0, length, len(line)).astype(np.int64), middle + line, unsure)


def _parted(meetings: Meetings, stretch: NDArray[np.int64]) -> NDArray[np.intp]:
    """The places of those meetings to which each rank brings enough for all to have a part; all, if these are few."""
    if meetings.bytes is not None:
        places = np.flatnonzero(meetings.bytes >= _PARTED_BYTES * len(meetings.ranks))
        if len(np.unique(stretch[places])) >= _FEWEST_STRETCHES:
            return places
    return np.arange(len(stretch))


def _usual(times: Times, of: NDArray[np.bool_]) -> Floats:
    """The median time of some ranks, by meeting (K); nan where there are none."""
    is_known = of.any(axis=0)
    found = np.full(times.shape[1], np.nan)
    found[is_known] = np.nanmedian(np.where(of, times, np.nan)[:, is_known], axis=0)
    return found


def _weights(share: Floats, pieces: int) -> Floats:
    """How much each end of a piece counts at some shares of the run (n, pieces + 1)."""
    ends = np.linspace(0, 1, pieces + 1)
    return np.maximum(1 - np.abs(share[:, None] - ends) * pieces, 0.0)


def _fewest(stretch: NDArray[np.int64], piece: NDArray[np.int64], pieces: int) -> int:
    """How many stretches the piece has that has the fewest."""
    both = np.unique(np.stack([stretch, piece]), axis=1)
    return int(np.bincount(both[1], minlength=pieces).min())


def _leaving(
    sides: Sequence[tuple[Floats, Floats]],
    own_last: NDArray[np.bool_],
    stretch: NDArray[np.int64],
    weights: Floats,
    line: Floats,
    middle: float,
) -> Floats:
    """The line by which both hosts leave together, when that is quick, as the clock of the one that came last tells: in
    between come others on the CPUs, which make one leave late. As the `line` where too few say so. `sides`: when the
    last rank of a host came to each meeting, and its ranks left (K)."""
    (own_came, own_left), (first_came, first_left) = sides
    later, quick = own_left - first_left - middle - weights @ line, np.zeros(len(own_last), dtype=np.bool_)
    for is_last, stayed in ((own_last, own_left - own_came), (~own_last, first_left - first_came)):
        known = np.flatnonzero(is_last & np.isfinite(later))
        if len(np.unique(stretch[known])) >= _FEWEST_STRETCHES:
            for part in np.array_split(known, _FEWEST_STRETCHES):
                quick[part] = stayed[part] <= np.quantile(stayed[part], _QUICK)
    if not quick.any():
        return line
    kinds = [np.where(own_last, 1.0, -1.0)[quick]] if len(np.unique(own_last[quick])) == 2 else []
    found = _nearest(np.column_stack([weights[quick], *kinds]), later[quick])
    return np.asarray(line + found[: len(line)])


def _nearest(rows: Floats, values: Floats) -> Floats:
    """The x of which `rows @ x` is nearest to the values by the sum of the distances, which a few far ones hardly move;
    0 where no row has a say."""
    (count, width), scale = rows.shape, max(float(np.abs(values).max()), 1.0)
    cost = np.concatenate([np.full(2 * width, _LITTLE), np.full(2 * count, 1 / count)])
    each, apart = sparse.csr_array(rows), sparse.eye_array(count)
    found = linprog(cost, A_eq=sparse.hstack([each, -each, apart, -apart]), b_eq=values / scale, method="highs").x
    return np.asarray(found[:width] - found[width : 2 * width]) * scale


def _towards(wanted: Floats, line: Floats, rows: Floats, bounds: Floats) -> Floats:
    """From a line that keeps all bounds as far as possible towards the one that is wanted."""
    room, taken = bounds - rows @ line, rows @ (wanted - line)
    part = np.divide(room, taken, out=np.ones_like(room), where=taken > room).min()
    return np.asarray(line + max(min(float(part), 1.0), 0.0) * (wanted - line))


def _farthest(rows: Floats, bounds: Floats, line: Floats) -> float:
    """How far another line that keeps all bounds may be from this one, at an end of a piece."""
    apart, free = [0.0], [(None, None)] * len(line)
    for at, sign in product(range(len(line)), (-1.0, 1.0)):
        wanted = np.zeros(len(line))
        wanted[at] = sign
        other = linprog(wanted, A_ub=rows, b_ub=bounds + _ROUNDED_NS, bounds=free, method="highs").x
        if other is not None:  # where the bounds leave one line alone there may be none for the solver
            apart.append(abs(float(other[at] - line[at])))
    return max(apart)


def _line(rows: Floats, bounds: Floats) -> tuple[Floats, float]:
    """The line, by its ends of pieces, and the largest m with rows @ line + m <= bounds. Where m would be negative some
    bounds are wrong, as where a thread was kept from its CPU just as it looked at the clock: then the line that breaks
    the fewest by the least, and that m."""
    ends, free = rows.shape[1], (None, None)
    with_margin = np.hstack([rows, np.ones((len(rows), 1))])
    found = linprog([0] * ends + [-1], A_ub=with_margin, b_ub=bounds, bounds=[free] * (ends + 1), method="highs").x
    if found[-1] >= 0:
        return found[:-1], float(found[-1])
    nearest = linprog(
        [0] * ends + [1] * len(rows),
        A_ub=np.hstack([rows, -np.eye(len(rows))]),
        b_ub=bounds,
        bounds=[free] * ends + [(0, None)] * len(rows),
        method="highs",
    ).x
    return nearest[:ends], float(found[-1])


def _tightest(stretch: NDArray[np.int64], bounds: Floats) -> list[int]:
    """The place of the smallest bound of each stretch of time."""
    order = np.lexsort((bounds, stretch))
    return order[np.append(True, np.diff(stretch[order]) > 0)].tolist()
