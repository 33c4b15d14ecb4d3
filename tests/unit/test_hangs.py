"""Ranks that wait for others while the program runs: when it is told, to whom, and when it is taken back."""

from pathlib import Path

import pytest
from spooling import NOBODY, announce

from tracekit.analysis.findings import title_of_never_ended
from tracekit.analysis.ranks import unfinished
from tracekit.cli import hangs as saying
from tracekit.cli.hangs import Hung
from tracekit.record.flush import Flusher
from tracekit.record.hangs import Hangs
from tracekit.record.spools import SpoolFolder
from tracekit.record.wire import IN_IT, NAME_LENGTH, OVER, RECORD, Kind
from tracekit.run.folder import create_run
from tracekit.run.manifest import Manifest
from tracekit.run.reader import open_run

SECOND = 1_000_000_000
ALL_REDUCE, GROUP = 0, 1


class Node:
    """A host with its spool folder, whose time we set."""

    def __init__(self, run: Path, spools: Path, name: str, ranks: list[int], told: list[str], world: int) -> None:
        spools.mkdir()
        self.spools, self.run = spools, run
        first = 100 * ranks[0]  # of the numbers of its processes
        self.manifest = Manifest(host=name, node=name, job="job", spool=str(spools), first_process=first)
        self.manifest.save(self.manifest.path_in(run))
        self.stems = {}
        for rank in ranks:
            facts: dict[str, object] = {"facts": {"torch": {}, "rank": rank, "world_size": world}}
            self.stems[rank] = announce(spools, NOBODY + rank, rank, status=facts)
            names = b"".join(NAME_LENGTH.pack(len(word)) + word for word in (b"all_reduce", b"world"))
            (spools / f"{self.stems[rank]}.names").write_bytes(names)
        folder = SpoolFolder(spools)
        self.flusher = Flusher(run, self.manifest, folder, None)
        self.hangs = Hangs(run, self.manifest, self.flusher, folder, lambda _, host: told.append(host))

    def came_to(self, rank: int, number: int, at_s: float, state: int = IN_IT) -> None:
        at = int(at_s * SECOND)
        record = RECORD.pack(ALL_REDUCE, 1, at, at, GROUP, number, 0, 0, 0, state, Kind.ENTERED)
        (self.spools / f"{self.stems[rank]}.entered").write_bytes(record)

    def look(self, at_s: float) -> list[str]:
        """What is then to be read in the run."""
        self.flusher.flush(int(at_s * SECOND))
        self.hangs.look(int(at_s * SECOND))
        return [title_of_never_ended(each) for each in unfinished(open_run(self.run))]


@pytest.fixture(autouse=True)
def all_live(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tracekit.record.processes.process_started", lambda pid: pid)
    monkeypatch.setattr("tracekit.record.hangs.time.time_ns", lambda: 1 << 62)  # what others have written is old


@pytest.fixture
def run(tmp_path: Path) -> Path:
    create_run(tmp_path / "run")
    return tmp_path / "run"


def test_who_waits_is_told_once_while_it_lasts_and_taken_back(run: Path, tmp_path: Path) -> None:
    told: list[str] = []
    node = Node(run, tmp_path / "spool", "a", [0, 1], told, 2)
    node.came_to(0, 7, at_s=100)
    node.came_to(1, 6, at_s=99, state=OVER)
    assert node.look(129) == [] and not told
    words = (
        "rank 0 has been in all_reduce number 7 of group world for {} s; rank 1 has not come to it (to number 6 last)"
    )
    assert node.look(131) == [words.format(31)] and not told
    assert node.look(161) == [words.format(61)] and told == ["a"]
    assert node.look(166) == [words.format(61)] and told == ["a"]
    assert node.look(230) == [words.format(130)] and told == ["a"]

    node.came_to(1, 7, at_s=232)  # at last
    node.look(235)
    assert node.look(240) == []  # all have come to it
    node.came_to(0, 7, at_s=241, state=OVER)
    node.came_to(1, 7, at_s=241, state=OVER)
    assert node.look(245) == []
    assert open_run(run).table("reached").empty and open_run(run).table("processes").empty


def test_what_took_as_long_before_is_not_told_again(run: Path, tmp_path: Path) -> None:
    """GIVEN a rank that saves what was learnt for 100 s, and then for 190 s, and then does not come any more."""
    told: list[str] = []
    node = Node(run, tmp_path / "spool", "a", [0, 1], told, 2)
    node.came_to(1, 0, at_s=0, state=OVER)
    for number, (begins, ends) in enumerate([(0, 100), (200, 390)], 1):
        node.came_to(0, number, at_s=begins)
        node.look(ends - 5)
        node.look(ends)
        node.came_to(0, number, at_s=ends, state=OVER)
        node.look(ends + 5)
    assert told == ["a"]
    node.came_to(0, 3, at_s=500)
    node.look(870)
    node.look(875)
    assert told == ["a"]
    node.look(881)
    assert told == ["a", "a"]


def test_a_rank_that_has_ended_waits_no_more(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []
    node = Node(run, tmp_path / "spool", "a", [0, 1], told, 2)
    node.came_to(0, 7, at_s=100)
    monkeypatch.setattr("tracekit.record.processes.process_started", lambda pid: None)
    assert node.look(200) == [] and not told


def test_hosts_of_a_job_tell_together_and_one_says_it(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """GIVEN ranks 1, 2 and 3 that wait for 0, which is on another host than 2 and 3."""
    told: list[str] = []
    nodes = [Node(run, tmp_path / name, name, ranks, told, 4) for name, ranks in (("a", [0, 1]), ("b", [2, 3]))]
    nodes[0].came_to(0, 4, at_s=90, state=OVER)
    for rank in (1, 2, 3):
        nodes[rank // 2].came_to(rank, 5, at_s=100)
    for each in nodes:
        each.look(131)
    (title,) = nodes[1].look(161)
    assert title.startswith("ranks 1, 2, 3 have been in all_reduce number 5") and "rank 0 has not come to it" in title
    assert told == ["b"]  # a has not looked since

    said: list[str] = []
    monkeypatch.setattr(saying, "say", said.append)
    say = {"a": Hung(), "b": Hung()}
    say["b"](run, "b")
    assert said == []
    for _ in range(2):
        say["a"](run, "a")
    assert said == [title]


def test_a_host_whose_ranks_do_not_wait_tells_where_they_are_when_others_do(run: Path, tmp_path: Path) -> None:
    told: list[str] = []
    nodes = [Node(run, tmp_path / name, name, ranks, told, 2) for name, ranks in (("a", [0]), ("b", [1]))]
    nodes[0].came_to(0, 4, at_s=90, state=OVER)
    nodes[1].came_to(1, 5, at_s=100)
    assert nodes[0].look(125) == nodes[1].look(125) == []
    nodes[1].look(131)
    (title,) = nodes[0].look(132)
    assert title.endswith("rank 0 has not come to it (to number 4 last)")
    nodes[1].came_to(1, 5, at_s=140, state=OVER)
    nodes[1].look(141)
    assert nodes[0].look(142) == [] and open_run(run).table("reached").empty
