"""The order in which loaders take samples: what is told of it beforehand, in programs that keep to it or break it."""

import runpy
import sys
from pathlib import Path

from recording import plain, record

PROGRAM = Path(__file__).parent / "programs" / "access_orders.py"


def test_orders_are_known_as_far_ahead_as_they_can_be(tmp_path: Path) -> None:
    """GIVEN loaders whose programs keep to torch's order, or break it between or within epochs THEN each is told as
    known for the run, for an epoch or not at all, every index of a known one as predicted; and nothing is disturbed.
    Without profiler windows: an epoch that begins in one is not looked at, lest the copies be seen in it."""
    expected = {function.__name__: told for function, *told in runpy.run_path(str(PROGRAM))["CASES"]}
    command = [sys.executable, str(PROGRAM), "5"]
    without, done = plain(command), record(command, tmp_path / "run", "--profile", "off")
    assert done.code == 0 and done.out == without.stdout, done.err
    loaders = list(done.run.manifest.loaders.values())
    del loaders[list(expected).index("shared_generator")]  # the one that it shares with, which is made before its own
    found = dict(zip(expected, loaders, strict=True))
    assert {name: [each.predictability, each.checked] for name, each in found.items()} == expected
    wrong = {name for name, each in found.items() if each.predicted != each.checked}
    assert wrong == {"draws_within_an_epoch"}
