"""Meetings: where the ranks of a group wait for each other, and what each did on its way there.

A rank enters a meeting when it begins a collective that it waits for, or has sent the last bucket of a backward pass,
and leaves when that is done. Nobody leaves before the last one has entered: so what each waited is told by when that
one came, and the rest is transfer. On its way a rank may be held by other communication that it waits in, as for what
one rank gives to all, or for the ranks of another group: it would have come as much earlier, had nobody held it.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from tracekit.analysis.awaited import MAKERS, Awaited, done_until
from tracekit.analysis.loop import WAITED_FOR
from tracekit.analysis.people import Person, find_people, jobs_of
from tracekit.record.wire import WAIT_FOR
from tracekit.run.reader import Run

Floats = NDArray[np.float64]
Times = NDArray[np.int64]

GARBAGE = "GC"
PHASES = ["loading", "forward", "backward", "optimizer", "communication", GARBAGE, "other"]
_HELD = "held"
_UNKNOWN, _KEPT, _ELSEWHERE = len(PHASES), len(PHASES) + 1, len(PHASES) + 2
# All ranks together look at so many meetings of a group, of 1 kB each; where there are more, at some stretches of them:
# so many, or up to twice that. Of each rank no fewer than the last.
_MOST, _STRETCHES, _LEAST = 2_000_000, 8, 1000

# From these nobody goes before all have come; a broadcast's root does, say.
OF_ALL = """('bucket', '_all_gather_base', '_reduce_scatter_base', 'all_gather', 'all_gather_coalesced',
    'all_gather_into_tensor', 'all_gather_object', 'all_gather_single', 'all_reduce', 'all_reduce_coalesced',
    'all_to_all', 'all_to_all_single', 'barrier', 'monitored_barrier', 'reduce_scatter', 'reduce_scatter_single',
    'reduce_scatter_tensor')"""
# What a rank waits in until it is done. What it waits for later than it has begun it, it has entered before it waits.
_WAITED_IN = f"""
    SELECT thread, waited."group", coalesce(begun.start_ns, waited.start_ns) AS entered_ns,
           waited.start_ns AS waits_ns, waited.start_ns + duration_ns AS left_ns,
           CASE WHEN coalesce(begun.op, waited.op) IN {OF_ALL}
                THEN coalesce(begun.sequence, waited.sequence) ELSE -1 END AS sequence,
           coalesce(begun.bytes, waited.bytes, 0) AS bytes
    FROM ({WAITED_FOR}) AS waited LEFT JOIN (
        SELECT process, ready_ns, start_ns, op, sequence, bytes FROM collectives
        WHERE is_async AND coalesce(bucket, -1) < 0
    ) AS begun
    ON begun.process = waited.process AND begun.ready_ns = waited.ready_ns AND waited.op = '{WAIT_FOR}' || begun.op
    WHERE coalesce(unsure_ns, 0) >= 0 ORDER BY 2, 6, 3
"""
# What nobody sees the end of, as on devices: a rank may wait for it anywhere behind, but for what it sends.
_NOT_SEEN = """
    SELECT ready_ns FROM collectives
    WHERE unsure_ns < 0 AND op NOT IN ('send', 'isend', 'send_object_list') AND ready_ns IS NOT NULL ORDER BY 1
