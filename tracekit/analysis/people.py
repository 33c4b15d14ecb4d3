"""People: who the processes of a run are."""

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace

from tracekit.run.manifest import Manifest
from tracekit.run.reader import Run, open_run

_ANY_HOST = ""


@dataclass(frozen=True)
class Person:
    """Who a process is. `role` is None where it did not get as far as saying it, `rank` -1 where it is none, of a
    `world` of so many; `began_ns` is Unix time; `workers` are the processes that its loaders started; `parent` is -1
    where it is not part of the run. Its times are those of the `clock` of a kernel, of one boot ("" where that is not
    known), and what was added to it for Unix time, ns."""

    process: int
    role: str | None = None
    rank: int = -1
    attempt: int = 0
    host: str = ""
    began_ns: int | None = None
    workers: tuple[int, ...] = ()
    world: int = -1
    parent: int = -1
    clock: tuple[str, int] = ("", 0)

    @property
    def is_helper(self) -> bool:
        """Helpers have steps only where nobody else has: what a shell script starts is a helper of the script."""
        return self.role == "helper"

    @property
    def is_loader_worker(self) -> bool:
        """Loader workers have no loop of their own."""
        return (self.role or "").startswith("loader worker")

    def precedence(self, steps: int) -> tuple[int, ...]:
        """The process with the least stands for the run: rank 0 of a distributed run, of its last attempt with steps,
        else the process with the most steps."""
        first = (self.is_helper, self.role is None)
        if self.role is not None and self.rank >= 0:
            return (*first, 0, self.rank, -self.attempt, self.process)
        return (*first, 1, -steps, self.process)


def find_people(run: Run) -> list[Person]:
    """All processes that said who they are, in their order."""
    rows = run.sql(
        "SELECT process, coalesce(any_value(role), '') AS role, coalesce(max(rank), -1) AS rank, "
        "coalesce(max(attempt), 0) AS attempt, coalesce(any_value(host), '') AS host, min(start_ns) AS start_ns, "
        "max(worker) AS worker, coalesce(max(world_size), -1) AS world, coalesce(max(parent), -1) AS parent, "
        "coalesce(any_value(clock_offset_ns), 0) AS clock_offset_ns "
        "FROM processes GROUP BY process ORDER BY process"
    )
    workers = _workers(run) if (rows["worker"] >= 0).any() else {}
    boots = {manifest.host: manifest.boot for manifest in run.manifests}
    people = [
        Person(
            int(row.process), row.role, int(row.rank), int(row.attempt), row.host, int(row.start_ns),
            tuple(workers.get(int(row.process), ())), int(row.world), int(row.parent),
            (boots.get(row.host, ""), int(row.clock_offset_ns)),
        )
        for row in rows.itertuples(index=False)
    ]  # fmt: skip
    return _in_one_attempt(people)


def jobs_of(people: Sequence[Person]) -> dict[int, tuple[int, int, int]]:
    """By process of a rank, the job that it is one of: its attempt, its world, and which launch of both it is, as a
    program may start all of them again, as other processes; or two programs beside each other. Who started several
    ranks started those of one job; two who started others may be of one, too."""
    ranks = [who for who in people if who.rank >= 0 and not who.is_loader_worker]
    started: dict[tuple[int, int, int], set[int]] = defaultdict(set)
    for who in ranks:
        if who.parent >= 0:
            started[who.attempt, who.world, who.parent].add(who.rank)
    found: dict[int, tuple[int, int, int]] = {}
    times: Counter[tuple[int, int, int, int]] = Counter()
    launches: dict[tuple[int, int, str], dict[tuple[int, int], int]] = defaultdict(dict)
    ranks_in: dict[tuple[int, int, str], set[int]] = defaultdict(set)  # in the latest launch on a host
    for who in ranks:
        parent = who.parent if len(started[who.attempt, who.world, who.parent]) > 1 else -1
        again = times[who.rank, who.attempt, who.world, parent]
        times[who.rank, who.attempt, who.world, parent] += 1
        where = who.attempt, who.world, who.host if parent >= 0 else _ANY_HOST
        of_host = launches[where]
        if (parent, again) not in of_host:
            theirs = started[who.attempt, who.world, parent] if parent >= 0 else {who.rank}
            is_new = not of_host or parent < 0 or bool(theirs & ranks_in[where])
            of_host[parent, again] = max(of_host.values(), default=-1) + is_new
            ranks_in[where] = theirs if is_new else ranks_in[where] | theirs
        found[who.process] = who.attempt, who.world, of_host[parent, again]
    return found


