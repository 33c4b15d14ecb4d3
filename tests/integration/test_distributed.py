"""Ranks: what is recorded of their communication, that it changes nothing, and whose delays are named."""

import itertools
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from threading import Timer

import numpy as np
import pytest
from network_hosts import NetworkHost, network_hosts
from recording import ENVIRONMENT, PROGRAMS, TRACEKIT, Recorded, plain, record

from tracekit.analysis import hanging
from tracekit.analysis.clocks import aligned
from tracekit.analysis.meetings import find_meetings
from tracekit.analysis.report import analyze
from tracekit.record.wire import ALL_USED, PASSED, SOME_UNUSED, WAIT, WAIT_FOR
from tracekit.run.reader import open_run

KINDS = [
    "plain", "views", "unused", "static", "hook", "compressing hook", "builtin hook", "accumulating", "buffers",
    "parts", "calls",
]  # fmt: skip
STEPS = 12


def torchrun(ranks: int, *program: str) -> list[str]:
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
    return [*launcher, str(PROGRAMS / program[0]), *program[1:]]


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Recorded]:
    """What all kinds print without a recording, and the recording of them."""
    command = torchrun(3, "ddp_kinds.py", *KINDS)
    without, done = plain(command), record(command, tmp_path_factory.mktemp("kinds") / "run")
    assert without.returncode == done.code == 0, without.stderr + done.err
    return without.stdout, done


def test_recording_changes_no_bit(both: tuple[str, Recorded]) -> None:
    without, done = both
    assert done.out == without
    assert len(done.out.splitlines()) == len(KINDS)
    failed = [note for note in done.run.missing if "collectives" in note.what or "buckets" in note.what]
    assert failed == []


