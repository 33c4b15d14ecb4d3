"""Programs that do what few do, and that a recorder may trip over: found by reading what others have written."""

import sys
from pathlib import Path

import pytest
from recording import PROGRAMS, comparable, plain, record

from tracekit.run.reader import Run


def recorded(tmp_path: Path, program: str, *words: str, flags: tuple[str, ...] = ()) -> Run:
    """The run of a program that did just what it does without us."""
    command = [sys.executable, str(PROGRAMS / program), *words]
    without, done = plain(command), record(command, tmp_path / "run", *flags)
    assert (done.code, done.out) == (without.returncode, without.stdout)
    assert comparable(done.err) == comparable(without.stderr)
    assert not [note for note in done.run.missing if "switched itself off" in note.why]
    return done.run


@pytest.mark.parametrize("flags", [(), pytest.param(("--profile", "full"), marks=pytest.mark.long)])
def test_odd_loading(tmp_path: Path, flags: tuple[str, ...]) -> None:
    """Also: a loop that takes all batches and asks for no more leaves no epoch early; loaders that are unpickled are
    one by the place of their use; nobody but the program calls what it has put into a sampler; what a sampler takes is
    not taken for starting workers."""
    run = recorded(tmp_path, "odd_loading.py", str(tmp_path), flags=flags)
    sorting = run.sql("SELECT duration_ns, drawing_ns FROM workers WHERE worker >= 0 AND drawing_ns >= 500_000_000")
    assert len(sorting) == 2 and (sorting["drawing_ns"] <= sorting["duration_ns"]).all()
    loaders = run.manifest.loaders
    told = [(each.made, each.predictability, each.left_early) for each in loaders.values() if each.predictability]
    assert told == [(2, "run", False), (1, "run", False), (0, "epoch", False), (2, "none", False), (2, "none", False)]
    assert all(each.checked == each.predicted for each in loaders.values())


@pytest.mark.long
def test_odd_training(tmp_path: Path) -> None:
    """Also: windows end in an evaluation that lasts, and the backward pass of a layer is not over with the first of the
    passes inside it."""
    run = recorded(tmp_path, "shadowing/odd_training.py")
    lasted = 'SELECT max(start_ns + duration_ns) - min(start_ns) AS ns FROM operators GROUP BY "window"'
    assert 0 < run.sql(lasted)["ns"].max() < 1.5e9
    shares = run.sql(
        "SELECT min(layer.duration_ns / whole.duration_ns) AS of_the_pass FROM spans layer, spans whole "
        "WHERE layer.name = 'Checkpointed' AND layer.direction = 'backward' AND whole.name = 'backward' "
        "AND whole.start_ns <= layer.start_ns AND whole.start_ns + whole.duration_ns >= layer.start_ns "
        "GROUP BY layer.start_ns"
    )["of_the_pass"]
    assert len(shares) > 3 and shares.median() > 0.8, shares


def test_pipes_break_as_they_do(tmp_path: Path) -> None:
    """GIVEN a shell script whose commands are ended by a pipe that nobody reads any more THEN that is how they end."""
    command = ["bash", "-c", "yes | head -1; echo ${PIPESTATUS[*]}"]
    done = record(command, tmp_path / "run")
    assert (done.out, done.err) == ("y\n141 0\n", "")
