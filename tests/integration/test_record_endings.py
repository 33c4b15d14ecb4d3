"""How recordings end: exit codes, signals, kills of the program and of the supervisor."""

import json
import os
import pty
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from recording import ENVIRONMENT, PROGRAMS, TRACEKIT, plain, record, run

from tracekit.analysis.steps import find_steps
from tracekit.run.reader import open_run

ENDLESS = [sys.executable, str(PROGRAMS / "endless.py")]
COUNTS = [sys.executable, str(PROGRAMS / "counts_signals.py")]


@pytest.mark.parametrize(
    ("script", "code"),
    [
        pytest.param("exit 0", 0, marks=pytest.mark.long),
        ("exit 3", 3),
        pytest.param("exit 127", 127, marks=pytest.mark.long),
        pytest.param("kill -KILL $$", 137, marks=pytest.mark.long),
        ("kill -TERM $$", 143),
    ],
)
def test_exit_code_is_the_programs(script: str, code: int, tmp_path: Path) -> None:
    recorded = record(["sh", "-c", script], tmp_path / "run")

    assert recorded.code == code
    assert recorded.run.manifest.exit_code == code


def test_signals_that_its_parent_has_blocked_stay_blocked(tmp_path: Path) -> None:
    """GIVEN a launcher that blocks signals for what it starts THEN the program has them blocked, and no others."""
    told = "import signal; print(sorted(map(int, signal.pthread_sigmask(signal.SIG_BLOCK, []))))"
    words = [*TRACEKIT, "record", "-q", "-o", str(tmp_path / "run"), "--", sys.executable, "-c", told]
    blocks = "import os, signal, sys; signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGRTMIN, signal.SIGALRM])"
    done = run(sys.executable, "-c", f"{blocks}; os.execvp(sys.argv[1], sys.argv[1:])", *words, environment=ENVIRONMENT)
    assert (done.returncode, done.stdout) == (0, f"[{int(signal.SIGALRM)}, {int(signal.SIGRTMIN)}]\n"), done.stderr


def test_program_that_ends_before_the_recorder_is_ready_is_looked_at(tmp_path: Path) -> None:
    recorded = record(["sh", "-c", "i=0; while [ $i -lt 3000 ]; do i=$((i+1)); done"], tmp_path / "run")

    rows = recorded.run.table("counters")
    assert rows[rows.counter == "process.cpu_ns"].value.sum() > 0


@pytest.mark.parametrize(
    ("command", "code"), [(["no-such-command"], 127), ([str(PROGRAMS / "endless.py")], 126), ([], 2)]
)
def test_command_that_cannot_start(command: list[str], code: int, tmp_path: Path) -> None:
    recorded = record(command, tmp_path / "run")

    assert recorded.code == code
    assert len(recorded.err.splitlines()) == 1
    assert not recorded.path.exists()


def _start(command: list[str], path: Path, new_session: bool = False) -> subprocess.Popen[str]:
    arguments = [*TRACEKIT, "record", "-q", "-o", str(path), "--", *command]
    return subprocess.Popen(
        arguments, stdout=subprocess.PIPE, text=True, env=ENVIRONMENT, start_new_session=new_session,
        preexec_fn=_hear_all_signals,
    )  # fmt: skip


def _hear_all_signals() -> None:
    """Tests that run in the background or under nohup ignore some, and so would all that they start."""
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM, signal.SIGUSR1):
        signal.signal(number, signal.SIG_DFL)


def _child_of(pid: int, word: str) -> int:
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return next(int(child) for child in children if word in Path(f"/proc/{child}/cmdline").read_text())


def test_signals_sent_to_the_supervisor_reach_the_program_once(tmp_path: Path) -> None:
    supervisor = _start(COUNTS, tmp_path / "run", new_session=True)
    assert supervisor.stdout and supervisor.stdout.readline() == "ready\n"
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM, signal.SIGUSR1):
        supervisor.send_signal(number)
        assert supervisor.stdout.readline() == f"{number.name}\n"

    out, _ = supervisor.communicate(timeout=60)

    assert out == "[('SIGHUP', 1), ('SIGINT', 1), ('SIGTERM', 1), ('SIGUSR1', 1)]\n"
    assert supervisor.returncode == 0