@pytest.mark.parametrize("kind", KINDS)
def test_every_bucket_of_every_rank_is_seen(kind: str, both: tuple[str, Recorded]) -> None:
    of_kinds = both[1].run.sql(
        "SELECT * FROM (SELECT *, count(*) FILTER (op = 'barrier') OVER (PARTITION BY process ORDER BY ready_ns)"
        " - (op = 'barrier')::INT AS kind FROM collectives) WHERE kind = $1 ORDER BY process, ready_ns",
        [KINDS.index(kind)],
    )
    buckets = of_kinds[of_kinds["bucket"] >= 0]
    assert (buckets["ready_ns"] <= buckets["start_ns"]).all()
    assert buckets["unsure_ns"].between(0, buckets["duration_ns"]).all()
    passes = (buckets["bucket"] == 0).groupby(buckets["process"]).cumsum()
    # However a model's gradients are put into buckets, which changes after the first passes, they are as many bytes.
    assert buckets.groupby(["process", passes])["bytes"].sum().nunique() == 1
    first, *others = [list(rows["bucket"]) for _, rows in buckets.groupby("process")]
    assert len(others) == 2 and all(each == first for each in others)
    assert first.count(0) == (STEPS // 2 if kind == "accumulating" else STEPS)
    assert max(first) >= 2
    of_all = of_kinds[(of_kinds["sequence"] >= 0) & (of_kinds["group"] == "world")]
    matched = of_all.groupby("sequence").agg({"process": "nunique", "op": "nunique", "bytes": "nunique"})
    assert (matched == [3, 1, 1]).all(axis=None)
    if kind == "calls":
        calls = of_kinds[of_kinds["bucket"] < 0]
        assert {"all_reduce", "all_gather_object", "barrier"} <= set(calls["op"])
        assert len(set(calls["group"]) - {""}) == 2 and calls["is_async"].any()
        # What several were put into at once is waited for as well, and nobody knows what it is.
        assert set(calls["op"][calls["op"].str.startswith(WAIT)]) <= {WAIT, f"{WAIT_FOR}all_reduce"}
    if kind == "buffers":
        broadcast = of_kinds[of_kinds["op"] == "broadcast of buffers"]
        assert len(broadcast) == 3 * STEPS and (broadcast["bytes"] > 0).all()


def test_passes_that_leave_parameters_unused_are_told_from_others(both: tuple[str, Recorded]) -> None:
    """GIVEN a model of which a layer is left out in every third pass THEN each rank saw so many, and which."""
    ops = both[1].run.sql(
        "SELECT process, list(op ORDER BY ready_ns) AS ops FROM collectives WHERE op LIKE '%parameters%'"
        " GROUP BY process"
    )
    passes = [SOME_UNUSED if step % 3 == 0 else ALL_USED for step in range(STEPS)]
    first_of_static = [ALL_USED]
    assert [list(each) for each in ops["ops"]] == [passes + first_of_static] * 3


def test_how_models_are_wrapped_is_in_the_manifest(both: tuple[str, Recorded]) -> None:
    wrapped = dict(zip(KINDS, both[1].run.manifest.ddp, strict=True))
    for kind, told in wrapped.items():
        assert told.bytes == sum(told.sizes) > 0 and len(told.names) == told.parameters
        assert told.gradient_as_bucket_view == (kind == "views")
        assert told.find_unused_parameters == (kind == "unused")


@pytest.mark.alone
@pytest.mark.parametrize(
    ("phase", "late", "more"),
    [
        pytest.param("loading", "0", ["--norm"], marks=pytest.mark.long),
        ("backward", "turns", []),
        pytest.param("backward", "1", [], marks=pytest.mark.long),
        pytest.param("communication", "1", [], marks=pytest.mark.long),
    ],
)
def test_the_rank_and_phase_of_a_planted_delay_are_named(
    phase: str, late: str, more: list[str], tmp_path: Path
) -> None:
    """Also where the others wait for the late one before the forward pass: for its buffers of a batch norm."""
    planted = ["--phase", phase, "--late", late, "--ms", "3", "--steps", "200", *more]
    done = record(torchrun(2, "late_ranks.py", *planted), tmp_path / "run")
    assert done.code == 0, done.err
    report = analyze(done.run)
    causes = [each for each in report.findings if each.id == "delay.root_cause"]
    assert causes, report.ranks
    assert causes[0].evidence["phase"] == phase
    if late != "turns":
        assert causes[0].evidence["rank"] == int(late)
        assert (1 - int(late), "communication") not in [(e.evidence["rank"], e.evidence["phase"]) for e in causes]
    else:
        assert {each.evidence["rank"] for each in causes if each.evidence["phase"] == phase} == {0, 1}


@pytest.mark.long
@pytest.mark.alone
@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="each rank needs a CPU of its own")
def test_noise_on_the_cpu_of_a_rank_is_named(tmp_path: Path) -> None:
    done = record(torchrun(2, "late_ranks.py", "--phase", "noise", "--late", "1", "--steps", "200"), tmp_path / "run")
    assert done.code == 0, done.err
    report = analyze(done.run)
    causes = [each.evidence for each in report.findings if each.id == "delay.root_cause"]
    assert causes, report.ranks
    assert [causes[0][name] for name in ("rank", "phase", "by")] == [1, "noise", "kept"]


@pytest.mark.long
@pytest.mark.alone
def test_who_waits_for_what_it_has_begun_is_not_late(tmp_path: Path) -> None:
    """GIVEN gradients that the program averages itself, all at once, and then waits for each THEN who was late before
    is named, and not who waited."""
    planted = ["--by-hand", "--phase", "forward", "--ms", "3"]
    command = torchrun(2, "late_ranks.py", *planted)
    without, done = plain(command), record(command, tmp_path / "run")
    assert without.returncode == done.code == 0, without.stderr + done.err
    assert done.out.split()[0] == without.stdout.split()[0]
    report = analyze(done.run)
    causes = [
        (each.evidence["rank"], each.evidence["phase"]) for each in report.findings if each.id == "delay.root_cause"
    ]
    assert causes == [(1, "forward")], report.ranks
    assert not report.never_ended


