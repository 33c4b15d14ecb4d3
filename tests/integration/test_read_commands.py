"""The commands that read runs, as a user types them: separate processes, exit codes, stdout and stderr."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from synthetic import Tape, make_manifest, make_run, train, training_run

HEAVY = {"torch", "pandas", "dash", "pyarrow", "duckdb", "numpy"}


def tracekit(*arguments: str, cwd: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "tracekit", *arguments],
        cwd=cwd,
        capture_output=True,
        text=True,
        env=os.environ | {"COLUMNS": "100"} | variables,
        timeout=120,
        check=False,
    )


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with tracekit-runs/ of two runs; `train` is the newest."""
    folder = tmp_path_factory.mktemp("work")
    make_run(folder / "tracekit-runs" / "empty")
    path = training_run(folder / "tracekit-runs" / "train", steps=20, workers=2)
    newest = (path / "manifest").stat().st_mtime_ns + 10**9
    os.utime(path / "manifest", ns=(newest, newest))
    return folder


@pytest.fixture(scope="module")
def analyzed(runs: Path) -> subprocess.CompletedProcess[str]:
    """What was said when the newest of them was analyzed."""
    return tracekit("analyze", cwd=runs)


def test_analyze_the_newest_run(analyzed: subprocess.CompletedProcess[str]) -> None:
    assert (analyzed.returncode, analyzed.stderr) == (0, "")
    assert "STEPS  20 by the rule 'optimizer', median 20.0 ms" in analyzed.stdout
    assert analyzed.stdout.splitlines()[-1] == "next: tracekit dashboard tracekit-runs/train"
    assert all(len(line) <= 100 for line in analyzed.stdout.splitlines())


def test_analyze_json_is_what_it_writes(runs: Path) -> None:
    done = tracekit("analyze", "tracekit-runs/train", "--json", cwd=runs)
    assert done.returncode == 0
    assert json.loads(done.stdout) == json.loads((runs / "tracekit-runs/train/findings.json").read_text())
    assert json.loads(done.stdout)["steps"]["count"] == 20


def test_analyze_an_empty_run_by_its_name(runs: Path) -> None:
    done = tracekit("analyze", "empty", cwd=runs)
    assert done.returncode == 0
    assert "STEPS  none found" in done.stdout


@pytest.mark.usefixtures("analyzed")
def test_an_edited_settings_file_is_kept(runs: Path) -> None:
    file = runs / "tracekit-runs/train/settings.toml"
    file.write_text("[threads]\nintra_op = 3\n")
    done = tracekit("analyze", cwd=runs)
    assert done.returncode == 0
    assert "was edited and is kept" in done.stderr
    assert file.read_text() == "[threads]\nintra_op = 3\n"
    file.unlink()


def test_a_run_that_takes_no_files_is_explained_all_the_same(tmp_path: Path) -> None:
    path = training_run(tmp_path / "run", steps=3)
    (path / "findings.json").mkdir()  # also in the way of root, whom no permission stops
    done = tracekit("analyze", "run", cwd=tmp_path)
    assert done.returncode == 0
    assert "STEPS  3" in done.stdout
    assert done.stderr.count("\n") == 1
    assert "were not written" in done.stderr
    assert not list(path.glob("*.tmp"))


def test_an_oversubscribed_run_ends_with_the_command_that_tries_the_advice(tmp_path: Path) -> None:
    tape = Tape()
    tape.gap(2500)
    train(tape, 250)
    for start in range(0, 8000, 100):
        share = 0.01 if start < 3000 else 0.5
        tape.counter("thread.cpu_ns", 100_000_000, start, 100)
        tape.counter("thread.run_delay_ns", round(100_000_000 * share / (1 - share)) + start, start, 100)
    make_run(tmp_path / "my run", [tape], manifest=make_manifest(cpus=2, physical_cores=2, intra_op=8))
    done = tracekit("analyze", "my run", cwd=tmp_path)
    following = "tracekit apply 'my run/settings.toml' -- python train.py"
    assert done.stdout.splitlines()[-1] == f"next: {following}"
    assert "intra_op = 2" in (tmp_path / "my run" / "settings.toml").read_text()


def test_query_in_every_format(runs: Path) -> None:
    sql = "SELECT role, count(*) AS n FROM processes GROUP BY role ORDER BY role"
    outputs = {
        style: tracekit("query", "train", sql, "--format", style, cwd=runs) for style in ("table", "csv", "json")
    }
    assert [done.returncode for done in outputs.values()] == [0, 0, 0]
    assert json.loads(outputs["json"].stdout)[2] == {"role": "main", "n": 1}
    assert outputs["csv"].stdout.splitlines()[0] == "role,n"
    assert outputs["table"].stdout.splitlines()[-1] == "(3 rows)"