def ranks_of(run: Run, process: int | None) -> list[Person]:
    """The ranks of the job that a process is one of, as far as they were seen."""
    people = find_people(run)
    jobs = jobs_of(people)
    own = jobs.get(-1 if process is None else process)
    return [who for who in people if own is not None and jobs.get(who.process) == own]


def ranks_beside(run: Run, process: int) -> int:
    """How many ranks of its job share the CPUs of a process, itself included. On a node each may have a supervisor of
    its own, and CPUs of its own."""
    everybody, own = open_run(run.path), run.near(process).manifest
    beside = [each.host for each in everybody.manifests if _cpus_of(each) == _cpus_of(own)]
    return max(sum(who.host in beside for who in ranks_of(everybody, process)), 1)


def _cpus_of(manifest: Manifest) -> tuple[str, list[int]]:
    return manifest.node or manifest.host, manifest.cpu.of_program or manifest.cpu.affinity


def world_of(ranks: Sequence[Person]) -> int:
    """How many ranks there are of a job of which some were seen."""
    return max([len(ranks), *(who.world for who in ranks)])


def _in_one_attempt(people: list[Person]) -> list[Person]:
    """The same, where all that were started together are of the same attempt. An agent of torchrun counts only the
    failures of its own workers: those of other nodes are started again with the attempt that they had.

    Hosts have clocks of their own: one is only asked for another host's where some launch was not seen on its own."""
    launches: dict[int, int] = {}
    last: dict[tuple[int, int], int] = {}
    began: dict[tuple[int, str], dict[int, int]] = {}  # by world, host (or any) and launch, when its first rank did
    ranks = [who for who in people if who.rank >= 0 and not who.is_loader_worker]
    times = _times_started(ranks)
    for who in sorted(ranks, key=lambda who: (who.began_ns or 0, who.process)):
        has_all = times[who.world, who.host] == max(each for (world, _), each in times.items() if world == who.world)
        job, begins = (who.rank, who.world), began.get((who.world, who.host if has_all else _ANY_HOST), {})
        least, now = max(last.get(job, -1) + 1, who.attempt), who.began_ns or 0
        # One that ended before it said who it is was of a launch before: that of those that began with this one.
        since = {launch: now - then for launch, then in begins.items() if launch >= least}
        last[job] = launches[who.process] = min(since, key=since.__getitem__, default=least)
        for host in (who.host, _ANY_HOST):
            began.setdefault((who.world, host), {}).setdefault(last[job], now)
    attempts: dict[tuple[int, int], int] = {}
    for who in people:
        if who.process in launches:
            launch = who.world, launches[who.process]
            attempts[launch] = max(attempts.get(launch, 0), who.attempt)
    return [
        replace(who, attempt=attempts[who.world, launches[who.process]]) if who.process in launches else who
        for who in people
    ]


def _times_started(ranks: Sequence[Person]) -> dict[tuple[int, str], int]:
    """How often the ranks of each world were started on each host, as far as was seen."""
    found: dict[tuple[int, str], int] = {}
    for (world, host, _), times in Counter((who.world, who.host, who.rank) for who in ranks).items():
        found[world, host] = max(found.get((world, host), 0), times)
    return found


def _workers(run: Run) -> dict[int, list[int]]:
    """By process, those that its loaders started, and others with a pid that was used again."""
    rows = run.sql(
        "SELECT DISTINCT workers.process, alive.process AS worker FROM workers "
        "JOIN processes ON processes.process = workers.process "
        "JOIN processes AS alive ON alive.pid = workers.pid AND alive.host = processes.host AND alive.worker >= 0 "
        "WHERE workers.worker >= 0 ORDER BY ALL"
    )
    return {int(process): mine["worker"].astype(int).tolist() for process, mine in rows.groupby("process")}
