"""Communication: what each kind of it took a group, waiting and transfer apart, and for how long the loop went on
beside it.

A rank that comes to a collective, or has a bucket of gradients ready, waits for the last one to do so: by what each
comes earlier than that one. What then goes by until it is done is transfer. Nobody looks all the time whether it is
done: it may have been for as long as the record is unsure; but for what the loop waits in.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec
import numpy as np
import pandas as pd

from tracekit.analysis.clocks import Clock
from tracekit.analysis.intervals import Intervals, intersect, union
from tracekit.analysis.loop import WAITED_FOR
from tracekit.analysis.meetings import OF_ALL, Meetings, Times, chosen
from tracekit.analysis.people import Person
from tracekit.run.reader import Run

_TOGETHER = f"""
    SELECT "group", op, coalesce(bucket, -1) AS bucket, sequence, coalesce(ready_ns, start_ns) AS ready_ns,
           start_ns + duration_ns AS done_ns, coalesce(unsure_ns, 0) AS unsure_ns, coalesce(bytes, 0) AS bytes
    FROM collectives
    WHERE op IN {OF_ALL} AND sequence >= 0 AND coalesce(unsure_ns, 0) >= 0 ORDER BY 1, 2, 3, 4
"""
_WAITED = f"""
    SELECT thread, "group", sequence, start_ns, start_ns + duration_ns AS end_ns FROM ({WAITED_FOR})
    WHERE coalesce(unsure_ns, 0) >= 0
