"""The wheel: all of the package is in it, nothing else is, and it works with what it asks for and no more."""

import importlib.metadata
import shutil
import subprocess
import sys
import venv
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

# Where each folder of the checkout lies in the wheel.
FOLDERS = {"tracekit": "tracekit", "collectors": "tracekit/collectors", "dashboards": "tracekit/dashboards"}


@pytest.fixture(scope="module")
def wheel(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    # Built from a copy: setuptools would take up what earlier builds left in the checkout's build/.
    source = tmp_path_factory.mktemp("source")
    for file in ["pyproject.toml", "README.md", "LICENSE"]:
        shutil.copy(repository / file, source)
    for folder in FOLDERS:
        shutil.copytree(repository / folder, source / folder, ignore=shutil.ignore_patterns("__pycache__"))
    command = [
        sys.executable,
        "-m",
        "build",
        "--wheel",
        "--no-isolation",
        "--outdir",
        str(source / "dist"),
        str(source),
    ]
    built = subprocess.run(command, capture_output=True, text=True)
    assert built.returncode == 0, built.stdout + built.stderr
    [wheel] = (source / "dist").glob("*.whl")
    return wheel


@pytest.fixture(scope="module")
def environment(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment with the wheel and its dependencies, linked from this one so that nothing is downloaded."""
    home = tmp_path_factory.mktemp("environment")
    venv.create(home, with_pip=False)
    [packages] = home.glob("lib/python*/site-packages")
    for distribution in _dependencies("tracekit"):
        _link(distribution, packages)
    command = [sys.executable, "-m", "pip", "--python", str(home / "bin/python"), "install", "--no-index", "--no-deps"]
    installed = subprocess.run([*command, str(wheel)], capture_output=True, text=True)
    assert installed.returncode == 0, installed.stdout + installed.stderr
    return home


def _dependencies(name: str) -> Iterator[importlib.metadata.Distribution]:
    """The installed distributions that one needs, directly or not, without its extras."""
    seen, ahead = {canonicalize_name(name)}, [Requirement(name)]
    while ahead:
        requirement = ahead.pop()
        distribution = importlib.metadata.distribution(requirement.name)
        if requirement.name != name:
            yield distribution
        extras = requirement.extras or {""}
        for needed in map(Requirement, distribution.requires or []):
            applies = needed.marker is None or any(needed.marker.evaluate({"extra": extra}) for extra in extras)
            if applies and canonicalize_name(needed.name) not in seen:
                seen.add(canonicalize_name(needed.name))
                ahead.append(needed)


def _link(distribution: importlib.metadata.Distribution, packages: Path) -> None:
    for top in {file.parts[0] for file in distribution.files or []} - {"..", "__pycache__"}:
        # Two distributions may share a namespace package: the first one links all of it.
        if not (packages / top).exists():
            (packages / top).symlink_to(Path(str(distribution.locate_file(top))))


def test_every_file_of_the_package_is_in_the_wheel(wheel: Path, repository: Path) -> None:
    packed = set(zipfile.ZipFile(wheel).namelist())
    expected = {
        f"{place}/{file.relative_to(repository / folder).as_posix()}"
        for folder, place in FOLDERS.items()
        for file in (repository / folder).rglob("*")
        if file.is_file() and "__pycache__" not in file.parts
    }
    assert "tracekit/collectors/bootstrap/sitecustomize.py" in expected
    assert expected - packed == set()


def test_the_wheel_takes_no_name_but_its_own(wheel: Path) -> None:
    tops = {name.split("/")[0] for name in zipfile.ZipFile(wheel).namelist()}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"tracekit"}


def test_what_is_imported_is_the_wheel(environment: Path, tmp_path: Path) -> None:
    code = "import tracekit.collectors, tracekit.dashboards as d; print(tracekit.__file__, d.__file__, sep='\\n')"
    found = subprocess.run([environment / "bin/python", "-c", code], cwd=tmp_path, capture_output=True, text=True)
    assert found.returncode == 0, found.stderr
    files = [Path(line) for line in found.stdout.splitlines()]
    assert len(files) == 2
    assert all(file.is_relative_to(environment) for file in files)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--version"], importlib.metadata.version("tracekit")),
        (["--help"], "dashboard"),
        (["doctor"], "torch"),
        (["dashboard", "--help"], "Usage:"),
    ],
)
def test_the_installed_command_works(environment: Path, tmp_path: Path, arguments: list[str], says: str) -> None:
    done = subprocess.run([environment / "bin/tracekit", *arguments], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert says in done.stdout


def test_the_installed_command_records(environment: Path, tmp_path: Path) -> None:
    program = [str(environment / "bin/python"), "-c", "print('hello from inside')"]
    command = [str(environment / "bin/tracekit"), "record", "-o", "run", "--", *program]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "hello from inside\n"), done.stderr
    assert list((tmp_path / "run/manifest").glob("*.json"))
