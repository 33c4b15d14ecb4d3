"""`tracekit doctor` on this machine."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest


def doctor(*arguments: str, **environment: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "tracekit", "doctor", *arguments]
    return subprocess.run(
        command, capture_output=True, text=True, env=dict(os.environ) | environment, check=False, timeout=300
    )


@pytest.fixture(scope="module")
def found() -> dict[str, Any]:
    answer = doctor("--json")
    assert answer.returncode == 0, answer.stderr
    return json.loads(answer.stdout)


def check(found: dict[str, Any], name: str) -> dict[str, Any]:
    return next(check for check in found["checks"] if check["name"] == name)


def test_json_is_one_object_that_tells_the_truth(found: dict[str, Any]) -> None:
    assert found["schema"] == 1
    assert set(found["cpu"]["affinity"]) == os.sched_getaffinity(0)
    assert check(found, "recording inside Python programs")["available"] is True
    assert found["sample_ms"] > 0
    for item in found["checks"]:
        assert item["available"] or item["why"], item


def test_torch_is_asked_in_a_python_of_its_own(found: dict[str, Any]) -> None:
    import importlib.metadata

    assert found["torch"]["version"].startswith(importlib.metadata.version("torch").split("+")[0])
    assert found["torch"]["intra_op"] >= 1
    assert found["torch"]["openmp"]


def test_text_fits_a_terminal() -> None:
    answer = doctor()
    assert answer.returncode == 0, answer.stderr
    lines = answer.stdout.splitlines()
    assert max(map(len, lines)) <= 80
    assert all(line.isprintable() for line in lines)
    assert "recording inside Python programs" in answer.stdout


@pytest.fixture(scope="module")
def without_torch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("path")
    (folder / "torch").mkdir()
    (folder / "torch" / "__init__.py").write_text("raise ImportError('\\x1b[31mlib%snothing.so: not here')\n")
    return folder


def test_what_is_missing_is_said_and_no_failure(without_torch: Path) -> None:
    environment = {"PYTHONPATH": str(without_torch), "TMPDIR": str(without_torch)}
    answer = doctor("--json", **environment)
    assert answer.returncode == 0, answer.stderr
    found = json.loads(answer.stdout)
    assert found["torch"] is None
    torch = check(found, "torch")
    assert not torch["available"]
    assert "not here" in torch["why"]
    assert "pip install torch" in torch["remedy"]
    assert found["spool"]["folder"] == str(without_torch)

    text = doctor(**environment)
    assert text.returncode == 0
    assert "\x1b" not in text.stdout
    assert "Not here" in text.stdout


def test_a_bootstrap_that_does_not_start_is_said(tmp_path: Path) -> None:
    # A usercustomize cannot stop it, an interpreter that ignores PYTHONPATH can.
    wrapper = tmp_path / "python"
    wrapper.write_text(f'#!/bin/sh\nexec "{sys.executable}" -E "$@"\n')
    wrapper.chmod(0o755)
    code = (
        f"import sys; sys.executable = {str(wrapper)!r}; from tracekit.record.examination import _try_injection as t;"
    )
    code += " print(t().available, t().why)"
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert answer.stdout.startswith("False a child Python did not start the recorder")


def test_doctor_itself_imports_no_torch() -> None:
    code = (
        "import sys; from tracekit.cli.main import main; main(['doctor', '--json']); sys.exit('torch' in sys.modules)"
    )
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=300)
    assert answer.returncode == 0, answer.stderr