def test_signals_sent_to_the_group_reach_the_program_once(tmp_path: Path) -> None:
    supervisor = _start(COUNTS, tmp_path / "run", new_session=True)
    assert supervisor.stdout and supervisor.stdout.readline() == "ready\n"
    for number in [*[signal.SIGINT] * 20, signal.SIGUSR1]:
        os.killpg(supervisor.pid, number)
        assert supervisor.stdout.readline() == f"{number.name}\n"

    out, _ = supervisor.communicate(timeout=60)

    assert out == "[('SIGINT', 20), ('SIGUSR1', 1)]\n"


def test_control_c_in_a_terminal_reaches_the_program_once(tmp_path: Path) -> None:
    pid, terminal = pty.fork()
    if pid == 0:
        os.execve(sys.executable, [*TRACEKIT, "record", "-q", "-o", str(tmp_path / "run"), "--", *COUNTS], ENVIRONMENT)
    seen = b""
    while b"ready" not in seen:
        seen += os.read(terminal, 1024)
    os.write(terminal, b"\x03")
    while b"SIGINT" not in seen:
        seen += os.read(terminal, 1024)
    os.kill(_child_of(pid, "counts_signals"), signal.SIGUSR1)
    try:
        while chunk := os.read(terminal, 1024):
            seen += chunk
    except OSError:
        pass  # the terminal is gone when its last process is

    assert b"[('SIGINT', 1), ('SIGUSR1', 1)]" in seen
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def test_grandchildren_that_stay_do_not_hold_the_recording(tmp_path: Path) -> None:
    began = time.monotonic()

    recorded = plain(
        [*TRACEKIT, "record", "-q", "-o", str(tmp_path / "run"), "--", "sh", "-c", "sleep 200 >&- 2>&- & exit 4"]
    )

    assert recorded.returncode == 4
    assert time.monotonic() - began < 100
    subprocess.run(["pkill", "-f", "^sleep 200$"], check=False)


def _run_until(steps: int, process: subprocess.Popen[str]) -> None:
    assert process.stdout
    for line in process.stdout:
        if int(line) >= steps:
            return


def _steps(path: Path) -> int:
    steps = find_steps(open_run(path))
    return len(steps.of(steps.main))


def test_killed_program_leaves_its_steps(tmp_path: Path) -> None:
    """GIVEN a training WHEN SIGKILL ends it after at least 1000 steps THEN at least 99 % of them are in the run."""
    supervisor = _start(ENDLESS, tmp_path / "run")
    _run_until(1000, supervisor)

    os.kill(_child_of(supervisor.pid, "endless"), signal.SIGKILL)
    rest = supervisor.communicate(timeout=60)[0].splitlines()

    assert supervisor.returncode == 137
    finished = int(rest[-1]) if rest else 1000
    assert _steps(tmp_path / "run") >= 0.99 * finished
    assert open_run(tmp_path / "run").manifest.exit_signal == signal.SIGKILL


def test_killed_supervisor_is_salvaged_by_the_next_command(tmp_path: Path) -> None:
    """GIVEN a recording WHEN its supervisor is killed THEN the program goes on, and analyze finds each step once."""
    supervisor = _start(ENDLESS, tmp_path / "run")
    _run_until(1000, supervisor)
    program = _child_of(supervisor.pid, "endless")

    supervisor.kill()
    supervisor.wait()
    _run_until(2000, supervisor)
    meanwhile = plain([*TRACEKIT, "analyze", "--json", str(tmp_path / "run")])
    assert "still runs" in meanwhile.stderr
    assert json.loads(meanwhile.stdout)["steps"]["count"] >= 1000
    assert len(open_run(tmp_path / "run").table("processes"))  # it goes on, so its end is not waited for
    os.kill(program, signal.SIGKILL)
    assert supervisor.stdout
    rest = supervisor.stdout.read().splitlines()
    queried = plain([*TRACEKIT, "query", str(tmp_path / "run"), "SELECT count(*) FROM spans"])
    analyzed = plain([*TRACEKIT, "analyze", "--json", str(tmp_path / "run")])

    assert "salvaged" in queried.stderr
    assert analyzed.returncode == 0, analyzed.stderr
    finished = int(rest[-1]) if rest else 2000
    assert 0.99 * finished <= _steps(tmp_path / "run") < finished + 60
    assert any("supervisor was killed" in note.why for note in open_run(tmp_path / "run").missing)
    assert not Path(str(open_run(tmp_path / "run").manifest.spool)).exists()
