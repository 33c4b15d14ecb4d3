"""Probes: what they saw of settings beside the run's own, and what is said of those that are of no use."""

import subprocess
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from synthetic import BEGIN_NS, Tape, make_manifest, make_run, ns

from tracekit.advice import analyze
from tracekit.advice.loading import _what_was_seen
from tracekit.analysis.probes import _by_ways, _count_of, _mean, _Parts, _ratio, probes
from tracekit.analysis.report_schema import LoaderForecast, LoaderSummary
from tracekit.cli.main import main
from tracekit.errors import RunError
from tracekit.run.folder import PROBE, STUDY_FILE, create_study
from tracekit.run.manifest import Loader, Memory
from tracekit.run.probes import Probed, clear_probe, load_sittings, save_sittings
from tracekit.run.reader import open_run
from tracekit.study.contenders import Cells, best_of, contenders, deep, is_certain, most_open_first, rivals_of
from tracekit.study.probe import probe, turn_s
from tracekit.study.turns import Turns

TURN_MS, TURNS = 250.0, 8
PER_EPOCH = 80

Sizes = NDArray[np.float64]
ALIKE = np.ones(1)


def probed(
    path: Path,
    workers: int,
    batch_ms: list[float],
    begins_ms: float,
    busy_turns: int = TURNS,
    sizes: Sizes = ALIKE,
    in_turns: int = 2,
    start_ms: float = 0.0,
    epoch_of: int = 1 << 30,
) -> Probed:
    """A run in `path` that has every second turn, or third (`in_turns`), and takes so many ms for the batches of each
    of its turns, times the size of each, over and over; after some of the turns it makes none."""
    tape, stops, index = Tape(process=0, role="main"), [(0, ns(begins_ms))], 0
    tape.gap(begins_ms)
    for turn in range(TURNS):
        ends = tape.now + ns(TURN_MS)
        while turn < busy_turns and tape.now + ns(took_ms := batch_ms[turn] * sizes[index % len(sizes)]) < ends:
            if start_ms and index % PER_EPOCH == 0:
                tape.gap(start_ms)
            start = tape.now
            tape.fetch(0.9 * took_ms, turn=index, cpu_ms=0.1 * took_ms)
            tape.add("batches", start, tape.now, loader="loader", epoch=index // epoch_of, index=index, worker=-1)
            tape.gap(0.1 * took_ms)
            index += 1
        tape.now = ends + ns((in_turns - 1) * TURN_MS)
        stops.append((ends, tape.now))
    prefetch = 2 if workers else None
    manifest = make_manifest(cpus=4, loaders={"loader": Loader(num_workers=workers, prefetch_factor=prefetch)})
    make_run(path, [tape], manifest=manifest)
    offset = BEGIN_NS - open_run(path).manifest.clock_offset_ns
    return Probed(path.name, [(stopped + offset, resumed + offset) for stopped, resumed in stops])


def with_probe(
    path: Path,
    *conditions: tuple[int, list[float]],
    busy_turns: int = TURNS,
    sizes: tuple[Sizes, Sizes] = (ALIKE, ALIKE),
) -> Path:
    make_run(path, [Tape(process=0, role="main")])
    sitting = [
        probed(path / PROBE / str(number), *each, number * TURN_MS, busy_turns, sizes[number % 2], len(conditions))
        for number, each in enumerate(conditions)
    ]
    save_sittings(path, [sitting])
    return path


def test_settings_are_compared_in_the_turns_they_had_side_by_side(tmp_path: Path) -> None:
    """GIVEN 4 workers that take half as long in every turn, while the machine changes its speed THEN that is seen, and
    what storage took in a stop is no reading."""
    speeds = [1.0, 2.0, 1.0, 1.5, 1.0, 1.0, 2.0, 1.0]
    path = with_probe(tmp_path / "run", (0, [8 * speed for speed in speeds]), (4, [4 * speed for speed in speeds]))
    found = probes(open_run(path))["loader"]
    (seen,) = found.seen
    assert (seen.workers, seen.prefetch) == (4, 2)
    assert seen.ratio == pytest.approx(0.5, rel=0.05) and 0 < seen.error < 0.15
    assert found.costs.settings.num_workers == 4
    assert (found.costs.wait + found.costs.gap).max() < 0.01 and found.costs.blocked.max() < 0.008


def test_two_other_settings_are_both_compared_with_those_of_the_run(tmp_path: Path) -> None:
    """GIVEN 4 workers with which a batch takes half as long, and 2 with three quarters THEN both are seen."""
    paces = (0, [8.0] * TURNS), (4, [4.0] * TURNS), (2, [6.0] * TURNS)
    run = open_run(with_probe(tmp_path / "run", *paces))
    found = probes(run)["loader"]
    assert [(each.workers, round(each.ratio, 1)) for each in found.seen] == [(4, 0.5), (2, 0.8)]


def test_that_workers_start_as_an_epoch_begins_is_no_error(tmp_path: Path) -> None:
    """GIVEN epochs at whose begin 4 workers take three times as long as none, and half as long else THEN what was seen
    is surer than where nobody knows when an epoch begins, and holds what whole epochs take."""
    seen = []
    for name, epoch_of in (("told", PER_EPOCH), ("untold", 1 << 30)):
        path = make_run(tmp_path / name, [Tape(process=0, role="main")])
        sitting = [
            probed(path / PROBE / str(number), workers, [batch_ms] * TURNS, number * TURN_MS, start_ms=start_ms,
                   epoch_of=epoch_of)
            for number, (workers, batch_ms, start_ms) in enumerate([(0, 6.0, 20.0), (4, 3.0, 60.0)])
        ]  # fmt: skip
        save_sittings(path, [sitting])
        seen += probes(open_run(path))["loader"].seen
    told, untold = seen
    truth = (PER_EPOCH * 3 + 60) / (PER_EPOCH * 6 + 20)
    assert told.error < 0.7 * untold.error and abs(np.log(told.ratio / truth)) < told.error


def test_what_was_seen_is_as_uncertain_as_turns_differ(tmp_path: Path) -> None:
    paces = np.random.default_rng(1).lognormal(np.log(5), 0.5, TURNS)
    path = with_probe(tmp_path / "run", (0, [5.0] * TURNS), (4, list(paces)))
    (seen,) = probes(open_run(path))["loader"].seen
    assert 0.2 < seen.error < 1.2


def test_the_same_samples_in_both_tell_more_than_turns(tmp_path: Path) -> None:
    """GIVEN batches of which some take ten times as long, 4 workers with which each takes two thirds THEN the turns,
    each with others of them, tell less than the same ones of both do; where these are others too, they tell no more."""
    order = np.random.default_rng(3)
    sizes = order.choice([1.0, 10.0], 400, p=[0.8, 0.2])
    others = order.permutation(sizes)
    same, other = (
        probes(open_run(with_probe(tmp_path / name, (0, [3.0] * TURNS), (4, [2.0] * TURNS), sizes=(sizes, theirs))))
        for name, theirs in (("same", sizes), ("other", others))
    )
    (of_same,), (of_others,) = same["loader"].seen, other["loader"].seen
    assert of_same.ratio == pytest.approx(2 / 3, rel=0.08) and of_same.error < 0.1
    assert of_others.error > 1.5 * of_same.error
    assert abs(np.log(of_others.ratio / (2 / 3))) < of_others.error


@pytest.mark.parametrize(
    ("batch_s", "expected"), [(0.001, 0.1), (0.05, 0.6), (0.18, 5 / 6), (0.25, 5 / 6), (0.5, 1.5), (3.0, 9.0)]
)
def test_each_has_turns_enough_where_batches_are_long(batch_s: float, expected: float) -> None:
    assert turn_s(batch_s, 0.0) == pytest.approx(expected)


@pytest.mark.parametrize(("blocked_s", "expected"), [(0.001, 0.1), (0.015, 0.18), (0.2, 0.25)])
def test_turns_are_long_against_what_is_read_while_stopped(blocked_s: float, expected: float) -> None:
    assert turn_s(0.002, blocked_s) == pytest.approx(expected)


def test_too_few_turns_tell_nothing_of_the_pace(tmp_path: Path) -> None:
    path = with_probe(tmp_path / "run", (0, [8.0] * TURNS), (4, [4.0] * TURNS), busy_turns=2)
    found = probes(open_run(path))["loader"]
    assert not found.seen and len(found.costs) > 0


def test_a_program_that_could_not_run_beside_itself_tells_of_storage_alone(tmp_path: Path) -> None:
    found = probes(open_run(with_probe(tmp_path / "run", (4, [4.0] * TURNS))))["loader"]
    assert not found.seen and found.costs.settings.num_workers == 4


def test_whole_runs_one_after_the_other_are_told_apart_in_rounds(tmp_path: Path) -> None:
    path = make_run(tmp_path / "run", [Tape(process=0, role="main")])
    workers = (0, 4, 2)
    sittings = []
    for number in range(3):
        runs = [probed(path / PROBE / f"{number}.{each}", each, [4.0] * TURNS, 1) for each in workers]
        sittings.append([Probed(each.run, []) for each in runs])
    save_sittings(path, sittings)
    found = probes(open_run(path))["loader"]
    assert found.alone and not found.seen and found.costs.settings.num_workers in workers[1:]
    assert [tuple(each.settings.num_workers for each in one) for one in found.rounds] == [workers] * 3


def test_a_probe_that_cannot_be_read_is_named_and_the_run_explained(tmp_path: Path) -> None:
    path = make_run(tmp_path / "run", [Tape(process=0, role="main")])
    make_run(path / PROBE / "1", [Tape(process=0, role="main")])
    save_sittings(path, [[Probed("1", [])]])
    assert "probe was left out" not in analyze(open_run(path)).advice
    (manifest,) = (path / PROBE / "1" / "manifest").glob("*.json")
    manifest.write_text("{")
    report = analyze(open_run(path))
    assert "probe was left out" in report.advice and str(manifest) in report.advice


ONE = '{"run": "1", "stops": []}'


STRANGE = [
    "{", "[1]", "[]", "[[]]", "", f"[{ONE}]", f"[[{ONE}, {ONE}], [{ONE}]]", f"[[{ONE}], [{ONE}]]",
    '[[{"run": "../run", "stops": []}]]', '[[{"run": 1}]]', '[[{"run": "1", "stops": [[1, 99999999999999999999]]}]]',
]  # fmt: skip


@pytest.mark.parametrize("content", STRANGE)
def test_what_took_turns_is_not_taken_from_a_strange_file(tmp_path: Path, content: str) -> None:
    path = make_run(tmp_path / "run", [Tape(process=0, role="main")])
    (path / PROBE).mkdir()
    (path / PROBE / "turns.json").write_text(content)
    with pytest.raises(RunError, match=r"turns\.json"):
        load_sittings(path)
    assert "probe was left out" in analyze(open_run(path)).advice


def test_a_probe_that_cannot_be_kept_is_refused_in_a_line(tmp_path: Path) -> None:
    path = make_run(tmp_path / "run", [Tape(process=0, role="main")])
    (path / PROBE).write_text("a file of the user's")
    with pytest.raises(RunError, match="cannot be kept there"):
        clear_probe(path)
    assert (path / PROBE).read_text() == "a file of the user's"


def test_a_study_is_not_probed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    study = create_study(tmp_path / "study")
    (study / STUDY_FILE).write_text("{}")
    assert main(["analyze", "--probe", str(study)]) == 2
    said = capsys.readouterr().err
    assert "only a run can be probed" in said and said.count("\n") == 1


def test_why_a_loader_is_not_probed_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """GIVEN a run that has seen all of its loader but what memory a worker takes THEN that is told, in one line."""
    tape = Tape(process=0, role="main")
    for index in range(20):
        tape.fetch(9, turn=index, cpu_ms=1)
        tape.add("batches", tape.now - ns(9), tape.now, loader="loader", epoch=0, index=index, worker=-1, bytes=100)
        tape.gap(1)
    loaders, memory = {"loader": Loader(num_workers=0)}, Memory(free=1 << 30, shared=1 << 30)
    run = make_run(tmp_path / "run", [tape], manifest=make_manifest(cpus=4, loaders=loaders, memory=memory))
    assert main(["analyze", "--probe", str(run)]) == 2
    said = capsys.readouterr().err
    assert "nothing to probe: loader: it is not known how much memory" in said and said.count("\n") == 1


def test_a_program_that_takes_longer_than_it_did_is_not_run_again_and_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """GIVEN a recording of half a second, of a command that is not through in the time of a probe any more THEN that is
    said, and it is run once more, with other settings."""
    tape = Tape(process=0, role="main")
    for index in range(50):
        start = tape.now
        tape.fetch(9, turn=index, cpu_ms=1)
        tape.add("batches", start, tape.now, loader="loader", epoch=0, index=index, worker=-1, bytes=100)
        tape.gap(1)
    tape.counter("process.rss_bytes", 1 << 20, 0, tape.now)
    memory = Memory(free=1 << 34, shared=1 << 34)
    manifest = make_manifest(cpus=4, loaders={"loader": Loader()}, memory=memory)
    run = open_run(make_run(tmp_path / "run", [tape], manifest=manifest))
    ran: list[object] = []
    said: list[str] = []

    def ended(launch: object, *_: float) -> Turns:
        ran.append(launch)
        turns = Turns(subprocess.Popen(["true"]))
        turns.process.wait()
        turns.was_ended = True
        return turns

    monkeypatch.setattr("tracekit.study.probe.alone", ended)
    probe(run, said.append)
    assert len(ran) == 2 and any("after 10 s it is not through" in each for each in said)
    assert [len(each) for each in load_sittings(run.path)] == [1]


def summary(times_ms: dict[int, tuple[float, float]], workers: int = 0, name: str = "loader") -> LoaderSummary:
    """A loader of which between so many ms per batch are told, by workers."""
    grid = [LoaderForecast(count, 2, low, (low + high) / 2, high) for count, (low, high) in times_ms.items()]
    return LoaderSummary(0, name, "", workers, 2, 100, 1, 50.0, 0.8, {}, 1.0, 1, 1.0, 0.0, forecasts=grid)


def test_a_probe_tries_the_best_the_hoped_for_and_the_most_and_fewest_that_are_as_good() -> None:
    """GIVEN 4 workers that lose least whatever storage is, 6 that are best if it answers all at once, and 3 and 8 that
    are within what the replay misses of these THEN the four are tried, none of them twice; the run's own is not."""
    unsure = {0: (50.0, 50.0), 3: (10.6, 14.0), 4: (10.0, 10.0), 6: (9.3, 12.0), 8: (10.6, 13.0), 12: (10.9, 14.0)}
    found = contenders([summary(unsure)], {"loader": (16, 2)})
    assert found == [{"loader": (workers, 2)} for workers in (4, 8, 6, 3)]
    assert {"loader": (4, 2)} not in contenders([summary(unsure, workers=4)], {"loader": (16, 2)})
    sure = {0: (50.0, 50.0), 4: (10.0, 10.0), 8: (12.0, 12.0)}
    assert contenders([summary(sure)], {"loader": (16, 2)}) == [{"loader": (4, 2)}]
    assert contenders([summary(sure, workers=4)], {"loader": (16, 2)}) == []
    best_if_slow = {0: (5.0, 10.6), 1: (9.4, 9.4), 2: (6.8, 9.0), 3: (7.0, 9.3)}
    assert {"loader": (2, 2)} in contenders([summary(best_if_slow, workers=1)], {"loader": (16, 2)})


def test_what_a_probe_has_seen_is_told_beside_the_program_as_it_is() -> None:
    loader = summary({0: (10, 10), 2: (4, 6), 4: (8, 12)})
    assert _what_was_seen(loader) == ""
    for each in loader.forecasts:
        each.seen = each.num_workers in (0, 4)
    told = _what_was_seen(loader)
    assert "0.20 times as long as now (0.16 to 0.24) with 4 workers" in told and told.count("times") == 1


def test_a_number_between_the_best_and_the_most_is_tried() -> None:
    """GIVEN 2 workers that seem best, and 8 that may be as good for all that the replay can tell THEN 4 are tried after
    these, as twice as many as 2 and half of 8, though the replay has them for slower; of 3 and 4 there is none."""
    alike = {0: (50.0, 50.0), 2: (10.0, 10.0), 3: (10.8, 10.8), 4: (11.0, 11.0), 6: (11.0, 11.0), 8: (11.0, 11.0)}
    assert contenders([summary(alike)], {"loader": (16, 2)}) == [{"loader": (workers, 2)} for workers in (2, 8, 4)]
    assert contenders([summary({0: (50.0, 50.0), 3: (10.0, 10.0), 4: (10.8, 10.8)})], {"loader": (16, 2)}) == [
        {"loader": (3, 2)}, {"loader": (4, 2)}
    ]  # fmt: skip


def test_the_fewest_workers_are_tried_with_many_batches_ahead_too() -> None:
    """GIVEN times by workers and batches ahead THEN the fewest that may be as good are tried with 8 batches, not 16."""
    loader = summary({0: (50.0, 50.0), 1: (10.4, 10.4), 2: (10.0, 10.0)}, workers=2)
    loader.forecasts += [LoaderForecast(1, ahead, 10.3, 10.3, 10.3) for ahead in (8, 16)]
    assert contenders([loader], {"loader": (16, 2)}) == [{"loader": (1, 2)}, {"loader": (1, 8)}]


def test_a_probe_of_two_loaders_tries_them_at_once() -> None:
    """GIVEN one with three things to try and one with one THEN it is tried beside each of the three; and one that is
    not to be probed is not."""
    unsure = {0: (50.0, 50.0), 4: (10.0, 10.0), 6: (9.3, 12.0), 8: (9.6, 13.0)}
    sure = {0: (50.0, 50.0), 4: (10.0, 10.0)}
    both = [summary(unsure, name="a"), summary(sure, name="b")]
    assert contenders(both, {"a": (16, 2), "b": (16, 2)}) == [{"a": (workers, 2), "b": (4, 2)} for workers in (4, 8, 6)]
    assert contenders(both, {"b": (16, 2)}) == [{"b": (4, 2)}]


def test_what_was_seen_to_be_best_has_turns_again() -> None:
    """GIVEN two loaders that tried three things at once THEN each gets what is best of these by now, not what nobody
    tried, and one with nothing known of it what it had first."""
    times = {2: (9.0, 9.0), 4: (10.0, 10.0), 6: (8.0, 8.0), 8: (12.0, 12.0), 16: (1.0, 1.0)}
    loaders = [summary(times, name="a"), summary(times, name="b"), summary({}, name="c")]
    tried = [{"a": (4, 2), "b": (8, 2), "c": (1, 2)}, {"a": (6, 2), "b": (2, 2), "c": (3, 2)}]
    assert best_of(tried, loaders) == {"a": (6, 2), "b": (2, 2), "c": (1, 2)}


def test_of_few_that_can_be_tried_what_may_gain_most_comes_first() -> None:
    """GIVEN what seems best, and others of which the last may take the least, and one is certain to be slower THEN they
    are tried in that order, as far as they can be."""
    loader = summary({0: (6.0, 16.0), 4: (10.0, 10.0), 8: (12.0, 13.0), 6: (9.3, 12.0)})
    tried = [{"loader": (workers, 2)} for workers in (4, 8, 6, 0)]
    assert most_open_first(tried, [loader]) == [{"loader": (workers, 2)} for workers in (4, 0, 6, 8)]
    assert most_open_first(tried[:1], [loader]) == tried[:1]


def test_what_is_left_to_try_waits_until_the_best_is_certain() -> None:
    """GIVEN 50 ms a batch as it is THEN what takes 49 ms at most is certain to gain, and what may take 51 is not; of
    two loaders at once both have to be."""
    a, b = summary({2: (40.0, 49.0)}, name="a"), summary({2: (40.0, 51.0)}, name="b")
    assert is_certain({"a": (2, 2)}, [a, b]) and not is_certain({"a": (2, 2), "b": (2, 2)}, [a, b])


def test_as_many_workers_are_tried_with_as_many_batches_ahead_as_fit() -> None:
    loader = summary({0: (40, 50), 2: (20, 30)}, name="a")
    loader.forecasts += [LoaderForecast(2, prefetch, 20, 22, 30) for prefetch in (4, 8, 16)]
    assert deep({"a": (2, 2)}, [loader]) == deep({"a": (2, 8)}, [loader]) == {"a": (2, 8)}
    assert deep({"a": (2, 16)}, [loader]) == {"a": (2, 16)}


def test_what_may_be_as_good_as_the_best_is_looked_at_again() -> None:
    """GIVEN 4 workers that seem best, 40 ms THEN 6 and 2 workers that may take as little have another look, what may
    take least first, and 8 that take longer for certain have none; nor have those that change nothing."""
    loader = summary({2: (40.2, 47.0), 4: (37.0, 43.0), 6: (36.0, 50.0), 8: (41.0, 60.0)}, name="a")
    others: list[Cells] = [{"a": (workers, 2)} for workers in (4, 8, 2, 6, 2)]
    assert rivals_of({"a": (4, 2)}, others, [loader]) == [{"a": (6, 2)}, {"a": (2, 2)}]


def test_what_had_turns_twice_is_surer(tmp_path: Path) -> None:
    """GIVEN a sitting with 2 and 4 workers and another one with 4 alone THEN 2 are as sure as in one, 4 surer, in
    between what each saw."""
    paces = np.random.default_rng(4).lognormal(np.log(4), 0.1, (3, TURNS))
    first = with_probe(tmp_path / "first", (0, [8.0] * TURNS), (4, list(paces[0])), (2, list(paces[1])))
    again = with_probe(tmp_path / "again", (0, [8.0] * TURNS), (4, list(paces[2])))
    both = with_probe(tmp_path / "both", (0, [8.0] * TURNS), (4, list(paces[0])), (2, list(paces[1])))
    second = [
        probed(both / PROBE / str(3 + number), *each, number * TURN_MS)
        for number, each in enumerate([(0, [8.0] * TURNS), (4, list(paces[2]))])
    ]
    save_sittings(both, [*load_sittings(both), second])
    one, two, of_both = (
        {each.workers: each for each in probes(open_run(path))["loader"].seen} for path in (first, again, both)
    )
    assert of_both[2] == one[2]
    assert of_both[4].error < min(one[4].error, two[4].error)
    assert min(one[4].ratio, two[4].ratio) <= of_both[4].ratio <= max(one[4].ratio, two[4].ratio)


@pytest.mark.parametrize("parts", [3, 7])
def test_two_looks_hold_the_truth_as_often_as_they_say(parts: int) -> None:
    """GIVEN parts that differ by chance alone, of two looks THEN what both have seen holds the truth 19 times in 20,
    and is surer than one look by more than the root of two, as few parts tell little of how sure they are."""
    random, truth = np.random.default_rng(0), 0.85
    found = []
    for _ in range(1000):
        lengths = random.lognormal(0.0, 0.25, (2, 2, parts)) * np.array([truth, 1.0])[:, None]
        looks = [
            _ratio((4, 2), _Parts(np.stack([each, np.ones_like(each)], axis=2), np.zeros(parts)), 0.95)
            for each in lengths
        ]
        found.append((_mean(looks), looks[0].error))
    held = np.mean([abs(np.log(both.ratio / truth)) <= both.error for both, _ in found])
    assert 0.93 <= held <= 0.98
    assert np.median([both.error / one for both, one in found]) < 0.7


@pytest.mark.parametrize(("noisier", "level"), [(1.0, 0.975), (1.5, 0.975), (5.0, 0.95)])
def test_the_surer_of_two_ways_holds_the_truth_as_often_as_it_says(noisier: float, level: float) -> None:
    """GIVEN parts that differ by chance alone, and others that differ by as much or more THEN the surer ones hold the
    truth 19 times in 20, and are told as surely as if there were no others where these cannot well be as sure."""
    random, truth = np.random.default_rng(0), 0.85
    held, levels = [], []
    for _ in range(1000):
        ways = []
        for spread in (0.1, 0.1 * noisier):
            lengths = random.lognormal(0.0, spread, (2, 7)) * np.array([truth, 1.0])[:, None]
            ways.append(_Parts(np.stack([lengths, np.ones_like(lengths)], axis=2), np.zeros(7)))
        surer = min(_by_ways((4, 2), ways), key=lambda each: each.error)
        held.append(abs(np.log(surer.ratio / truth)) <= surer.error)
        levels.append(surer.level)
    assert 0.93 <= np.mean(held) <= 0.98
    assert np.median(levels) == level


@given(st.floats(0.001, 0.3), st.floats(0, 1), st.integers(2, 40))
def test_a_turn_counts_the_batch_that_is_on_its_way(period_s: float, begins: float, batches: int) -> None:
    """GIVEN batches that come at one pace THEN every stretch has as many as are due, wherever it begins and ends."""
    when = period_s * np.arange(batches, dtype=np.float64)
    counted = _count_of(when)
    begin = begins * when[-1]
    for end in (when[-1], when[-1] + 0.9 * period_s):
        (count,) = counted(np.array([end])) - counted(np.array([begin]))
        assert count == pytest.approx((end - begin) / period_s)


def test_batches_that_come_at_once_are_all_counted() -> None:
    counted = _count_of(np.array([0.0, 1.0, 1.0, 1.0, 2.0]))
    assert counted(np.array([0.0, 1.0, 1.5, 2.0])) == pytest.approx([1, 4, 4.5, 5])
    assert list(_count_of(np.empty(0))(np.array([0.0, 1.0]))) == [0, 0]


def test_sittings_that_contradict_each_other_are_less_sure(tmp_path: Path) -> None:
    path = with_probe(tmp_path / "run", (0, [8.0] * TURNS), (4, [4.0] * TURNS))
    alone = probes(open_run(path))["loader"].seen[0]
    second = [
        probed(path / PROBE / str(3 + number), workers, [batch_ms] * TURNS, number * TURN_MS)
        for number, (workers, batch_ms) in enumerate([(0, 8.0), (4, 7.0)])
    ]
    save_sittings(path, [*load_sittings(path), second])
    (seen,) = probes(open_run(path))["loader"].seen
    assert seen.error > 2 * alone.error and 0.5 < seen.ratio < 0.9
    assert seen.ratio * np.exp(-seen.error) < 0.5 and seen.ratio * np.exp(seen.error) > 7 / 8
