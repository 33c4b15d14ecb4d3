"""The report and its views: the keys that others read, hostile names, and runs that hold little or nothing."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from ranks import ranks_run
from synthetic import Tape, make_manifest, make_run, ns, train, training_run

from tracekit.advice import analyze
from tracekit.advice.loading import _advise
from tracekit.analysis.report import report_json
from tracekit.analysis.report_schema import Finding, Gain, LoaderForecast, LoaderSummary, Setting
from tracekit.analysis.text import text_report
from tracekit.analysis.words import shell_line, shortened, visible
from tracekit.run.manifest import Loader, Missing
from tracekit.run.reader import open_run


def analyzed(path: Path) -> tuple[dict[str, Any], str]:
    report = analyze(open_run(path))
    return json.loads(report_json(report)), text_report(report)


def test_the_keys_that_others_read(tmp_path: Path) -> None:
    found, _ = analyzed(training_run(tmp_path / "run", steps=20))
    assert {"schema", "run", "complete", "missing", "steps", "findings", "settings"} <= found.keys()
    assert (found["schema"], found["run"], found["complete"]) == (1, "run", True)
    assert found["steps"]["count"] == 20
    assert found["steps"]["median_ms"] == 20.0
    assert [phase["name"] for phase in found["steps"]["phases"]] == [
        "loading wait", "forward", "backward", "optimizer", "communication", "other",
    ]  # fmt: skip
    assert sum(phase["share"] for phase in found["steps"]["phases"]) == pytest.approx(1)
    ids = [finding["id"] for finding in found["findings"]]
    assert ids[:2] == ["steps.summary", "layers.ranked"]
    missing = [finding["evidence"] for finding in found["findings"] if finding["id"] == "recording.missing"]
    assert missing == [{"what": note["what"], "why": note["why"]} for note in found["missing"]]
    assert all(evidence.keys() == {"what", "why"} for evidence in missing)
    assert found["layers"][0] == {
        "name": "encoder.rnn", "depth": 1, "calls": 20, "steps": 20, "calls_per_step": 1.0, "mean_ms": 4.0,
        "forward_ms": 4.0, "backward_ms": 5.0, "self_ms": 9.0, "share": 0.45,
    }  # fmt: skip


def test_several_ranks_are_counted_side_by_side(tmp_path: Path) -> None:
    found, text = analyzed(training_run(tmp_path / "run", steps=20, ranks=2))
    assert found["steps"]["count"] == 20
    assert [(each["role"], each["count"]) for each in found["steps"]["processes"]] == [("rank 0", 20), ("rank 1", 20)]
    assert "rank 1" in text


def test_operators_are_ranked(tmp_path: Path) -> None:
    tape = Tape()
    train(tape, 3)
    with tape.operator_around("aten::linear"):
        tape.operator("aten::addmm", 3)
        tape.gap(1)
    found, text = analyzed(make_run(tmp_path / "run", [tape]))
    assert [(each["name"], each["self_ms"]) for each in found["operators"]] == [("aten::addmm", 3), ("aten::linear", 1)]
    assert "operators.ranked" in [finding["id"] for finding in found["findings"]]
    assert "aten::addmm" in text


def test_a_layer_without_a_backward_pass_of_its_own_is_explained(tmp_path: Path) -> None:
    _, training = analyzed(training_run(tmp_path / "training", steps=3))
    tape = Tape()
    for _ in range(3):
        tape.call("Model", 5)
    _, inference = analyzed(make_run(tmp_path / "inference", [tape]))
    assert "'-' under backward" in training
    assert "'-' under backward" not in inference


HOSTILE = "a\x1b[31m\n%s<script>'\"\u202e" + "x" * 200


def test_hostile_names_do_no_harm_to_a_terminal(tmp_path: Path) -> None:
    tape = Tape()
    for _ in range(3):
        tape.call(HOSTILE, 3)
        tape.optimizer(1)
    manifest = make_manifest(command=["python", HOSTILE], condition=HOSTILE, missing=[Missing(HOSTILE, HOSTILE)])
    found, text = analyzed(make_run(tmp_path / "run", [tape], manifest=manifest))
    assert found["layers"][0]["name"] == HOSTILE
    body, following = text.rsplit("next: ", 1)
    assert all(len(line) <= 100 for line in body.splitlines())
    assert all(letter.isprintable() or letter == "\n" for letter in text)
    assert following.count("\n") == 1


@pytest.mark.parametrize(
    ("tapes", "said"),
    [
        ([], "no process of the program reached the recording"),
        ([Tape()], "no recorded process imported torch"),
    ],
)
def test_runs_that_hold_nothing_say_what_is_known(tmp_path: Path, tapes: list[Tape], said: str) -> None:
    found, text = analyzed(make_run(tmp_path / "run", tapes, manifest=make_manifest(torch=None)))
    assert found["steps"]["count"] == 0
    assert found["steps"]["median_ms"] is None
    assert found["settings"] == []
    assert any(said in note["why"] for note in found["missing"])
    assert "STEPS  none found" in text
    assert text.splitlines()[-1].startswith("next: tracekit ")


def test_what_goes_together_has_one_gain(tmp_path: Path) -> None:
    report = analyze(open_run(training_run(tmp_path / "run", steps=20)))
    gain, other = Gain(0.2, 0.32, 0.4), Gain(0.02, 0.05, 0.08)
    report.settings = [
        Setting("loader.x.num_workers", 0, 4, gain, "model", "order", "both", "run it"),
        Setting("loader.x.prefetch_factor", None, 2, gain, "model", "identical", "both", "run it"),
        Setting("loader.x.persistent_workers", False, True, other, "model", "identical", "starts", "run it"),
    ]
    told = " ".join(text_report(report).split())
    assert "num_workers: 4 instead of 0; loader.x.prefetch_factor: 2, not set before, together save 32% of a" in told
    assert "effect on results: order (num_workers), identical (prefetch_factor). both" in told
    assert told.count("32%") == 1 and "persistent_workers: True instead of False, saves 5% of a step" in told


def test_settings_that_may_gain_are_told_where_those_that_lose_least_are_the_run_s(tmp_path: Path) -> None:
    """GIVEN a run whose settings lose the least, whatever storage does, and others that may gain much or lose more THEN
    what a probe would tell is of these."""
    costs, summary, report = (
        SimpleNamespace(
            loader="x", settings=Loader(made=1), in_turn_with="", in_loop=1.0, busy=0.1, alone=1.0, maker_cpus=1.0
        ),
        LoaderSummary(0, "x", "train.py:3", 2, 2, 40, 1, 10.0, 0.5, {"cpu": 1.0}, 0.9, 2, 1.0, 0.0),
        analyze(open_run(training_run(tmp_path / "run", steps=20))),
    )
    summary.forecasts = [LoaderForecast(2, 2, 10, 10, 10, seen=True), LoaderForecast(4, 2, 5, 9, 25)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tracekit.advice.loading._share_of_loop", lambda costs, loop: 1.0)
        settings, why = _advise(open_run(tmp_path / "run"), report, cast(Any, costs), summary, 1.0)
    assert not settings and "with 4 workers of 2 batches ahead a step may take 50% less, or 150% more" in why


def test_what_goes_together_for_several_reasons_has_one_gain_too(tmp_path: Path) -> None:
    report = analyze(open_run(training_run(tmp_path / "run", steps=20)))
    gain = Gain(-0.04, -0.02, 0.01)
    report.settings = [
        Setting("loader.x.num_workers", 0, 4, gain, "model", "order", "both; an iterator more", "run it"),
        Setting("loader.x.prefetch_factor", None, 2, gain, "model", "identical", "both", "run it"),
    ]
    told = " ".join(text_report(report).split())
    assert told.count("2% of a step") == 1 and "together cost 2% of a step (-1% to 4%)" in told
    assert "both; an iterator more. both" in told


def test_what_is_found_of_loaders_and_the_path_through_all_ranks_is_told(tmp_path: Path) -> None:
    report = analyze(ranks_run(tmp_path / "run", 2, 40))
    report.loaders = [LoaderSummary(0, "x", "train.py:3", 2, 2, 40, 1, 2.0, 0.5, {"cpu": 1.0}, 0.9, 2, 1.0, 0.0)]
    report.findings += [
        Finding("loading.worker_threads", "each worker keeps 4 CPUs busy", {}),
        Finding("loading.predictability", "the order is known", {}),
    ]
    told = " ".join(text_report(report).split())
    assert "each worker keeps 4 CPUs busy" in told and "the order is known" not in told
    assert "the critical path through group world takes" in told and "backward 45%" in told


def test_what_recording_said_is_not_said_again(tmp_path: Path) -> None:
    notes = [Missing("steps, layers, operators, batches, collectives", "the program never imported torch")]
    found, _ = analyzed(make_run(tmp_path / "run", [Tape()], manifest=make_manifest(torch=None, missing=notes)))
    assert [note["what"] for note in found["missing"]] == [notes[0].what, "counters"]


@pytest.mark.parametrize(
    ("by_workers", "itself", "said"),
    [
        ([0, 1, 4], [0, 3], "how 5 of 10 batches were made"),  # of five each
        ([0, 1], [0, 1, 2, 3, 4], "how 3 of 5 batches were made"),
        ([0, 1, 2, 3, 4, 5], [0, 1, 2, 3, 4], ""),  # one was made and never taken
        ([], [0], "how 4 of 5 batches were made"),  # of workers that were not reached it is said elsewhere
        ([], [], ""),
    ],
)
def test_batches_that_were_left_out_are_counted(
    tmp_path: Path, by_workers: list[int], itself: list[int], said: str
) -> None:
    main, worker = Tape(), Tape(process=1, role="loader_worker", parent=0, worker=0)
    main.add("workers", 0, 1, loader="with workers", epoch=0, worker=0, pid=1001)
    main.add("workers", 0, 1, loader="not reached", epoch=0, worker=0, pid=4711)
    for turn in by_workers:
        worker.fetch(1.0, turn=turn)
        worker.batch(0.5, loader="inside a data set of a worker")
    for index in range(5):
        main.batch(2.0, loader="with workers", index=index, worker=0)
        main.batch(2.0, loader="not reached", index=index, worker=0)
        begun = main.now
        if index in itself:
            main.gap(0.1)
            main.fetch(1.5, turn=index)
            main.now = begun + ns(0.5)
            main.batch(0.2, loader="inside a data set")
        main.now = begun
        main.batch(2.0, loader="without workers", index=index)
    found, _ = analyzed(make_run(tmp_path / "run", [main, worker]))
    assert [note["what"] for note in found["missing"] if "batches were made" in note["what"]] == [said] * bool(said)


@pytest.mark.parametrize(
    ("cpus", "said"), [(4, "waits 45% of the time, 4% in epochs as most are"), (1, "the CPUs are full (100%)")]
)
def test_an_epoch_that_waits_unlike_the_others_is_told_apart(tmp_path: Path, cpus: int, said: str) -> None:
    """GIVEN a data set that computes its samples in the first epoch, and keeps them THEN what is told of usual epochs
    is called so, and no more CPUs are full than there are."""
    tape = Tape()
    tape.gap(500)
    for epoch, wait in enumerate([12.0, *[0.1] * 5]):
        for index in range(20):
            begun = tape.now
            tape.fetch(wait, iteration=epoch, turn=index, cpu_ms=wait)
            tape.now = begun
            tape.batch(wait, epoch=epoch, index=index)
            with tape.layer("Model"):
                tape.gap(1.0)
            with tape.backward():
                tape.gap(1.0)
            tape.optimizer(0.5)
    manifest = make_manifest(cpus, cpus, loaders={"train": Loader(place="train.py:3", batch_size=8)})
    found, _ = analyzed(make_run(tmp_path / "run", [tape], manifest=manifest))
    assert said in found["advice"]


def test_batches_that_took_no_time_are_advised_nothing(tmp_path: Path) -> None:
    tape = Tape()
    for index in range(5):
        tape.fetch(0.0, turn=index)
        tape.batch(0.0, index=index)
        tape.optimizer(0.0)
    manifest = make_manifest(loaders={"train": Loader(place="train.py:3", batch_size=8)})
    found, _ = analyzed(make_run(tmp_path / "run", [tape], manifest=manifest))
    assert "no workers are as good as any" in found["advice"] and not found["settings"]


def test_phases_are_those_of_the_steps_in_which_calls_were_recorded(tmp_path: Path) -> None:
    tape = Tape()
    for step in range(20):
        if step == 10:
            tape.calls_seen(False)
        if step < 10:
            tape.call("Model", 5)
        else:
            tape.gap(5)
        tape.optimizer(5)
    found, text = analyzed(make_run(tmp_path / "run", [tape]))
    assert found["steps"]["count"] == 20
    assert found["steps"]["phase_steps"] == 10
    assert {phase["name"]: phase["share"] for phase in found["steps"]["phases"]}["forward"] == 0.5
    assert "phases from 10 of the steps" in text


def test_a_step_under_way_when_the_program_was_killed_is_named(tmp_path: Path) -> None:
    tape = Tape()
    train(tape, 5)
    tape.batch(2)
    with tape.backward(3):
        pass
    found, _ = analyzed(make_run(tmp_path / "run", [tape], ended=False))
    assert found["steps"]["count"] == 5
    assert not found["complete"]
    assert any(note["what"] == "the last step of process 0" for note in found["missing"])


def test_words() -> None:
    assert visible("a\nb\x1b\u202e\udcff") == "a\\nb\\x1b\\u202e\\udcff"
    assert shortened("encoder.layers.0.self_attention.out_proj", 21) == "encoder.la…n.out_proj"
    assert shell_line(["a b", "", "it's", "x\ty'"]) == "'a b' '' 'it'\"'\"'s' $'x\\x09y\\''"
