"""Ranks that wait for others while the program runs: when it is told, by whom, and when it is taken back."""

import os
import time
from pathlib import Path

import pytest
from spooling import NOBODY, announce

from tracekit.analysis.findings import title_of_never_ended
from tracekit.analysis.hanging import hanging
from tracekit.analysis.ranks import unfinished
from tracekit.cli import hangs as saying
from tracekit.cli.hangs import Hung
from tracekit.record.flush import Flusher
from tracekit.record.hangs import Hangs
from tracekit.record.spools import SpoolFolder
from tracekit.record.wire import IN_IT, LEFT, NAME_LENGTH, OVER, RECORD, Kind
from tracekit.run.folder import create_run
from tracekit.run.manifest import CameTo, Manifest
from tracekit.run.reader import open_run

SECOND = 1_000_000_000
WORDS = (b"all_reduce", b"world", b"7", b"broadcast")
ALL_REDUCE, WORLD, OTHER, BROADCAST = range(4)


class Node:
    """A host with its spool folder, whose time we set. `told`: which hosts had something to tell; they are heard when
    `is_heard`."""

    is_heard = True

    def __init__(self, run: Path, spools: Path, ranks: list[int], world: int) -> None:
        spools.mkdir()
        self.spools, self.run = spools, run
        self.manifest = Manifest(host=spools.name, spool=str(spools), first_process=100 * ranks[0])
        self.manifest.save(self.manifest.path_in(run))
        self.told: list[float] = []
        self.stems = {}
        for rank in ranks:
            facts: dict[str, object] = {"facts": {"torch": {}, "rank": rank, "world_size": world}}
            self.stems[rank] = announce(spools, NOBODY + rank, rank, status=facts)
            names = b"".join(NAME_LENGTH.pack(len(word)) + word for word in WORDS)
            (spools / f"{self.stems[rank]}.names").write_bytes(names)
        folder = SpoolFolder(spools)
        self.flusher = Flusher(run, self.manifest, folder, None)
        self.hangs = Hangs(run, self.manifest, self.flusher, folder, self.tell)

    def tell(self, run: Path, host: str) -> bool:
        assert (run, host) == (self.run, self.spools.name)
        self.told.append(self.now_s)
        return self.is_heard

    def came_to(self, rank: int, number: int, at_s: float, state: int = IN_IT, group: int = WORLD) -> None:
        at = int(at_s * SECOND)
        record = RECORD.pack(ALL_REDUCE, 1, at, at, group, number, 0, 0, 0, state, Kind.ENTERED)
        (self.spools / f"{self.stems[rank]}.entered").write_bytes(record)

    def look(self, at_s: float) -> list[str]:
        """What is then to be read in the run."""
        self.now_s = at_s
        self.flusher.flush(int(at_s * SECOND))
        self.hangs.look(int(at_s * SECOND))
        return [title_of_never_ended(each) for each in hanging(open_run(self.run).manifests)]


@pytest.fixture
def living(monkeypatch: pytest.MonkeyPatch) -> set[int]:
    """The ranks that live."""
    ranks = {0, 1, 2, 3}
    monkeypatch.setattr("tracekit.record.processes.process_started", lambda pid: pid if pid - NOBODY in ranks else None)
    return ranks


@pytest.fixture
def run(tmp_path: Path, living: set[int]) -> Path:
    create_run(tmp_path / "run")
    return tmp_path / "run"


def test_who_waits_is_told_once_while_it_lasts_and_taken_back(run: Path, tmp_path: Path) -> None:
    node = Node(run, tmp_path / "a", [0, 1], 2)
    node.came_to(0, 7, at_s=100)
    node.came_to(1, 6, at_s=99, state=OVER)
    assert node.look(129) == []
    words = (
        "rank 0 has been in all_reduce number 7 of group world for {} s; rank 1 has not come to it (to number 6 last)"
    )
    assert node.look(131) == [words.format(31)] and not node.told
    assert node.look(159) == [words.format(31)] and not node.told
    assert node.look(161) == [words.format(61)] and node.told == [161]
    assert node.look(166) == [words.format(61)]
    assert node.look(230) == [words.format(130)] and node.told == [161]

    node.came_to(1, 7, at_s=232)  # at last
    assert node.look(235) == []  # all have come to it
    node.came_to(0, 7, at_s=241, state=OVER)
    node.came_to(1, 7, at_s=241, state=OVER)
    assert node.look(245) == [] and open_run(run).manifest.hanging == []
    assert node.told == [161]


