"""Ranks: who waited for whom and why, group by group."""

import time
from collections.abc import Sequence
from pathlib import Path

import msgspec
import numpy as np

from tracekit.analysis.clocks import aligned
from tracekit.analysis.communication import Communication, of_group, overlap, parts
from tracekit.analysis.delays import OF_OPERATORS, Delay, find_delays
from tracekit.analysis.efficiency import critical_path, efficiency
from tracekit.analysis.hanging import hanging
from tracekit.analysis.meetings import Meetings, Times, Way, meetings_of
from tracekit.analysis.people import Person
from tracekit.analysis.report_schema import ClockSummary, DelaySummary, Gain, RankGroup
from tracekit.analysis.steps import Steps
from tracekit.analysis.unfinished import NeverEnded, never_ended
from tracekit.analysis.words import shortened
from tracekit.run.folder import still_records
from tracekit.run.manifest import Manifest, Missing
from tracekit.run.reader import Run

# So much later than it should a supervisor may write on a busy machine, by another clock.
_LATE_S = 60.0
# What is missing of a group, so that nothing is told of it.
NOT_TOLD = "who waited for whom in group "


def rank_groups(
    ways: Sequence[Way],
    people: Sequence[Person],
    steps: Steps,
    communication: Sequence[Communication] = (),
    team: int = 0,
) -> tuple[list[RankGroup], list[Missing]]:
    """What is known of each group of ranks that met at least twice, those that met most often first; and of which
    nothing can be told. `team`: of how many threads operators have, where these have too few CPUs."""
    own = steps.of(steps.main)
    usual, ends = float(own["duration_ns"].median()), (own["start_ns"] + own["duration_ns"]).to_numpy(np.int64)
    groups: list[RankGroup] = []
    missing: list[Missing] = []
    for each in meetings_of(ways, people):
        if not each.is_possible:
            why = (
                "ranks were seen to leave what they do together before others had come to it: something that all of"
                " them did was not seen on each, or a communication hook does not wait for all of them"
            )
            missing.append(Missing(NOT_TOLD + each.group, why))
        elif each.entered.shape[1] > 1:
            groups.append(_group(each, usual, ends, of_group(communication, each), team > 0))
    if groups and team:
        why = f"the {team} threads of each operator have too few CPUs, and wait for each other"
        missing.append(Missing(f"who is late now and then in {', '.join(OF_OPERATORS)}", why))
    return groups, missing


def unfinished(run: Run) -> list[NeverEnded]:
    """What ranks were in when they came to their end, or are in while the run is being recorded."""
    at_the_end = [
        NeverEnded(
            str(row.group), int(row.attempt), " and ".join(row.ranks), int(row.sequence),
            sorted(rank for ranks in row.ranks.values() for rank in ranks), row.missing,
            row.ranks if len(row.ranks) > 1 else {}, unseen=row.unseen,
        )
        for row in never_ended(run).itertuples()
    ]  # fmt: skip
    recorded = [each for each in run.manifests if each.ended_ns is None and still_records(each) is not False]
    found = hanging(recorded)
    if not any(still_records(each) or _is_fresh(each.path_in(run.path), each) for each in recorded if each.hanging):
        found = [msgspec.structs.replace(each, for_s=None) for each in found]  # the whole job was killed
    return at_the_end + found


def _is_fresh(path: Path, manifest: Manifest) -> bool:
    """Whether a supervisor on another node lives, which writes anew when its ranks have waited twice as long."""
    longest = max(each.waits_s for each in manifest.hanging)
    try:
        return time.time() - path.stat().st_mtime < 2 * longest + _LATE_S
    except OSError:
        return False


def why_nobody(group: RankGroup) -> str:
    """Why no rank of a group is named."""
    name = f"group {shortened(group.group, 20)}"
    if not group.followed:
        return f"What the ranks of {name} did on their way to each other is not known, so nobody is named"
    if not group.is_told:
        return f"Too few steps of {name} were followed on all ranks to name anybody"
    return (
        f"No rank of {name} kept the others waiting by much in the usual step, in turns or in stretches: of the time"
        f" they waited {group.waited:.1%} for the last one"
    )


def _group(
    as_recorded: Meetings, step_ns: float, step_ends: Times, communication: Sequence[Communication], is_crowded: bool
) -> RankGroup:
    meetings, clocks = aligned(as_recorded)
    begins, ends = meetings.stretches
    spent = float((meetings.left[:, ends] - meetings.left[:, begins]).sum()) / 1e9
    usual_ns = step_ns if step_ns > 0 else float(np.diff(meetings.left[0]).mean())
    found = find_delays(meetings, usual_ns, np.sort(step_ends), is_crowded=is_crowded)
    shared = efficiency(meetings)
    tree = {} if shared is None else {
        "parallel": shared.parallel,
        "load balance": shared.load_balance,
        "communication": shared.communication,
        "serialization": shared.serialization,
        "transfer": shared.transfer,
    }  # fmt: skip
    return RankGroup(
        group=meetings.group,
        attempt=meetings.attempt,
        ranks=meetings.ranks,
        meetings=found.meetings,
        seconds=float(spent) / len(meetings.ranks),
        waited=float(meetings.waited[:, meetings.seen].sum()) / 1e9 / spent if spent > 0 else 0.0,
        transfer=float(meetings.transfer[:, meetings.seen].sum()) / 1e9 / spent if spent > 0 else 0.0,
        kept=found.kept_share,
        followed=found.explained,
        efficiency=tree,
        path=critical_path(meetings),
        delays=_delays(found.delays, meetings),
        looked_at=meetings.looked_at,
        is_told=found.is_told,
        overlap=overlap(communication),
        communication=parts(communication, clocks),
        clocks=[
            ClockSummary(each.host, each.offset_ns / 1e6, each.drift * 1e6, each.unsure_ns / 1e6, len(each.at_ns) - 1)
            for each in clocks
        ],
    )


def _delays(delays: Sequence[Delay], meetings: Meetings) -> list[DelaySummary]:
    hosts = dict(zip(meetings.ranks, meetings.hosts, strict=True))
    processes = dict(zip(meetings.ranks, meetings.processes, strict=False))
    members = {host: {rank for rank in hosts if hosts[rank] == host} for host in hosts.values()}

    def of_host(delay: Delay) -> bool:
        late = {each.rank for each in delays if each.phase == delay.phase}
        return len(members) > 1 and len(late) > 1 and late == members[hosts[delay.rank]]

    return [
        DelaySummary(
            delay.rank, delay.phase, delay.by, delay.share_of_waiting, delay.cost_s, Gain(*delay.step_share),
            delay.always, hosts[delay.rank], of_host(delay), delay.undecided, delay.persistence,
            processes.get(delay.rank, -1),
        )
        for delay in delays
    ]  # fmt: skip
