"""Gradient buckets of real ranks: predicted, applied, studied."""

import json
import subprocess
from pathlib import Path

import pytest
from recording import ENVIRONMENT, TORCHRUN, TRACEKIT

from tracekit.advice import analyze
from tracekit.run.reader import Run, open_run

PROGRAM = """
import hashlib, sys
import torch, torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
dist.init_process_group("gloo")
torch.manual_seed(0)
torch.set_num_threads(1)
layers = [nn.Linear(256, 256) for _ in range(2 if "few" in sys.argv else 12)]
look = {"find_unused_parameters": True} if "look" in sys.argv else {}
shared = DistributedDataParallel(nn.Sequential(*layers), None, None, 0, **look) if "wrap" in sys.argv else layers[0]
optimizer = torch.optim.SGD(shared.parameters(), lr=0.01)
for step in range(60):
    optimizer.zero_grad()
    shared(torch.ones(8, 256) + dist.get_rank()).pow(2).mean().backward()
    optimizer.step()
weights = torch.cat([each.detach().flatten() for each in shared.parameters()])
if dist.get_rank() == 0:
    cap = getattr(shared, "bucket_bytes_cap", 0) / (1 << 20)
    caps = [each / (1 << 20) for each in getattr(shared, "bucket_bytes_cap_list", [])]
    learnt = hashlib.sha256(weights.numpy().tobytes()).hexdigest()
    print(cap, *caps, getattr(shared, "gradient_as_bucket_view", None), learnt)
dist.barrier()  # gloo may abort a rank whose peer has gone before it
dist.destroy_process_group()
"""


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("ddp") / "program.py"
    path.write_text(PROGRAM)
    return path


def run(*words: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(words, capture_output=True, text=True, timeout=280, env=ENVIRONMENT)


@pytest.fixture(scope="module")
def with_torchs_buckets(program: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Run]:
    """What the program prints without settings, and the recording of it, which changes no bit (`test_distributed`)."""
    folder = tmp_path_factory.mktemp("own") / "run"
    recorded = run(*TRACEKIT, "record", "-q", "-o", str(folder), "--", *TORCHRUN, str(program), "wrap")
    assert recorded.returncode == 0, recorded.stderr
    return recorded.stdout, open_run(folder)


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("settings") / "settings.toml"
    path.write_text("[ddp]\nbucket_cap_mb = 0.25\nfirst_bucket_mb = 0.125\ngradient_as_bucket_view = true\n")
    return str(path)


def test_settings_reach_every_rank_and_two_ranks_get_the_same_weights(
    program: Path, settings: str, with_torchs_buckets: tuple[str, Run]
) -> None:
    """GIVEN arguments by place, and settings for two of them THEN these are in force, and no bit of what is learnt is
    another one."""
    cap, view, weights = with_torchs_buckets[0].split()
    assert (cap, view) == ("25.0", "False")
    changed = run(*TRACEKIT, "apply", settings, "--", *TORCHRUN, str(program), "wrap")
    assert changed.stdout.split() == ["0.25", "0.125", "0.25", "True", weights]


@pytest.mark.long
def test_a_program_that_wraps_nothing_is_told_so_and_runs(program: Path, settings: str) -> None:
    unwrapped = run(*TRACEKIT, "apply", settings, "--", *TORCHRUN, str(program), "")
    assert unwrapped.returncode == 0 and "wrapped no model" in unwrapped.stderr


def test_the_buckets_of_a_run_are_regrouped(with_torchs_buckets: tuple[str, Run]) -> None:
    """GIVEN 3 MB of gradients in torch's own buckets THEN a step with every other cap is predicted, with a range; of
    the run's own cap what was measured."""
    report = analyze(with_torchs_buckets[1])
    assert report.buckets is not None, report.advice
    own, *others = report.buckets.forecasts
    assert own.expected_ms == pytest.approx(report.steps.median_ms)
    assert {each.cap_mb for each in others} == {0.25, 0.5, 1.0, 2.0, 4.0}
    counts = [each.buckets for each in others]
    assert counts == sorted(counts, reverse=True) and counts[-1] == 1
    assert all(each.low_ms <= each.expected_ms <= each.high_ms for each in others)
    assert report.buckets.ideal_ms is not None and report.buckets.ideal_ms <= own.expected_ms


@pytest.mark.long
def test_a_look_for_unused_parameters_that_finds_none_is_told_and_can_be_done_without(
    program: Path, tmp_path: Path
) -> None:
    folder, settings = tmp_path / "run", tmp_path / "settings.toml"
    words = [*TORCHRUN, str(program), "wrap", "look"]
    recorded = run(*TRACEKIT, "record", "-q", "-o", str(folder), "--", *words)
    report = analyze(open_run(folder))
    (found,) = [each for each in report.findings if each.id == "ddp.unused_parameters"]
    assert found.evidence == {"ranks": 2, "passes": 2 * 60, "with_some": 0, "behind_others": 0}
    assert "ddp.find_unused_parameters" in report.advice
    assert "ddp.find_unused_parameters" not in [each.name for each in report.settings]
    settings.write_text("[ddp]\nfind_unused_parameters = false\n")
    without = run(*TRACEKIT, "apply", str(settings), "--", *words)
    assert "find_unused_parameters=True was specified" in recorded.stderr
    assert "find_unused_parameters=True was specified" not in without.stderr
    assert without.stdout == recorded.stdout


@pytest.mark.long
@pytest.mark.timeout(600)  # of both budgets
def test_a_study_of_buckets_compares_what_may_be_best(program: Path, tmp_path: Path) -> None:
    for budget in ("100s", "250s"):  # the second where the machine is so slow that no round fits into the first
        study = run(
            *TRACEKIT, "study", "ddp", "--budget", budget, "--json", "-q", "-o", str(tmp_path / budget), "--",
            *TORCHRUN, str(program), "wrap", "few",
        )  # fmt: skip
        assert study.returncode == 0, study.stderr
        found = json.loads(study.stdout)
        names = {each["name"] for each in found["conditions"]}
        assert {"baseline", "gradients in buckets"} <= names
        if compared := [each for each in found["comparisons"] if each["pairs"]]:
            break
        assert "no time for another round after 0 rounds" in found["stopped"]
    assert compared and all(each["verdict"] in ("faster", "slower", "same", "undecided") for each in compared)