def test_what_is_not_heard_is_told_again_when_it_has_lasted_twice_as_long(run: Path, tmp_path: Path) -> None:
    node = Node(run, tmp_path / "a", [0, 1], 2)
    node.is_heard = False
    node.came_to(0, 7, at_s=0)
    for at in range(5, 200, 5):
        node.look(at)
    assert node.told == [60, 120]


def test_what_took_as_long_before_is_not_told(run: Path, tmp_path: Path) -> None:
    """GIVEN a rank that saves what was learnt for 100 s, and then for 190 s, and then does not come any more."""
    node = Node(run, tmp_path / "a", [0, 1], 2)
    for number, (begins, ends) in enumerate([(0, 100), (200, 390)], 1):
        node.came_to(0, number, at_s=begins)
        node.look(ends)
        node.came_to(0, number, at_s=ends, state=OVER)
        node.look(ends + 5)
    node.came_to(0, 3, at_s=500)
    for at in (875, 881):
        node.look(at)
    assert node.told == [100, 881]


def test_who_died_in_it_neither_waits_nor_makes_others_wait_longer(run: Path, tmp_path: Path, living: set[int]) -> None:
    node = Node(run, tmp_path / "a", [0, 1, 2], 3)
    node.came_to(0, 7, at_s=0)
    node.look(55)
    living.remove(0)
    assert node.look(1000) == [] and not node.told
    node.came_to(1, 7, at_s=1000)
    (title,) = node.look(1061)
    assert node.told == [1061] and title.startswith("rank 1 has been in") and "0, 2 are not seen" in title


def test_another_rank_that_waits_for_a_message_hides_nothing(run: Path, tmp_path: Path) -> None:
    """GIVEN a rank that waits in `recv`, which has no number, and one that came out of what failed."""
    node = Node(run, tmp_path / "a", [0, 1, 2], 3)
    node.came_to(0, -1, at_s=0)
    node.came_to(2, 6, at_s=0, state=LEFT)
    assert node.look(400) == [] and not node.told
    node.came_to(1, 7, at_s=400)
    for at in (405, 410, 455):
        node.look(at)
    assert not node.told
    (title,) = node.look(461)
    assert title.endswith("; rank 2 has not come to it (to number 6 last); rank 0 is not seen to wait in it")
    assert node.told == [461]


