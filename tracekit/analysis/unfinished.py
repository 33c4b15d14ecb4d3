"""Communication that never ended: who was in it, and who never came."""

from collections.abc import Iterable
from typing import Any

import msgspec
import pandas as pd

from tracekit.analysis.people import find_people, jobs_of
from tracekit.record.wire import ALL_USED, PASSED, SOME_UNUSED, USED
from tracekit.run.manifest import LAST_SECONDS
from tracekit.run.reader import Run

# The ranks of a run. `launch`: a program may start all of them again, as other processes, or as more or fewer.
_RANKS = """
    SELECT process, rank, attempt, concat(world, ':', again) AS launch
    FROM (VALUES {who}) AS people(process, rank, attempt, world, again)
"""
_IN_IT = f"""
    SELECT attempt, launch, "group", sequence, list(DISTINCT {{{{'op': op, 'rank': who.rank}}}}) AS inside
    FROM reached JOIN ({_RANKS}) AS who ON who.process = reached.process
    WHERE NOT is_over AND sequence >= 0 GROUP BY attempt, launch, "group", sequence
    -- Who was in buckets that went past us, and came to less than others, was about to come to the next one.
    QUALIFY min(op) <> '{PASSED}' OR sequence = max(sequence) OVER (PARTITION BY attempt, launch, "group")
    ORDER BY ALL
"""
_REACHED = f"""
    SELECT attempt, launch, "group", who.rank, max(sequence) AS sequence
    FROM (
        SELECT process, "group", sequence FROM collectives
        UNION ALL SELECT process, "group", sequence FROM reached
        UNION ALL SELECT process, 'world', -1 FROM processes WHERE rank >= 0
    ) AS done
    JOIN ({_RANKS}) AS who ON who.process = done.process GROUP BY ALL
"""


class NeverEnded(msgspec.Struct):
    """Communication that `ranks` were in when they came to their end, number `sequence` of the group. `missing` ranks
    of the group never came to it: each with the number of what it came to last. `unlike`: where not all were in the
    same, which ranks were in which. Where the run is being recorded (`hanging`) they have been in it for `for_s`, and
    `unseen` ranks were not seen to be in it."""

    group: str
    attempt: int
    op: str
    sequence: int
    ranks: list[int]
    missing: list[tuple[int, int]]
    unlike: dict[str, list[int]] = {}
    for_s: float | None = None
    unseen: list[int] = []


def never_ended(run: Run) -> pd.DataFrame:
    """What ranks were in when they came to their end: `attempt`, `group`, `sequence`, the `ranks` in each `op`, and
    those of the group that never came, `missing`: a list of (rank, the number of what it came to last); or that were
    not seen to, `unseen`, as the recording of their host has no end."""
    people = find_people(run)
    jobs = jobs_of(people)
    ranks = [(who.process, who.rank, *jobs[who.process]) for who in people if who.process in jobs]
    if not ranks:
        return pd.DataFrame()
    who = ", ".join(map(str, ranks))  # numbers
    found = run.sql(_IN_IT.format(who=who))
    if found.empty:
        return found
    reached = run.sql(_REACHED.format(who=who))
    cut_off = {
        manifest.host
        for manifest in run.manifests
        if manifest.ended_ns is None or any(note.what == LAST_SECONDS for note in manifest.missing)
    }
    untold = {(who.attempt, who.rank) for who in people if who.host in cut_off}
    missing, unseen = [], []
    for row in found.itertuples():
        same = reached[(reached[["attempt", "launch", "group"]] == [row.attempt, row.launch, row.group]).all(axis=1)]
        behind = same[same["sequence"] < row.sequence].sort_values("rank")
        ranks_behind = [(int(each.rank), int(each.sequence)) for each in behind.itertuples()]
        missing.append([each for each in ranks_behind if (row.attempt, each[0]) not in untold])
        unseen.append([rank for rank, _ in ranks_behind if (row.attempt, rank) in untold])
    return found.assign(missing=missing, unseen=unseen, ranks=[by_op(each) for each in found["inside"]])


def by_op(inside: Iterable[dict[str, Any]]) -> dict[str, list[int]]:
    """The ranks in each op. Buckets that went past us are what others have seen begin, or about to be; and what a rank
    tells of its unused parameters is one op, whatever it tells."""
    found: dict[str, list[int]] = {}
    for each in sorted(inside, key=lambda each: (each["op"] == PASSED, each["op"], each["rank"])):
        op = USED if each["op"] in (ALL_USED, SOME_UNUSED) else str(each["op"])
        found.setdefault(next(iter(found), op) if op == PASSED else op, []).append(int(each["rank"]))
    return {op: sorted(ranks) for op, ranks in found.items()}
