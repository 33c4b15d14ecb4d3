"""Verifying settings of programs whose gain is planted, where the typical step does not tell it."""

import json
import sys
from pathlib import Path

import pytest
from recording import tracekit

TWO_KINDS = """
import time, torch
slow = 4 if torch.get_num_threads() == 1 else 6
model = torch.nn.Linear(1, 1)
optimizer = torch.optim.SGD(model.parameters())
for step in range(300):
    time.sleep(0.008 if step * 7 % 10 < slow else 0.003)
    optimizer.zero_grad()
    model(torch.ones(1)).sum().backward()
    optimizer.step()
"""


@pytest.mark.long
@pytest.mark.alone
def test_a_setting_that_makes_fast_steps_more_frequent_gains_what_all_steps_do(tmp_path: Path) -> None:
    """GIVEN a program of whose steps six in ten take 8 ms and the others 3, and four in ten with one thread WHEN that
    is verified THEN it gains 1 of 6 ms, where the median step says 5 of 8."""
    settings = tmp_path / "settings.toml"
    settings.write_text("[threads]\nintra_op = 1\n")
    words = ["--budget", "80s", "--json", "-o", str(tmp_path / "study"), str(settings)]
    program = [sys.executable, "-c", TWO_KINDS]
    verified = tracekit("verify", *words, "--", *program)
    assert verified.returncode == 0, verified.stderr
    study = json.loads(verified.stdout)
    found = study["comparisons"][0]
    assert study["by_mean"] and found["verdict"] == "faster"
    assert found["gain"]["expected"] == pytest.approx(1 / 6, abs=0.05)