def test_hosts_tell_together_and_that_of_the_lowest_rank_says_it(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """GIVEN ranks 1, 2 and 3 that wait for 0, which is on another host than 2 and 3."""
    nodes = [Node(run, tmp_path / name, ranks, 4) for name, ranks in (("a", [0, 1]), ("b", [2, 3]))]
    nodes[0].came_to(0, 4, at_s=90, state=OVER)
    for rank in (1, 2, 3):
        nodes[rank // 2].came_to(rank, 5, at_s=100)
    assert nodes[1].look(131)[0].endswith("; ranks 0, 1 are not seen to wait in it")
    (title,) = nodes[0].look(131)
    assert title.startswith("ranks 1, 2, 3 have been in all_reduce number 5")
    assert title.endswith("; rank 0 has not come to it (to number 4 last)")

    said: list[str] = []
    monkeypatch.setattr(saying, "say", said.append)
    say = {"a": Hung(), "b": Hung()}
    assert not say["b"](run, "b") and said == []
    monkeypatch.setattr(saying, "would_wait", lambda: True)
    assert not say["a"](run, "a") and said == []
    monkeypatch.setattr(saying, "would_wait", lambda: False)
    for _ in range(2):
        assert say["a"](run, "a")
    assert said == [title]


def ranks_in(*came: tuple[int, str, int, float], group: str = "world", op: str = "all_reduce") -> list[str]:
    """What is told of ranks in (rank, group, number, waits s) of four."""
    now = [CameTo(rank, 0, 4, op, group, number, waits) for rank, group, number, waits in came]
    return [title_of_never_ended(each) for each in hanging([Manifest(hanging=now)])]


def test_the_first_that_somebody_has_not_come_to_is_told() -> None:
    """GIVEN ranks 0 and 1 in number 5, 3 that has begun 6 too, and 2 that has come to neither."""
    (title,) = ranks_in((0, "world", 5, 40), (1, "world", 5, 41), (2, "world", 4, -1), (3, "world", 6, 40))
    assert title == (
        "ranks 0, 1 have been in all_reduce number 5 of group world for 41 s; rank 2 has not come to it (to number 4"
        " last)"
    )


def test_of_a_part_of_the_ranks_only_those_are_missing_that_were_in_it_before() -> None:
    (title,) = ranks_in((0, "7", 5, 40), (1, "7", 4, -1), (2, "world", 3, -1))
    assert title.endswith("; rank 1 has not come to it (to number 4 last)")
    assert ranks_in((0, "7", 5, 40), (2, "world", 3, -1)) == []


def test_ranks_of_nodes_that_count_attempts_unlike_wait_for_each_other() -> None:
    """GIVEN two nodes, of which one's agent has counted a failure, and the other one's has not."""
    now = [CameTo(rank, rank // 2, 4, "all_reduce", "world", 5, 40.0) for rank in range(4)]
    assert hanging([Manifest(hanging=now)]) == []
    now[3] = CameTo(3, 1, 4, "all_reduce", "world", 4, -1.0)
    (found,) = hanging([Manifest(hanging=now)])
    assert (found.ranks, found.missing, found.unseen, found.attempt) == ([0, 1, 2], [(3, 4)], [], 1)


def test_of_two_jobs_beside_each_other_no_rank_is_named() -> None:
    now = [CameTo(rank, 0, 2, "all_reduce", "world", number, 40.0) for number in (5, 6) for rank in (0, 1)]
    assert hanging([Manifest(hanging=now)]) == []


def test_who_failed_in_it_does_not_wait_in_it() -> None:
    now = [CameTo(rank, 0, 2, "all_reduce", "world", 5, waits, waits < 0) for rank, waits in ((0, 40.0), (1, -1.0))]
    (title,) = [title_of_never_ended(each) for each in hanging([Manifest(hanging=now)])]
    assert title.endswith("for 40 s; rank 1 is not seen to wait in it")


def test_of_a_job_that_was_killed_elsewhere_it_is_told_as_its_end(run: Path) -> None:
    """GIVEN a supervisor on another node, which cannot be asked, and would have written again by now."""
    now = [CameTo(rank, 0, 2, "all_reduce", "world", 5 - rank, 40.0 - 41 * rank) for rank in (0, 1)]
    manifest = Manifest(host="b", node="b", supervisor=1, supervisor_started=1, hanging=now)
    path = manifest.path_in(run)
    manifest.save(path)
    (title,) = [title_of_never_ended(each) for each in unfinished(open_run(run))]
    assert " for 40 s; rank 1 has not come to it" in title
    os.utime(path, (time.time() - 200,) * 2)
    (title,) = [title_of_never_ended(each) for each in unfinished(open_run(run))]
    assert " at the end; rank 1 never came to it" in title
    manifest.hanging = now[:1]
    manifest.save(path)
    os.utime(path, (time.time() - 200,) * 2)
    (title,) = [title_of_never_ended(each) for each in unfinished(open_run(run))]
    assert title.endswith(" at the end; rank 1 was not seen to wait in it")


def test_what_all_have_come_to_is_not_told() -> None:
    assert ranks_in(*((rank, "world", 5, 40.0 * rank) for rank in range(4))) == []