"""
_CHANGES = "SELECT thread, start_ns, phase FROM changes ORDER BY start_ns"
# All ranks together look at so many of a group's collectives and buckets, of 32 bytes each; of one kind of a rank no
# fewer than the last.
_MOST, _LEAST = 4_000_000, 100
_KINDS = 200  # that the report has of a group, those that took longest


class CommunicationPart(msgspec.Struct):
    """One op of a group, or one `bucket` of gradients of its backward passes, that all its ranks were seen to do
    together `times` times, of so many `bytes` on average: for how long a rank waited then until the last one had come
    to it, and for how long it took from there, at most, ms on average; it may have been done earlier by `unsure_ms`."""

    op: str
    bucket: int | None
    times: int
    bytes: float
    wait_ms: float
    transfer_ms: float
    unsure_ms: float

    @property
    def name(self) -> str:
        return self.op if self.bucket is None else f"bucket {self.bucket}"


@dataclass(frozen=True)
class Kind:
    """One op of a group, or one `bucket` of its backward passes (-1: none), as a rank has seen it `times` times, of so
    many `size` bytes on average. Of those looked at, by their `sequence` in the group (K), when it was `ready` and
    seen to be `done`, which it was for so long at most (`unsure`), ns."""

    op: str
    bucket: int
    times: int
    size: float
    sequence: Times
    ready: Times
    done: Times
    unsure: Times

    @property
    def of_size(self) -> float:
        """What tells buckets of the same number apart."""
        return self.size if self.bucket >= 0 else -1.0


@dataclass(frozen=True)
class Communication:
    """What a rank did with all others of a group. Something of it was `under_way`, and meanwhile its loop `waited`, for
    this or for other communication, ns, at least and at most."""

    who: Person
    group: str
    kinds: list[Kind]
    under_way: tuple[int, int]
    waited: tuple[int, int]


def communication_of(run: Run, who: Person) -> list[Communication]:
    """That of a rank, by group; [] of other processes. `run` is what was recorded of that process."""
    rows = run.sql(_TOGETHER) if who.rank >= 0 else pd.DataFrame()
    if rows.empty:
        return []
    loop, followed = _followed(run)
    waits = run.sql(_WAITED)
    waits = waits[waits["thread"] == loop] if loop is not None else waits
    awaited = pd.MultiIndex.from_frame(rows[["group", "sequence"]]).isin(
        pd.MultiIndex.from_frame(waits[["group", "sequence"]])
    )
    rows.loc[awaited, "unsure_ns"] = 0
    waited = union(*(waits[name].to_numpy(np.int64) for name in ("start_ns", "end_ns")))
    found = []
    for group, own in rows.groupby("group", observed=True):
        ready, done, unsure = (own[name].to_numpy(np.int64) for name in ("ready_ns", "done_ns", "unsure_ns"))
        least, most = (_within(union(ready, ends), followed) for ends in (done - unsure, done))
        # The buckets of several models, and those of torch's first pass, have the same numbers.
        size = own["bytes"].where(own["bucket"] >= 0, -1)
        of_kind = list(own.groupby(["op", "bucket", size], observed=True))
        count = max(_MOST // max(who.world, 1) // len(of_kind), _LEAST)
        kinds = [_kind(str(op), int(bucket), mine, count) for (op, bucket, _), mine in of_kind]
        beside = intersect(least, waited).total, intersect(most, waited).total
        found.append(Communication(who, str(group), kinds, (least.total, most.total), beside))
    return found


def _followed(run: Run) -> tuple[int | None, Intervals | None]:
    """The thread of the loop, and when its steps were followed: in others it waits without a record. None where nothing
    is known of its phases."""
    changes = run.sql(_CHANGES)
    if changes.empty:
        return None, None
    loop = int(changes["thread"].mode().iloc[0])
    changes = changes[changes["thread"] == loop]
    times, is_followed = changes["start_ns"].to_numpy(np.int64), (changes["phase"] != "").to_numpy()[:-1]
    return loop, union(times[:-1][is_followed], times[1:][is_followed])


def _within(times: Intervals, followed: Intervals | None) -> Intervals:
    return times if followed is None else intersect(times, followed)


def _kind(op: str, bucket: int, rows: pd.DataFrame, most: int) -> Kind:
    rows = rows.drop_duplicates("sequence")
    some = rows.iloc[chosen(rows["sequence"].to_numpy(np.int64), most)]
    times = (some[name].to_numpy(np.int64) for name in ("sequence", "ready_ns", "done_ns", "unsure_ns"))
    return Kind(op, bucket, len(rows), float(rows["bytes"].mean()), *times)


def overlap(members: Sequence[Communication]) -> tuple[float, float] | None:
    """Of the time for which something of a group is under way, the share for which the loops of its ranks go on beside
    it, at least and at most; None where nothing is seen to be."""
    ends = []
    for at in (0, 1):
        under_way = sum(each.under_way[at] for each in members)
        if not under_way:
            return None
        ends.append(1 - sum(each.waited[at] for each in members) / under_way)
    return min(ends), max(ends)


def parts(members: Sequence[Communication], clocks: Sequence[Clock]) -> list[CommunicationPart]:
    """What each kind took the ranks of a group on average, those first that took longest in all, at least; of what all
    of them have seen. Of their hosts' `clocks` all but the first are corrected."""
    ahead = {clock.host: clock for clock in clocks}
    kinds = [{(kind.op, kind.bucket, kind.of_size): kind for kind in each.kinds} for each in members]
    found = []
    for op, bucket, of_size in kinds[0] if kinds else ():
        of_all = [each.get((op, bucket, of_size)) for each in kinds]
        if any(kind is None for kind in of_all):
            continue
        seen = [kind for kind in of_all if kind is not None]
        common = seen[0].sequence
        for kind in seen[1:]:
            common = np.intersect1d(common, kind.sequence)
        if not len(common):
            continue
        ready, done, unsure = np.zeros((3, len(seen), len(common)), dtype=np.int64)
        for at, (kind, each) in enumerate(zip(seen, members, strict=True)):
            places = np.searchsorted(kind.sequence, common)
            ready[at], done[at], unsure[at] = kind.ready[places], kind.done[places], kind.unsure[places]
            if clock := ahead.get(each.who.host):
                ready[at] -= clock.ahead(ready[at])
                done[at] -= clock.ahead(done[at])
        last = ready.max(axis=0)
        found.append(
            CommunicationPart(
                op=op,
                bucket=bucket if bucket >= 0 else None,
                times=min(kind.times for kind in seen),
                bytes=float(np.mean([kind.size for kind in seen])),
                wait_ms=float((last - ready).mean()) / 1e6,
                transfer_ms=float(np.maximum(done - last, 0).mean()) / 1e6,
                unsure_ms=float(np.minimum(unsure, np.maximum(done - last, 0)).mean()) / 1e6,
            )
        )
    return sorted(found, key=lambda part: -part.times * (part.wait_ms + part.transfer_ms - part.unsure_ms))[:_KINDS]


def of_group(everybody: Sequence[Communication], meetings: Meetings) -> list[Communication]:
    """Those of the ranks that met there; [] where not all of them have any."""
    found = [each for each in everybody if each.group == meetings.group and each.who.process in meetings.processes]
    return found if len(found) == len(meetings.processes) else []
