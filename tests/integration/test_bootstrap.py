"""The start of Python below `tracekit record`: what it costs, and that nobody notices it."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tracekit.record.launch import program_environment

# The interpreter itself: a virtual environment's own start-up files import what they like.
PYTHON = getattr(sys, "_base_executable", sys.executable)


def run(
    arguments: list[str], spool: Path | None, python_path: str = "", python: str = PYTHON, cwd: Path | None = None
) -> subprocess.CompletedProcess[str]:
    """Run Python with the recorder's environment, or (`spool` None) without."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "TRACEKIT"))}
    if python_path:
        environment["PYTHONPATH"] = python_path
    with pytest.MonkeyPatch.context() as patched:
        for name in list(os.environ):
            patched.delenv(name)
        for name, value in environment.items():
            patched.setenv(name, value)
        environment = program_environment(spool)
    return subprocess.run([python, *arguments], capture_output=True, text=True, env=environment, timeout=120, cwd=cwd)


def show(expression: str, spool: Path | None, python_path: str = "") -> object:
    done = run(["-c", f"import sys; shown = {expression}; import json; print(json.dumps(shown))"], spool, python_path)
    assert done.stderr == ""
    return json.loads(done.stdout)


def bootstrap_only(tmp_path: Path) -> str:
    """A PYTHONPATH with the bootstrap on it, as a program passes on that drops variables it does not know."""
    return program_environment(tmp_path)["PYTHONPATH"].split(os.pathsep)[0]


def test_start_imports_next_to_nothing(tmp_path: Path) -> None:
    """GIVEN a program without torch WHEN it starts THEN it has imported no more than json and what json needs."""
    plain = run(["-c", "import json, time, sys; print(*sys.modules)"], None)
    recorded = run(["-c", "import sys; print(*sys.modules)"], tmp_path)

    assert len(list(tmp_path.glob("*.process"))) == 1
    assert set(recorded.stdout.split()) - set(plain.stdout.split()) == {"sitecustomize", "tracekit_start"}


@pytest.mark.parametrize("where", ["unset", "vanished", "a file", "not writable"])
def test_without_a_spool_nothing_is_left(where: str, tmp_path: Path) -> None:
    spool = tmp_path / "spool"
    if where == "a file":
        spool.write_text("")
    elif where == "not writable":
        spool = Path("/proc/self")
    seen = "[sys.path[1:], [type(finder).__name__ for finder in sys.meta_path], sys.modules['tracekit_start'].stem]"
    without = show(seen.replace("sys.modules['tracekit_start'].stem", "None"), None)

    if where == "unset":
        found = show(seen, None, python_path=bootstrap_only(tmp_path))
    else:
        found = show(seen, spool)

    assert found == without
    assert sorted(path.name for path in tmp_path.iterdir()) == (["spool"] if where == "a file" else [])


def test_program_sees_its_own_path(tmp_path: Path) -> None:
    for path in ("", "/a:/b", ":/a", "/a::/b:"):
        assert show("sys.path", tmp_path, path) == show("sys.path", None, path)


@pytest.mark.parametrize(
    "text",
    [
        "raise RuntimeError('theirs')",
        "import no_such_module",
        "raise ImportError('of another')",
        "syntax error here",
        "raise SystemExit(3)",
        "print('hello'); import sys; sys.path.append('/x')",
        "import sitecustomize; print(sitecustomize.__file__, __name__, __spec__.name)",
        "import sys; sys.modules.pop('sitecustomize')",
    ],
)
def test_own_sitecustomize_does_what_it_does_without_us(text: str, tmp_path: Path) -> None:
    site, spool = tmp_path / "site", tmp_path / "spool"
    site.mkdir()
    spool.mkdir()
    (site / "sitecustomize.py").write_text(text + "\n")
    code = "import sys; print('ran', sys.path, 'sitecustomize' in sys.modules)"

    without, recorded = (run(["-B", "-c", code], where, str(site)) for where in (None, spool))

    assert (recorded.returncode, recorded.stdout) == (without.returncode, without.stdout)
    if without.returncode:  # Python gives up and shows where: through us, to the same place
        assert recorded.stderr.splitlines()[-3:] == without.stderr.splitlines()[-3:]
    else:
        assert recorded.stderr == without.stderr


def test_sitecustomize_that_is_a_package(tmp_path: Path) -> None:
    package = tmp_path / "site" / "sitecustomize"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("from .inner import name\nprint(name, __path__)\n")
    (package / "inner.py").write_text("name = 'inner'\n")
    spool = tmp_path / "spool"
    spool.mkdir()

    without, recorded = (run(["-B", "-c", "pass"], where, str(tmp_path / "site")) for where in (None, spool))

    assert recorded.stdout == without.stdout != "" and recorded.stderr == ""


@pytest.mark.parametrize(
    ("arguments", "recorded"),
    [
        (["-m", "pip", "--version"], False),
        (["-mpip", "--version"], False),
        (["-um", "pip", "--version"], False),
        (["-m", "venv", "--help"], False),
        (["-X", "dev", "-m", "venv", "--help"], False),
        (["bin/pip", "install"], False),
        (["bin/pip3.11"], False),
        (["-c", "from multiprocessing.resource_tracker import main;0"], False),
        (["-m", "json.tool", "--help"], True),
        (["train.py", "-m", "pip"], True),
        (["-u", "train.py", "-m", "venv"], True),
        (["train.py", "pip"], True),
        (["-c", "pass", "-m", "build"], True),
        (["-c", "'bin/pip'"], True),
        (["pip.py"], True),
        ([], True),
    ],
)
def test_packaging_tools_are_left_alone_and_programs_are_not(
    arguments: list[str], recorded: bool, tmp_path: Path
) -> None:
    for name in ("train.py", "pip.py", "bin/pip", "bin/pip3.11"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("")
    spool = tmp_path / "spool"
    spool.mkdir()

    done = run(arguments, spool, cwd=tmp_path)

    assert done.returncode == 0, done.stderr
    assert bool(list(spool.iterdir())) == recorded


@pytest.mark.parametrize("version", ["2.7", "3.6", "3.8", "3.9", "3.10", "3.12", "3.13", "3.14"])
def test_other_pythons_below_the_program_run_as_ever(version: str, tmp_path: Path) -> None:
    """GIVEN a helper that runs in a Python of another age THEN it starts, prints and ends as without us."""
    python = shutil.which(f"python{version}")
    if python is None or subprocess.run([python, "-c", ""], capture_output=True, check=False).returncode:
        pytest.skip(f"python{version} is not installed here")
    site, spool = tmp_path / "site", tmp_path / "spool"
    site.mkdir()
    spool.mkdir()
    if version != "2.7":
        (site / "sitecustomize.py").write_text("print('theirs')\n")

    without, recorded = (
        run(["-B", "-c", "import json; print('ran')"], where, str(site), python) for where in (None, spool)
    )

    assert (recorded.returncode, recorded.stdout, recorded.stderr) == (0, without.stdout, without.stderr)
    assert bool(list(spool.iterdir())) == (version in ("3.12", "3.13", "3.14"))