"""
# So many meetings that cannot be are no sign that ranks count unlike.
_BY_ACCIDENT, _BY_ACCIDENT_SHARE = 3, 0.05
_COLLECTIONS = "SELECT start_ns, start_ns + duration_ns FROM spans WHERE kind = 'garbage' ORDER BY start_ns"


@dataclass(frozen=True)
class Way:
    """How a rank came to those of its group's meetings that it has a record of, or the share `looked_at` of them, by
    the number of the `stretch` (K): their `sequence` in the group, when it `entered`, `waits` and `left` (K), how many
    `bytes` it brought (K), and what it had `done` by each, as in `_Path`, NaN where that was not followed; and what it
    had `awaited` by then (K, 2), as in `Awaited`."""

    who: Person
    group: str
    looked_at: float
    stretch: Times
    sequence: Times
    entered: Times
    waits: Times
    left: Times
    bytes: Times
    done_entering: Floats
    done_waiting: Floats
    done_leaving: Floats
    awaited_entering: Floats
    awaited_leaving: Floats


@dataclass(frozen=True)
class Meetings:
    """The meetings of one group in one attempt of the job, by their `sequence` among all that the group has done
    together (K): `ranks` (N), their `hosts` (N), and by rank and meeting (N, K) when it `entered` and `left`, Unix time
    in ns, and for how long it went on `beside` it before it waited. `seen` (K): whether everything from the one before
    on was recorded, and no step left out; of the first one it is not. `own`, (N, K, phase), ns: what the rank took from
    leaving the one before to entering it, and before beside that one, in the order of `PHASES`, less the time for which
    it was kept from its CPU, `kept` (N, K), or `held` by other communication (N, K); of it, (N, K, phase), it was
    `blocked` and did not compute, as where it sleeps or waits for storage. NaN where that was not followed, as before
    the first meeting. Of its loading, who made the batches took so much for each of `MAKERS`, `awaited` (N, K, 2). What
    it did beside each meeting is told by itself, too: `besides` (N, K, phases and then kept). Of very many
    meetings they are the share `looked_at`. The ranks' times are those of their `clocks`, as in `Person`. Each rank
    brings so many `bytes` to a meeting (K), where it is told."""

    group: str
    attempt: int
    ranks: list[int]
    hosts: list[str]
    sequence: Times
    seen: NDArray[np.bool_]
    entered: Times
    beside: Times
    left: Times
    own: Floats
    blocked: Floats
    kept: Floats
    held: Times
    awaited: Floats
    besides: Floats
    looked_at: float = 1.0
    processes: Sequence[int] = ()  # of the ranks
    clocks: Sequence[tuple[str, int]] = ()
    bytes: Times | None = None

    @property
    def came(self) -> Times:
        """When each rank would have entered, had nothing held it on its way (N, K)."""
        return self.entered - self.held

    @property
    def last(self) -> NDArray[np.intp]:
        """Who came last, by meeting: the place of the rank in `ranks`."""
        return self.came.argmax(axis=0)

    @property
    def stretches(self) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
        """From which meetings to which others everything was recorded."""
        before = np.append(self.seen[1:], False)
        return np.flatnonzero(before & ~self.seen), np.flatnonzero(self.seen & ~before)

    @property
    def followed(self) -> NDArray[np.bool_]:
        """Of which meetings it is known of all ranks what they did on their way (K)."""
        return np.asarray(~sum(np.isnan(own).any(axis=1) for own in self.own).astype(bool))

    @property
    def waited(self) -> Times:
        """For how long each rank waited for the last one (N, K), there or where it was held before, ns."""
        return np.maximum(self.came.max(axis=0) - self.came - self.beside, 0)

    @property
    def is_possible(self) -> bool:
        """Whether nobody leaves before the last one has entered, as it is where all count alike what they do together:
        told of the ranks on each host, which have one clock."""
        hosts = np.array(self.hosts)
        of_hosts = [hosts == host for host in dict.fromkeys(self.hosts)]
        return all(may_have_one_clock(self.entered[here], self.left[here]) for here in of_hosts)

    @property
    def transfer(self) -> Times:
        """What went by from when the last one came, and each waited, until it left (N, K), ns."""
        return np.maximum(self.left - np.maximum(self.came.max(axis=0), self.came + self.beside), 0)


def may_have_one_clock(entered: Times, left: Times) -> bool:
    """Whether nobody leaves a meeting before the last one has entered it (N, K), but by accident."""
    too_early = np.count_nonzero(left.min(axis=0) < entered.max(axis=0))
    return too_early <= max(_BY_ACCIDENT, _BY_ACCIDENT_SHARE * left.shape[1])


def find_ways(run: Run, who: Person) -> list[Way]:
    """Those of a rank, by group; [] of other processes. `run` is what was recorded of that process; of its loaders'
    workers is asked what they did for it."""
    waits = run.sql(_WAITED_IN) if who.rank >= 0 else pd.DataFrame()
    met = waits[waits["sequence"] >= 0].drop_duplicates(["group", "sequence"]) if len(waits) else waits
    if met.empty:
        return []
    with_workers = run.of(who.process, *who.workers) if who.workers else run
    path, awaited = _Path.of(run), Awaited.of(with_workers, who.process)
    path = replace(path, unseen=run.sql(_NOT_SEEN)["ready_ns"].to_numpy(np.int64))
    on_path = waits[waits["thread"] == path.thread]
    found = []
    for group, rows in met.groupby("group"):
        # Where all ranks wait in the call itself, each has met the others; what it has waited for later others may not
        # have waited for.
        meets = (
            (on_path["group"] == group) & (on_path["sequence"] >= 0) & (on_path["waits_ns"] == on_path["entered_ns"])
        )
        held = path.held_by(on_path.loc[~meets, ["waits_ns", "left_ns"]])
        found.append(_way(who, str(group), rows, held, awaited))
    return found


def chosen(sequence: Times, most: int) -> NDArray[np.intp]:
    """The places of those meetings that are looked at, where there are more than so many: the same stretches on all
    ranks, each of which chooses by itself; who has a record of more meetings chooses a part of what the others do."""
    if len(sequence) <= most:
        return np.arange(len(sequence))
    # Powers of two: ranks that lack some meetings come to the same, or to a part of it; so they mostly do where they
    # lack the last ones.
    period = 2 ** max(int(np.log2((sequence[-1] + 1) / _STRETCHES)), 0)
    every = 2 ** int(np.ceil(np.log2(len(sequence) / most)))
    places = np.flatnonzero(sequence % period < max(period // every, 1))[: 2 * most]
    return places if len(places) else np.arange(most)  # all may have met at once, between two stretches, or in one


def _way(who: Person, group: str, rows: pd.DataFrame, path: "_Path", awaited: Awaited) -> Way:
    places = chosen(rows["sequence"].to_numpy(np.int64), max(_MOST // max(who.world, 1), _LEAST))
    looked_at, stretch = len(places) / len(rows), np.cumsum(np.diff(places, prepend=-1) > 1, dtype=np.int64)
    rows = rows.iloc[places]
    names = ("sequence", "entered_ns", "waits_ns", "left_ns", "bytes")
    sequence, came, waits, went, brought = (rows[name].to_numpy(np.int64) for name in names)
    entering, leaving = path.until(came), path.until(went)
    waiting = entering if np.array_equal(came, waits) else path.until(waits)
    of_makers = awaited.until(came), awaited.until(went)
    times = came, waits, went
    return Way(who, group, looked_at, stretch, sequence, *times, brought, entering, waiting, leaving, *of_makers)


def find_meetings(run: Run) -> Iterator[Meetings]:
    """The meetings of every group of at least two ranks, those that met most often first."""
    people = find_people(run)
    ranks = [who for who in people if not who.is_loader_worker]
    return meetings_of([way for who in ranks for way in find_ways(run.of(who.process), who)], people)


def meetings_of(ways: Sequence[Way], people: Sequence[Person]) -> Iterator[Meetings]:
    """Where the ranks of each group met, the groups that met most often first. Meetings that a rank of the group has no
    record of are left out: its way to the next one began at the one before."""
    jobs = jobs_of(people)
    groups: dict[tuple[tuple[int, int, int], str], list[Way]] = {}
    for way in ways:
        groups.setdefault((jobs[way.who.process], way.group), []).append(way)
    often = sorted(sorted(groups.items()), key=lambda each: -sum(len(way.sequence) / way.looked_at for way in each[1]))
    for ((attempt, _, _), group), members in often:
        common = reduce(np.intersect1d, [way.sequence for way in members])
        if len(members) > 1 and len(common):
            yield _meetings(group, attempt, sorted(members, key=lambda way: way.who.rank), _apart(members, common))


def _apart(members: Sequence[Way], common: Times) -> Times:
    """Of the meetings that all have a record of, those that all have left before they enter the next one: of what a
    program has begun at once, and waits for in any order, they meet in the last."""
    places = [np.searchsorted(way.sequence, common) for way in members]
    entered, left = (
        np.stack([times[at] for times, at in zip(each, places, strict=True)])
        for each in ([way.entered for way in members], [way.left for way in members])
    )
    if (left[:, :-1] <= entered[:, 1:]).all():
        return common
    is_apart, following = np.ones(len(common), dtype=bool), entered[:, -1]
    for at in range(len(common) - 2, -1, -1):
        is_apart[at] = (left[:, at] <= following).all()
        following = entered[:, at] if is_apart[at] else following
    return common[is_apart]


def _meetings(group: str, attempt: int, members: list[Way], common: Times) -> Meetings:
    entered, left = np.zeros((2, len(members), len(common)), dtype=np.int64)
    own, blocked = np.full((2, *entered.shape, len(PHASES)), np.nan)
    kept, awaited = np.full(entered.shape, np.nan), np.zeros((*entered.shape, len(MAKERS)))
    held, beside = np.zeros_like(entered), np.zeros_like(entered)
    besides = np.broadcast_to(0.0, (*entered.shape, len(PHASES) + 1))  # one number, where nobody does anything
    if goes_on := any((way.waits != way.entered).any() for way in members):
        besides = besides.copy()
    seen = np.arange(len(common)) > 0
    for at, way in enumerate(members):
        places = np.searchsorted(way.sequence, common)
        entered[at], left[at] = way.entered[places], way.left[places]
        went_on = way.done_waiting[places] - way.done_entering[places]
        went_on[way.waits[places] == way.entered[places]] = 0.0
        beside[at] = way.waits[places] - way.entered[places] - np.nan_to_num(went_on[:, _ELSEWHERE, 0]).round()
        if goes_on:
            besides[at, :, :-1], besides[at, :, -1] = went_on[:, : len(PHASES), 0], went_on[:, _KEPT, 0]
        took = way.done_entering[places[1:]] - way.done_leaving[places[:-1]]
        held[at, 1:] = np.nan_to_num(took[:, _ELSEWHERE, 0]).round()
        took += went_on[:-1]
        left_out = (took[:, _UNKNOWN, 0] > 0) | (np.diff(way.stretch[places]) > 0)
        took[left_out], seen[1:] = np.nan, seen[1:] & ~left_out
        held[at, 1:][left_out] = 0
        own[at, 1:], blocked[at, 1:] = took[:, : len(PHASES), 0], took[:, : len(PHASES), 1]
        kept[at, 1:] = took[:, _KEPT, 0]
        awaited[at, 1:] = way.awaited_entering[places[1:]] - way.awaited_leaving[places[:-1]]
    ranks, hosts = [way.who.rank for way in members], [way.who.host for way in members]
    are_all = all(way.looked_at == 1 for way in members)
    looked_at = 1.0 if are_all else len(common) / max(len(way.sequence) / way.looked_at for way in members)
    return Meetings(
        group, attempt, ranks, hosts, common, seen, entered, beside, left, own, blocked, kept, held, awaited, besides,
        looked_at, [way.who.process for way in members], [way.who.clock for way in members],
        np.min([way.bytes[np.searchsorted(way.sequence, common)] for way in members], axis=0),
    )  # fmt: skip


@dataclass(frozen=True)
class _Path:
    """What the loop of a rank, on its `thread`, had done by each change of phase, ns (changes, phases + 3, 2): its own
    time in each phase, and for how long it was blocked in it; then the same where the phase is not known; for how long
    it had been kept from its CPU; and held. While Python collects all garbage nothing else runs: that is a phase of its
    own. `unseen` (n): when it began what it may wait for anywhere behind, and nobody sees."""

    changes: pd.DataFrame
    thread: int
    times: Times
    done: Floats
    unseen: Times = field(default_factory=lambda: np.zeros(0, dtype=np.int64))

    @classmethod
    def of(cls, run: Run) -> "_Path":
        rows, thread = run.sql("SELECT thread, start_ns, phase, cpu_ns, delayed_ns FROM changes ORDER BY start_ns"), -1
        if len(rows):  # one process may have made several loops, on several threads: the busiest counts
            thread = int(rows["thread"].mode().iloc[0])
            rows = with_parts(rows[rows["thread"] == thread], run.sql(_COLLECTIONS).to_numpy(np.int64), GARBAGE)
        return cls._through(rows, thread)

    def held_by(self, waits: pd.DataFrame) -> "_Path":
        """The same, of which it was held for some time (n, from and to: ns)."""
        if waits.empty or self.changes.empty:
            return self
        held = self._through(with_parts(self.changes, waits.to_numpy(np.int64), _HELD), self.thread)
        return replace(held, unseen=self.unseen)

    @classmethod
    def _through(cls, rows: pd.DataFrame, thread: int) -> "_Path":
        places = {name: place for place, name in enumerate(PHASES)} | {_HELD: _ELSEWHERE}
        phase = np.array([places.get(str(name), _UNKNOWN) for name in rows["phase"]], dtype=np.intp)[:-1]
        times, delayed, cpu = (rows[name].to_numpy(np.int64) for name in ("start_ns", "delayed_ns", "cpu_ns"))
        took = np.diff(times).astype(np.float64)
        is_known = (delayed[:-1] >= 0) & (delayed[1:] >= 0)
        kept = np.where(is_known, np.clip(np.diff(delayed), 0, took), 0.0)
        done = np.zeros((len(times), _ELSEWHERE + 1, 2))
        if len(times):
            after = np.arange(1, len(times))
            done[after, phase, 0] = took - kept
            done[after, phase, 1] = np.maximum(took - kept - np.diff(cpu), 0.0)
            done[after, _KEPT, 0] = kept
        return cls(rows, thread, times, done.cumsum(axis=0))

    def until(self, moments: Times) -> Floats:
        """What it had done by each moment (n, phases + 3, 2), as within a phase it does it evenly; NaN where it was not
        followed yet, or not any more. Behind something unseen it is not known."""
        if len(self.times) < 2:
            return np.full((len(moments), *self.done.shape[1:]), np.nan)
        found = done_until(self.times, self.done, moments)
        is_after = moments > self.times[-1]
        found[(moments < self.times[0]) | is_after] = np.nan
        if not self.changes["phase"].iloc[-1]:  # the steps to come are left out
            found[is_after] = self.done[-1]
            found[is_after, _UNKNOWN, 0] += moments[is_after] - self.times[-1]
        found[:, _UNKNOWN, 0] += np.searchsorted(self.unseen, moments, "right")
        return found


def _cut(parts: Times, changes: Times) -> Times:
    """Parts (n, from and to) that end where a phase changes, and go on behind that; what overlaps counts once."""
    cuts = np.unique(np.concatenate([parts.ravel(), changes]))
    begun, ended = np.sort(parts[:, 0]), np.sort(parts[:, 1])
    is_inside = np.searchsorted(begun, cuts[:-1], "right") > np.searchsorted(ended, cuts[:-1], "right")
    return np.stack([cuts[:-1], cuts[1:]], axis=1)[is_inside]


def with_parts(changes: pd.DataFrame, parts: Times, phase: str) -> pd.DataFrame:
    """Changes of phase, and those to and from parts of a phase (n, from and to: ns) that are another one, as to collect
    garbage. A part computes as long as the thread did at most; what else it did, it did evenly over the rest of its
    phase."""
    times, cpu, delayed = (changes[name].to_numpy(np.int64) for name in ("start_ns", "cpu_ns", "delayed_ns"))
    phases, thread = changes["phase"].to_numpy(), changes["thread"].iloc[0]
    before: dict[int, tuple[int, int, int]] = {}  # the last change in the midst of a phase, by the place of that
    more = []
    cut = _cut(parts, times)
    places = np.searchsorted(times, cut[:, 0], "right") - 1
    in_phase = (places >= 0) & (places < len(times) - 1) & np.isin(phases, PHASES)[places]
    for (start, end), at in zip(cut[in_phase].tolist(), places[in_phase].tolist(), strict=True):
        began, had_cpu, had_waited = before.get(at, (int(times[at]), int(cpu[at]), int(delayed[at])))
        end = min(end, int(times[at + 1]))
        computed = max(min(end - start, int(cpu[at + 1]) - had_cpu), 0)
        rest = int(times[at + 1]) - began - (end - start)
        share = (start - began) / rest if rest > 0 else 0.0
        cpu_then = had_cpu + round((int(cpu[at + 1]) - had_cpu - computed) * share)
        is_known = had_waited >= 0 and delayed[at + 1] >= 0
        waited_then = had_waited + round((int(delayed[at + 1]) - had_waited) * share) if is_known else -1
        more.append((thread, start, phase, cpu_then, waited_then))
        if end < times[at + 1]:
            more.append((thread, end, phases[at], cpu_then + computed, waited_then))
        before[at] = end, cpu_then + computed, waited_then
    columns = ["thread", "start_ns", "phase", "cpu_ns", "delayed_ns"]
    both = pd.concat([changes[columns], pd.DataFrame(more, columns=columns)]) if more else changes
    return both.sort_values("start_ns", kind="stable")