@pytest.mark.parametrize(
    "sql",
    [
        pytest.param("SELEC 1", marks=pytest.mark.long),
        "SELECT * FROM nothing",
        "SELECT * FROM '/etc/passwd'",
        pytest.param("", marks=pytest.mark.long),
    ],
)
def test_a_query_that_cannot_be_answered(runs: Path, sql: str) -> None:
    done = tracekit("query", "train", sql, cwd=runs)
    assert done.returncode == 2
    assert done.stderr.startswith("tracekit: ") and done.stderr.count("\n") == 1
    assert "Traceback" not in done.stderr and "\\n" not in done.stderr


def test_a_reader_that_leaves_early_is_no_error(runs: Path) -> None:
    line = f"{sys.executable} -m tracekit query train 'SELECT range FROM range(1000000)' | head -1"
    done = subprocess.run(line, shell=True, cwd=runs, capture_output=True, text=True, check=False)
    assert done.stdout == " range\n"
    assert "Traceback" not in done.stderr
    assert "Exception" not in done.stderr


@pytest.mark.usefixtures("analyzed")
def test_runs_are_listed_newest_first(runs: Path) -> None:
    done = tracekit("runs", cwd=runs)
    head, first, second = done.stdout.splitlines()
    assert head.startswith("RUN")
    assert first.split()[0] == "train"
    assert first.split()[4] == "20"
    assert second.startswith("empty")
    assert done.stdout == tracekit("runs", str(runs / "tracekit-runs"), cwd=Path("/")).stdout


def test_a_run_of_a_newer_tracekit_does_not_hide_the_others(tmp_path: Path) -> None:
    training_run(tmp_path / "tracekit-runs" / "old", steps=2)
    newer = training_run(tmp_path / "tracekit-runs" / "newer", steps=2) / "manifest" / "node0.json"
    newer.write_text(json.dumps(json.loads(newer.read_text()) | {"schema": 99}))
    done = tracekit("runs", cwd=tmp_path)
    assert done.returncode == 0
    assert done.stderr.count("\n") == 1
    assert "upgrade tracekit" in done.stderr
    assert "python train.py" in done.stdout


@pytest.mark.parametrize(
    "arguments",
    [
        pytest.param(["analyze"], marks=pytest.mark.long),
        ["runs"],
        ["analyze", "absent"],
        ["query", "absent", "SELECT 1"],
        pytest.param(["analyze", "."], marks=pytest.mark.long),
    ],
)
def test_where_there_is_no_run(tmp_path: Path, arguments: list[str]) -> None:
    done = tracekit(*arguments, cwd=tmp_path)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith("tracekit: ")
    assert done.stderr.count("\n") == 1


def test_a_run_whose_name_is_no_text_is_told_in_one_line(tmp_path: Path) -> None:
    name = os.fsdecode(b"r\xff")
    make_run(tmp_path / "run").rename(tmp_path / name)
    done = tracekit("analyze", name, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "tracekit: r\\xff: its name is not UTF-8, as reports are; rename it\n"


def test_config_show(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text("[tool.tracekit]\nsample_hz = 5\n")
    done = tracekit("config", "show", cwd=tmp_path, TRACEKIT_OVERHEAD="2.5")
    rows = {line.split()[0]: line for line in done.stdout.splitlines()}
    assert rows["overhead"].split()[1:3] == ["2.5", "TRACEKIT_OVERHEAD"]
    assert f"{tmp_path / 'pyproject.toml'} [tool.tracekit]" in rows["sample_hz"]
    assert "default" in rows["profile"]
    bad = tracekit("config", "show", cwd=tmp_path, TRACEKIT_PROFILE="sometimes")
    assert bad.returncode == 2
    assert bad.stderr == "tracekit: TRACEKIT_PROFILE: must be one of auto, off, full; not 'sometimes'\n"


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_scripts(tmp_path: Path, shell: str) -> None:
    done = tracekit("completion", shell, cwd=tmp_path)
    assert done.returncode == 0
    assert f"_TRACEKIT_COMPLETE={shell}_complete" in done.stdout


def test_completion_completes(tmp_path: Path) -> None:
    words = {"_TRACEKIT_COMPLETE": "bash_complete", "COMP_WORDS": "tracekit anal", "COMP_CWORD": "1"}
    assert tracekit(cwd=tmp_path, **words).stdout == "plain,analyze\n"


@pytest.mark.parametrize("arguments", [["--help"], ["--version"], ["runs"], ["config", "show"]])
def test_light_commands_import_nothing_heavy(tmp_path: Path, arguments: list[str]) -> None:
    code = (
        "import sys\nfrom tracekit.cli.main import main\n"
        f"try:\n    main({arguments!r})\nfinally:\n    print(sorted({HEAVY!r} & set(sys.modules)), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.stderr.splitlines()[-1] == "[]"


def test_reading_settings_imports_nothing_heavy() -> None:
    code = f"import sys, tracekit.settings.file, tracekit.config; print(sorted({HEAVY!r} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "[]\n"


def test_sampling_begins_before_anything_heavy_is_imported() -> None:
    """Where the program needs all CPUs the supervisor, which stands back, takes long to import what is heavy."""
    modules = "tracekit.record.supervisor, tracekit.record.sampling, tracekit.collectors.counters"
    code = f"import sys, {modules}; print(sorted({HEAVY!r} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "[]\n"