@pytest.mark.long
def test_of_very_short_steps_some_are_left_out_whole(tmp_path: Path) -> None:
    """GIVEN steps that are shorter than what it would cost to follow all of them."""
    command = torchrun(2, "late_ranks.py", "--steps", "1500", "--width", "64", "--batch", "4")
    without, done = plain(command), record(command, tmp_path / "run")
    assert without.returncode == done.code == 0, without.stderr + done.err
    assert done.out.split()[0] == without.stdout.split()[0]
    rows = done.run.sql(
        "SELECT process, bucket, bytes, sequence, row_number() OVER (PARTITION BY process ORDER BY ready_ns) AS number"
        " FROM collectives WHERE bucket >= 0 ORDER BY process, ready_ns"
    )
    for _, mine in rows.groupby("process"):
        passes = mine.groupby((mine["bucket"] == 0).cumsum())
        assert 256 <= len(passes) < 1000
        assert passes["bytes"].sum().nunique() == 1  # each pass is there as a whole
        assert mine["sequence"].is_monotonic_increasing and mine["sequence"].max() > len(mine)
    both_ranks = rows.groupby("sequence").agg({"process": "nunique", "bytes": "nunique", "bucket": "nunique"})
    assert (both_ranks["bytes"] == 1).all() and (both_ranks["bucket"] == 1).all()
    assert (both_ranks["process"] == 2).sum() >= 256
    report = analyze(done.run)
    (group,) = [each for each in report.ranks if each.group == "world"]
    assert group.followed > 0.9
    tree = group.efficiency
    assert tree["load balance"] * tree["serialization"] * tree["transfer"] == pytest.approx(tree["parallel"])
    assert {phase.name: phase.share for phase in report.steps.phases}["communication"] > 0.05


@pytest.mark.long
@pytest.mark.alone
@pytest.mark.parametrize("workers", [0, 1])
def test_the_critical_path_goes_on_through_who_makes_the_batches(workers: int, tmp_path: Path) -> None:
    """GIVEN a rank that sleeps for 40 ms for each batch, in a worker or itself."""
    planted = ["--phase", "loading", "--ms", "40", "--steps", "64", "--width", "128", "--workers", str(workers)]
    done = record(torchrun(2, "late_ranks.py", *planted), tmp_path / "run")
    assert done.code == 0, done.err
    path = next(each.path for each in analyze(done.run).ranks if each.group == "world")
    assert max(path, key=lambda part: path[part]) == "loading, blocked", path
    assert path["loading, blocked"] > 10 * path["loading, computing"] and path["loading, blocked"] > path["loading"]


@pytest.mark.alone
def test_no_rank_is_named_where_none_is_late(tmp_path: Path) -> None:
    """Where one computes longer by what its start may have brought it is undecided."""
    done = record(torchrun(2, "late_ranks.py", "--steps", "200"), tmp_path / "run")
    report = analyze(done.run)
    named = [each for each in report.findings if each.id in ("delay.root_cause", "delay.slower_rank")]
    assert [each.title for each in named] == []
    (group,) = [each for each in report.ranks if each.group == "world"]
    assert group.followed > 0.9
    tree = group.efficiency
    assert tree["load balance"] * tree["serialization"] * tree["transfer"] == pytest.approx(tree["parallel"])


@pytest.mark.long
def test_a_bucket_that_cannot_be_noted_hurts_nobody(tmp_path: Path) -> None:
    """GIVEN a reducer that holds its lock as it sends a bucket, with which we fail THEN the program goes on as without
    us, and it is told that its communication is not."""
    command = torchrun(2, "failing_bucket.py")
    without, done = plain(command), record(command, tmp_path / "run")
    assert without.returncode == done.code == 0, without.stderr + done.err
    assert done.out == without.stdout
    assert any("collectives" in note.what and "planted" in note.why for note in done.run.missing), done.run.missing


