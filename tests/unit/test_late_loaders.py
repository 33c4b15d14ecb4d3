"""What the loaders of ranks wait for that make the others wait."""

from pathlib import Path

import pytest
from ranks import STEP_MS, both, delay, noise, ranks_run

from tracekit.advice import analyze
from tracekit.analysis.text import text_report


@pytest.mark.parametrize("late", [0, 1])
def test_the_loaders_of_a_rank_whose_loading_is_waited_for_are_told(late: int, tmp_path: Path) -> None:
    """GIVEN two ranks, of which one waits for storage for longer THEN why is told of that one, whichever it is."""
    longer = both(delay("loading", 0.3 * STEP_MS, lambda step: late), noise(0.002))
    report = analyze(ranks_run(tmp_path / "run", 2, 100, longer, made_with=0.2))
    assert any(each.id == "delay.root_cause" and each.evidence["rank"] == late for each in report.findings)
    splits = [each for each in report.findings if each.id == "loading.split"]
    assert [each.evidence.get("rank", 0) for each in splits] == list(range(late + 1))
    assert splits[late].evidence["storage"] > 0.5  # type: ignore[operator]
    if late:
        assert "on rank 1 the program waits for loader" in " ".join(text_report(report).split())


def test_where_no_loading_is_waited_for_that_of_one_rank_is_told(tmp_path: Path) -> None:
    report = analyze(ranks_run(tmp_path / "run", 2, 100, noise(0.002), made_with=0.2))
    assert len([each for each in report.findings if each.id == "loading.split"]) == 1
