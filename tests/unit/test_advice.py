"""The thread rule: recommends where crowding did harm, and says why where it recommends nothing."""

from pathlib import Path
from typing import Any, cast

import msgspec
import pytest

from tracekit.advice.threads import fewer_threads
from tracekit.analysis.report_schema import Report, StepSummary
from tracekit.analysis.threads import Crowding
from tracekit.run.manifest import Overhead
from tracekit.run.reader import Run

NO_RUN = Run(Path())  # the rules look at the report alone

CROWDED = Crowding(
    host="node0", cpus=8, affinity=8, quota=None, physical_cores=8, processes=2, intra_op=8, worker_cpus=0.0,
    threads=16, runnable=7.0, waiting=0.3, p=0.001, throttled=None, steal=0.0, psi_cpu=0.5, recording=0.01,
)  # fmt: skip


def report(*crowding: Crowding, steps: int = 100) -> Report:
    return Report(
        schema=1,
        run="r",
        complete=True,
        missing=[],
        steps=StepSummary(steps, 10.0, 11.0, []),
        findings=[],
        settings=[],
        advice="",
        path="runs/my run",
        command=["python", "train.py", "--name", "it's\nnew"],
        condition="baseline",
        exit_code=0,
        exit_signal=None,
        overhead=Overhead(),
        layers=[],
        layer_count=0,
        operators=[],
        operator_count=0,
        threads=[],
        crowding=list(crowding),
        counters=[],
    )


def recommended(**changes: Any) -> int | None:
    advice = fewer_threads(NO_RUN, report(msgspec.structs.replace(CROWDED, **changes)))
    assert advice.why
    assert bool(advice.settings) != advice.why.startswith(("No", "Nothing"))
    return cast(int, advice.settings[0].recommended) if advice.settings else None


def test_a_recommendation_is_complete() -> None:
    [setting] = fewer_threads(NO_RUN, report(CROWDED)).settings
    assert (setting.name, setting.current, setting.recommended) == ("threads.intra_op", 8, 4)
    assert (setting.basis, setting.effect) == ("rule", "numerics")
    assert (setting.gain.low, setting.gain.expected, setting.gain.high) == (0.0, 0.15, 0.3)
    assert "8 threads in each of 2 processes want to run on 8 CPUs of node0" in setting.why
    assert "on average 7.0 are running or ready to run" in setting.why
    assert "they wait for a CPU 30% of the time more than before the loop" in setting.why
    assert setting.apply == ("tracekit apply 'runs/my run/settings.toml' -- python train.py --name $'it\\'s\\x0anew'")


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"processes": 3, "threads": 24}, 2),
        ({"processes": 16, "threads": 128}, 1),
        ({"processes": 1, "intra_op": 8, "threads": 10, "worker_cpus": 2.9}, 6),
        ({"physical_cores": 4}, 2),
        ({"physical_cores": None}, 4),
        ({"waiting": None, "p": None, "quota": 8.0, "throttled": 0.2}, 4),
        ({"waiting": -0.1, "p": 0.9, "runnable": 12.0}, 4),  # neighbours disturb, but these crowd out each other
    ],
)
def test_values(changes: dict[str, Any], expected: int) -> None:
    assert recommended(**changes) == expected


@pytest.mark.parametrize(
    "changes",
    [
        {"threads": 8, "intra_op": 4},  # fits
        {"threads": 8, "intra_op": 4, "physical_cores": 4},  # hyperthreads alone: harm was not measured
        {"waiting": 0.005},  # no more than recording may cause
        {"waiting": -0.1},
        {"p": 0.3},  # may be accident
        {"waiting": None, "p": None, "runnable": None},  # not measured
        {"waiting": None, "p": None, "throttled": 0.001},
        {"threads": None, "intra_op": None},
        {"processes": 9, "intra_op": 1, "threads": 9},  # one thread each is the least
    ],
)
def test_nothing_needless(changes: dict[str, Any]) -> None:
    assert recommended(**changes) is None


def test_the_worst_host_decides() -> None:
    other = msgspec.structs.replace(CROWDED, host="node1", cpus=4, affinity=4, physical_cores=4)
    [setting] = fewer_threads(NO_RUN, report(CROWDED, other)).settings
    assert setting.recommended == 2


def test_too_many_processes_are_called_that() -> None:
    alone = msgspec.structs.replace(CROWDED, processes=16, intra_op=1, threads=16)
    assert "start fewer" in fewer_threads(NO_RUN, report(alone)).why


def test_without_steps_nothing_is_recommended() -> None:
    advice = fewer_threads(NO_RUN, report(steps=0))
    assert not advice.settings
    assert "without steps" in advice.why
