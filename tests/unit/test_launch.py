"""Starting the program: what can be reached, what can be run, and the environment it gets."""

import os
import sys
from pathlib import Path

import pytest

import tracekit
from tracekit.record.launch import LaunchError, find_program, injection_problem, program_environment, spawn


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ("-I train.py", "isolated"),
        ("-E train.py", "environment"),
        ("-S train.py", "site"),
        ("-IB train.py", "isolated"),
        ("-uE -m train", "environment"),
        ("-X dev -I train.py", "isolated"),
        ("-W ignore -E train.py", "environment"),
        ("-bW ignore -S train.py", "site"),
        ("-Xdev -Wignore -I train.py", "isolated"),
        ("--check-hash-based-pycs always -I train.py", "isolated"),
        ("-Ic pass", "isolated"),
        ("-I", "isolated"),
        ("train.py -I -E -S", None),
        ("-m train -I", None),
        ("-mIPython", None),
        ("-cI", None),
        ("-um Extra", None),
        ("-c pass -I", None),
        ("- -I", None),
        ("-- -I", None),
        ("-XI train.py", None),
        ("-WIgnore train.py", None),
        ("-X I train.py", None),
        ("-W E", None),
        ("-sBOu train.py", None),
        ("--version", None),
        ("--help-all -I", "isolated"),
        ("", None),
    ],
)
def test_what_keeps_the_recorder_out_of_a_python(words: str, why: str | None) -> None:
    for program in ("python", "/usr/bin/python3.11", "pypy3"):
        problem = injection_problem([program, *words.split()])

        assert (problem is None) == (why is None), problem
        if why is not None and problem is not None:
            assert why in problem and problem.startswith(Path(program).name) and "\n" not in problem


@pytest.mark.parametrize("command", [["sh", "-I"], ["torchrun", "-E"], [""], ["/"], ["./train.py", "-S"]])
def test_of_other_programs_nothing_is_said(command: list[str]) -> None:
    assert injection_problem(command) is None


def script(path: Path, text: str, mode: int = 0o755) -> Path:
    path.write_text(text)
    path.chmod(mode)
    return path


def test_program_is_found_as_a_shell_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", f"{tmp_path / 'none'}:{tmp_path}")
    monkeypatch.chdir(tmp_path)
    file = script(tmp_path / "tool", "#!/bin/sh\n")

    assert find_program(["tool"]) == find_program([str(file)]) == str(file)
    assert find_program(["./tool", "x"]) == "./tool"


@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("", 127),
        ("none", 127),
        ("./none", 127),
        ("line\nbreak", 127),
        ("x" * 5000, 127),
        ("./" + "x" * 5000, 127),
        ("data", 126),  # on the PATH, but not to be executed
        ("./data", 126),
        ("./folder", 126),
        ("folder", 127),
        ("./data/x", 127),
    ],
)
def test_program_that_cannot_be_run(name: str, code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    script(tmp_path / "data", "print(1)", 0o644)
    (tmp_path / "folder").mkdir()

    with pytest.raises(LaunchError) as caught:
        find_program([name])

    assert caught.value.exit_code == code


def test_script_whose_interpreter_does_not_exist(tmp_path: Path) -> None:
    file = script(tmp_path / "tool", "#!/no/such/interpreter\n")

    with pytest.raises(LaunchError, match="interpreter") as caught:
        spawn([str(file)], {}, set())

    assert caught.value.exit_code == 127


def folder_first(environment: dict[str, str]) -> list[str]:
    first, *rest = environment["PYTHONPATH"].split(os.pathsep)
    assert (Path(first) / "sitecustomize.py").exists()
    return rest


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (None, []),
        ("", []),  # Python takes an empty variable for none
        ("/b:/a", ["/b", "/a"]),
        ("/b::/a:", ["/b", "", "/a", ""]),  # and an empty entry for the working directory
        (":", ["", ""]),
        ("/a:/a", ["/a", "/a"]),
    ],
)
def test_users_python_path_stays_as_it_is(
    before: str | None, after: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if before is not None:
        monkeypatch.setenv("PYTHONPATH", before)

    environment = program_environment(tmp_path)

    assert folder_first(environment) == after
    assert environment["TRACEKIT_SPOOL"] == str(tmp_path)
    monkeypatch.setenv("PYTHONPATH", environment["PYTHONPATH"])
    assert folder_first(program_environment(tmp_path)) == after  # a recording inside a recording


def test_environment_without_a_recorder_is_our_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("A", "b\nc")

    assert program_environment(None) == dict(os.environ)
    assert {name: value for name, value in program_environment(tmp_path).items() if name in os.environ} == dict(
        os.environ
    )
    assert sys.modules.get("sitecustomize") is None or "bootstrap" not in str(sys.modules["sitecustomize"].__file__)


def test_who_runs_a_module_of_ours_asks_how() -> None:
    """`-m` alone looks for it in the working directory first, which is the program's."""
    sources = Path(tracekit.__file__).parent.rglob("*.py")
    assert [path.name for path in sources if '"-m", "tracekit' in path.read_text(encoding="utf-8")] == []