def hung(folder: Path, *words: str) -> dict[str, object]:
    """What is told of two ranks of which the first waits for the second."""
    command = [*TRACEKIT, "record", "-q", "-o", str(folder), "--", *torchrun(2, "hanging_ranks.py", *words)]
    with subprocess.Popen(command, env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as recording:
        assert recording.stdout is not None
        assert recording.stdout.readline() == b"waiting\n"
        time.sleep(1)  # the other one is in it by then
        recording.send_signal(signal.SIGTERM)
        recording.wait(timeout=120)
    (never,) = [each for each in analyze(open_run(folder)).findings if each.id == "distributed.never_ended"]
    assert "rank 1 never came to it" in never.title
    found: dict[str, object] = json.loads(json.dumps(never.evidence))
    return found


def test_who_never_came_to_a_collective_is_named(tmp_path: Path) -> None:
    found = hung(tmp_path / "run")
    evidence = {"op": "all_reduce", "sequence": 2, "ranks": [0], "missing": [[1, 1]]}
    assert {key: found[key] for key in evidence} == evidence


# `tracekit` that takes seconds for long.
IMPATIENT = """
from tracekit.analysis import hanging
from tracekit.record import hangs, sampling
hanging.LONG_WAIT_S = hangs.LONG_WAIT_S = sampling.FLUSH_INTERVAL_S = 1.0
hangs.TOLD_AFTER_S = 3.0
from tracekit.cli.main import entry
entry()
"""


def test_a_hang_is_told_while_it_lasts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    command = [sys.executable, "-c", IMPATIENT, "record", "-o", str(tmp_path / "run"), "--"]
    command += torchrun(2, "hanging_ranks.py")
    with subprocess.Popen(command, env=ENVIRONMENT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as recording:
        assert recording.stderr is not None
        patience = Timer(120, recording.kill)
        patience.start()
        said = next(line.decode() for line in recording.stderr if b"tracekit: " in line)
        monkeypatch.setattr(hanging, "LONG_WAIT_S", 1.0)
        so_far = [each.title for each in analyze(open_run(tmp_path / "run")).findings if "never" in each.id]
        recording.send_signal(signal.SIGTERM)
        rest = recording.stderr.read().decode()
        patience.cancel()
    waits, came = "rank 0 has been in all_reduce number 2 of group world for ", "rank 1 has not come to it (to number 1"
    assert said.startswith(f"tracekit: {waits}") and came in said
    assert len(so_far) == 1 and so_far[0].startswith(waits) and came in so_far[0]
    assert "has been in" not in rest
    (never,) = [each for each in analyze(open_run(tmp_path / "run")).findings if "never" in each.id]
    assert never.title.startswith("rank 0 was in all_reduce number 2") and "rank 1 never came to it" in never.title


@pytest.mark.long
def test_who_never_came_to_a_bucket_is_named_where_buckets_are_not_followed(tmp_path: Path) -> None:
    """GIVEN a thousand steps that are shorter than what it would cost to follow all of them, and a rank that does not
    come to the one bucket of the last one."""
    found = hung(tmp_path / "run", "--bucket")
    assert found["op"] == PASSED and found["ranks"] == [0]
    number = found["sequence"]
    assert isinstance(number, int) and number >= 999 and found["missing"] == [[1, number - 1]]
    seen = open_run(tmp_path / "run").sql(
        "SELECT process FROM collectives WHERE bucket = 0 GROUP BY 1 HAVING count(*) < 900"
    )
    assert len(seen) == 2


@pytest.mark.long
@pytest.mark.parametrize("words", [[], ["--bucket"]])
def test_who_never_came_is_named_where_the_other_lost_patience(words: list[str], tmp_path: Path) -> None:
    """GIVEN a rank that fails, as it waits in vain for another one THEN that is told as if it had waited on."""
    done = record(torchrun(2, "hanging_ranks.py", *words, "--patience", "5"), tmp_path / "run")
    assert done.code != 0
    (never,) = [each for each in analyze(done.run).findings if each.id == "distributed.never_ended"]
    assert never.title.startswith("rank 0 was in") and "rank 1 never came to it" in never.title


def test_what_is_gathered_and_scattered_of_sharded_parameters_is_recorded(tmp_path: Path) -> None:
    command = torchrun(2, "sharded.py", "--steps", str(STEPS))
    without, done = plain(command), record(command, tmp_path / "run")
    assert without.returncode == done.code == 0, without.stderr + done.err
    assert done.out == without.stdout and len(set(done.out.splitlines())) == 1
    moved = done.run.sql(
        "SELECT process, starts_with(op, 'reduce_scatter') AS gradients, count(*) AS calls, min(bytes) AS bytes,"
        " count(DISTINCT sequence) AS numbers FROM collectives WHERE op LIKE 'all_gather%' OR op LIKE 'reduce_scatter%'"
        " GROUP BY ALL ORDER BY ALL"
    )
    assert len(moved) == 4 and (moved["bytes"] > 0).all() and (moved["numbers"] == moved["calls"]).all()
    # Of three layers: gathered before the forward and before the backward pass, scattered after it.
    assert moved["calls"].tolist() == [6 * STEPS, 3 * STEPS] * 2


@pytest.mark.long
@pytest.mark.alone
def test_the_rank_that_is_late_among_sharded_ones_is_named(tmp_path: Path) -> None:
    done = record(torchrun(2, "sharded.py", "--steps", "150", "--ms", "3"), tmp_path / "run")
    assert done.code == 0, done.err
    causes = [each.evidence for each in analyze(done.run).findings if each.id == "delay.root_cause"]
    left_out = done.run.sql("SELECT count(*) AS marks FROM spans WHERE kind = 'phase' AND name = 'calls'")
    assert left_out["marks"].item() == 0  # calls are all that says where the forward pass is
    assert causes and (causes[0]["rank"], causes[0]["phase"]) == (1, "forward")


@pytest.fixture
def two_hosts() -> Iterator[list[NetworkHost]]:
    with ExitStack() as stack:
        try:
            hosts = stack.enter_context(network_hosts(2))
        except (FileNotFoundError, PermissionError, subprocess.CalledProcessError) as error:
            pytest.skip(f"no network namespaces here: {error}")
        yield hosts


@pytest.mark.long
@pytest.mark.alone(again=False)  # a race: one of three runs that hangs is one too many
def test_models_that_form_their_buckets_never_wait_for_us(tmp_path: Path) -> None:
    """GIVEN 400 models, each of which asks its group for broadcasts as it forms its buckets, while threads of gloo take
    leave of the work before THEN none hangs: with the interpreter's lock held there two of three runs did."""
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    words = [*TRACEKIT, "record", "-q", "-o", str(tmp_path / "run"), "--"]
    done = subprocess.run(
        [*words, *torchrun, str(PROGRAMS / "wrapping_models.py")],
        env=ENVIRONMENT, capture_output=True, text=True, timeout=240,
    )  # fmt: skip
    assert done.stdout.count("done") == 2, done.stderr


@pytest.mark.alone
def test_supervisors_of_one_job_record_into_one_run_and_their_clocks_are_aligned(
    two_hosts: list[NetworkHost], tmp_path: Path
) -> None:
    """GIVEN a job on two hosts, each with a supervisor and torchrun WHEN both record into one folder THEN it is one run
    of all ranks; and a clock that goes wrong is found and corrected."""
    run = tmp_path / "run"
    recordings = []
    for number, host in enumerate(two_hosts):
        torchrun_here = [
            sys.executable, "-m", "torch.distributed.run", "--nnodes", "2", "--node-rank", str(number),
            "--nproc-per-node", "1", "--master-addr", two_hosts[0].address, "--master-port", "29531",
            str(PROGRAMS / "late_ranks.py"), "--steps", "400", "--width", "128", "--numbers", "128",
        ]  # fmt: skip
        # A CPU for each, as hosts have: two that share them leave a meeting milliseconds apart, and not together.
        cpus = sorted(os.sched_getaffinity(0))
        on_its_own = ["taskset", "-c", str(cpus[number % len(cpus)])]
        words = [*on_its_own, *TRACEKIT, "record", "-q", "--job", "one", "-o", str(run), "--", *torchrun_here]
        environment = {**ENVIRONMENT, "GLOO_SOCKET_IFNAME": host.interface}
        recordings.append(
            subprocess.Popen(host.on_it(words), env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        )
    ended = [each.communicate(timeout=240) for each in recordings]
    assert [each.returncode for each in recordings] == [0, 0], ended
    opened = open_run(run)
    assert len(opened.manifests) == 2
    people = opened.sql("SELECT process, rank, host FROM processes WHERE rank >= 0 ORDER BY rank")
    assert list(people["rank"]) == [0, 1]
    assert people["process"].nunique() == people["host"].nunique() == 2
    meetings = next(find_meetings(opened))
    assert meetings.ranks == [0, 1] and meetings.entered.shape[1] >= 150
    _, (clock,) = aligned(meetings)
    # It is one machine, so both have the same clock, and each supervisor says what it added to that.
    (boot, added), (other_boot, other_added) = meetings.clocks
    assert boot == other_boot and (clock.offset_ns, clock.unsure_ns) == (other_added - added, 0)
    own = np.array([False, True])
    for planted_s, drift in itertools.product((1, -1), (50e-6, -50e-6)):
        entered, left = meetings.entered.copy(), meetings.left.copy()
        for times in (entered, left):
            since = times[own] - meetings.entered.min()
            times[own] += planted_s * 1_000_000_000 + (since * drift).astype(np.int64)
        found, (clock,) = aligned(replace(meetings, entered=entered, left=left))
        assert np.abs(found.entered - meetings.entered)[1].max() <= 50_000
        assert (found.entered.max(axis=0) <= found.left.min(axis=0) + 1000).all()  # nobody leaves before all have come
    report = analyze(opened)
    assert report.ranks[0].ranks == [0, 1]
