"""The order in which loaders take samples: what is told of it beforehand, in programs that keep to it or break it."""

import runpy
import sys
from pathlib import Path

import pytest
import torch
from recording import plain, record
from torch.utils.data import RandomSampler

PROGRAM = Path(__file__).parent / "programs" / "access_orders.py"


@pytest.mark.parametrize("profile", ["auto", pytest.param("full", marks=pytest.mark.long)])
def test_orders_are_known_as_far_ahead_as_they_can_be(tmp_path: Path, profile: str) -> None:
    """GIVEN loaders whose programs keep to torch's order, or break it between or within epochs THEN each is told as
    known for the run, for an epoch or not at all, every index of a known one as predicted; and nothing is disturbed. So
    also where a profiler window of ours is open as an epoch begins, as one always is with `full`."""
    expected = {function.__name__: told for function, *told in runpy.run_path(str(PROGRAM))["CASES"]}
    command = [sys.executable, str(PROGRAM), "5"]
    without, done = plain(command), record(command, tmp_path / "run", "--profile", profile)
    assert done.code == 0 and done.out == without.stdout, done.err
    loaders = list(done.run.manifest.loaders.values())
    del loaders[list(expected).index("shared_generator")]  # the one that it shares with, which is made before its own
    found = dict(zip(expected, loaders, strict=True))
    assert {name: [each.predictability, each.checked] for name, each in found.items()} == expected
    wrong = {name for name, each in found.items() if each.predicted != each.checked}
    assert wrong == {"draws_within_an_epoch", "draws_within_an_epoch_left_early"}


SHUFFLED = """
import torch
from torch.utils.data import DataLoader
if __name__ == "__main__":
    loader = DataLoader(range(256), batch_size=4, shuffle=True, generator=torch.Generator().manual_seed(5))
    for _ in range(3):
        for batch in loader:
            batch + 1
"""


def test_windows_hold_no_operations_of_the_copies(tmp_path: Path) -> None:
    """GIVEN a shuffling loader, of which one window records everything THEN the window holds a permutation for each of
    the program's epochs and none of those that foretold it, and all else that the program did."""
    program = tmp_path / "shuffled.py"
    program.write_text(SHUFFLED)
    done = record([sys.executable, str(program)], tmp_path / "run", "--profile", "full")
    (loader,) = done.run.manifest.loaders.values()
    assert [loader.predictability, loader.checked, loader.predicted] == ["run", 3 * 256, 3 * 256]
    counted = dict(done.run.sql("SELECT name, count(*) FROM operators GROUP BY name").itertuples(index=False))
    assert counted["aten::randperm"] == 3 * _permutations_of_an_epoch()
    assert counted["aten::add"] == 3 * 256 / 4


def _permutations_of_an_epoch() -> int:
    """How often torch's sampler permutes, of which it makes use once."""
    with torch.profiler.profile() as profiler:
        list(RandomSampler(range(256)))
    return sum(event.name == "aten::randperm" for event in profiler.events())
