"""Which process speaks for its host in the manifest."""

from types import SimpleNamespace
from typing import Any

import pytest

from tracekit.record.flush import _cpus_of, _precedence


def speaks(*told: tuple[int, int, bool]) -> int:
    """Of processes with a rank, steps, and whether they load for another one."""
    found: list[tuple[Any, dict[str, Any]]] = []
    for number, (rank, steps, is_worker) in enumerate(told):
        facts: dict[str, Any] = (
            {"torch": {}} | ({"rank": rank} if rank >= 0 else {}) | ({"worker": 0} if is_worker else {})
        )
        found.append((SimpleNamespace(process=number), {"steps": steps, "facts": facts}))
    return int(min(found, key=lambda each: _precedence(*each))[0].process)


def test_the_lowest_rank_speaks_though_another_began_before_or_has_more_steps() -> None:
    assert speaks((-1, 0, False), (1, 100, False), (0, 99, False)) == 2
    assert speaks((1, 100, False), (0, 0, False)) == 0  # it never came to its loop
    assert speaks((0, 50, False), (1, 50, False), (0, 80, False)) == 2  # started again


def test_before_any_has_steps_a_rank_speaks_rather_than_its_launcher() -> None:
    assert speaks((-1, 0, False), (0, 0, False), (1, 0, False)) == 1


def test_of_others_who_has_most_steps_and_no_worker() -> None:
    assert speaks((-1, 10, False), (-1, 20, False), (-1, 20, False), (-1, 50, True)) == 1


@pytest.mark.parametrize(
    ("masks", "expected"),
    [
        (["0x2"], [1]),
        (["0x1", "0x4"], [0, 2]),  # ranks, each on a CPU of its own
        (["0x2", "0xff"], []),  # what has started it may use all
        (["0x2", None], []),
        (["0x2", "all"], []),
        (["0x100"], []),  # it has gone where it was not allowed to
        ([], []),
    ],
)
def test_a_program_has_the_cpus_that_its_processes_were_started_on(masks: list[object], expected: list[int]) -> None:
    assert _cpus_of([{"facts": {"cpus": mask}} for mask in masks], [0, 1, 2, 3]) == expected
