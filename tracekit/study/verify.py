"""Verification: whether what was recommended makes this command faster, in fresh processes."""

import secrets
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tracekit.analysis.report_schema import Setting
from tracekit.settings.file import Entry
from tracekit.study.result import Study
from tracekit.study.rounds import Pair, Rounds
from tracekit.study.runs import Condition, StudyRuns

BASELINE, RECOMMENDED = "baseline", "recommended"


def verify(
    command: list[str],
    folder: Path,
    settings: dict[str, Any],
    best_fixed: int | None,
    budget_s: float,
    say: Callable[[str], None],
    predicted: Sequence[Setting] = (),
) -> Study:
    """Compare the settings with nothing set, and with the best one thread count where that is known and another; what
    was predicted of them is told beside it.

    Raises StudyError when the program fails, has no steps or does not take the settings; RunError when the folder is
    taken.
    """
    deadline = time.monotonic() + budget_s
    runs = StudyRuns.create(folder, command, say)
    if any(name.startswith("loader.") for name in settings):
        runs.compare_loops()
    conditions = [Condition(BASELINE), Condition(RECOMMENDED, settings)]
    pairs = [Pair(BASELINE, RECOMMENDED)]
    if best_fixed is not None and settings != {"threads.intra_op": best_fixed}:
        conditions.append(Condition(f"fixed:{best_fixed}", {"threads.intra_op": best_fixed}))
        pairs.append(Pair(conditions[-1].name, RECOMMENDED))
    rounds = Rounds(runs, conditions, lambda: pairs, secrets.randbits(32))
    entries = [Entry(name, value) for name, value in settings.items()]

    def save() -> Study:
        verdict = rounds.comparisons()[0].verdict
        return rounds.save("verify", entries, f"Verified against nothing set: {verdict}.", predicted=list(predicted))

    rounds.measure(deadline, save)
    return save()
