"""The supervisor: starts the program, stays out of its way, and turns what it leaves into a run."""

import importlib.metadata
import json
import os
import shutil
import sys
import tempfile
import threading
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tracekit
from tracekit.errors import RunError
from tracekit.record import signals
from tracekit.record.launch import find_program, injection_problem, program_environment, spawn
from tracekit.record.machine import cpus_for, refuse_elsewhere
from tracekit.record.pid_namespaces import shown
from tracekit.record.wire import is_in_loop
from tracekit.run.files import in_utf8
from tracekit.run.folder import hold, leave, process_started, take_part, whose_pids
from tracekit.run.manifest import Manifest, Overhead

if TYPE_CHECKING:
    from tracekit.record.hangs import Tell
    from tracekit.record.sampling import Beside, Recording


@dataclass
class Options:
    """What `tracekit record` was asked for; the fields are its options."""

    command: list[str]
    output: Path
    force: bool = False
    job: str = ""  # whose supervisors, one on each node, share the run
    condition: str = "baseline"
    settings: dict[str, Any] = field(default_factory=dict)
    overhead: float = 0.01
    profile: str = "auto"
    collectors: list[str] = field(default_factory=list)
    sample_hz: float = 10.0
    explore: dict[str, Any] | None = None  # `collectors.exploration`: conditions and seed
    noise: "Beside | None" = None  # made beside the program, and logged
    tell_of_hang: "Tell | None" = None  # to the user, while it lasts


# Of what records: where that and the program want a CPU, the program goes first.
_NICENESS = 10


@dataclass
class Outcome:
    """How a recording ended: the exit code to leave with, and the run and the name of this host in it, or why there is
    none."""

    exit_code: int
    run: Path | None
    lost: str | None = None
    host: str = ""


def record(options: Options) -> Outcome:
    """Run the command and record it.

    Raises LaunchError when the command cannot be started, RunError when the output is taken and SettingsError when the
    settings do not hold on this machine; nothing was run then.
    An output that cannot be written is no reason not to run the program: the outcome says what was lost.
    """
    try:
        return _record(options)
    finally:
        if options.noise is not None:
            options.noise.close()


def _record(options: Options) -> Outcome:
    find_program(options.command)
    refuse_elsewhere(options.settings)
    cpus_for(options.settings)
    spool: Path | None = None
    run: Path | None = None
    try:
        os.path.abspath(options.output).encode()  # neither Arrow nor DuckDB takes another name
        spool = Path(tempfile.mkdtemp(prefix="tracekit-"))
        manifest = _new_manifest(options, spool)
        try:
            run = take_part(options.output, manifest, options.force)
        except RunError:
            shutil.rmtree(spool, ignore_errors=True)
            raise
        collectors = _load_collectors(options.collectors, manifest)
        write_session(spool, manifest.run, options, collectors)
        alive = hold(spool)
        manifest.save(manifest.path_in(run))
    except (OSError, UnicodeEncodeError) as error:
        if spool is not None:
            shutil.rmtree(spool, ignore_errors=True)
        if run is not None:
            with suppress(OSError):
                leave(run, manifest)
        heard, witness = signals.block(), signals.Witness()
        child = spawn(options.command, program_environment(None), heard)
        status = signals.wait_for(child, heard, witness)
        return Outcome(signals.exit_code(status), None, _why_unrecorded(error, options.output))
    with alive:
        return _record_into(run, spool, manifest, options, collectors)


def _record_into(run: Path, spool: Path, manifest: Manifest, options: Options, collectors: dict[str, str]) -> Outcome:
    heard, witness = signals.block(), signals.Witness()
    try:
        if options.noise is not None:
            options.noise.start(lambda: is_in_loop(spool))
        child = spawn(options.command, program_environment(spool), heard, cpus_for(options.settings))
    except BaseException:
        witness.dismiss()
        shutil.rmtree(spool, ignore_errors=True)
        leave(run, manifest)
        raise
    helper = _Recorder(run, spool, manifest, options, collectors, shown(child))
    helper.start()
    status = signals.wait_for(child, heard, witness, helper.program_ended)
    signals.unblock(heard)  # what is not finished when we are told to end can be salvaged
    manifest.exit_code = signals.exit_code(status)
    manifest.exit_signal = os.WTERMSIG(status) if os.WIFSIGNALED(status) else None
    manifest.overhead.supervisor = helper.share_of_cpu
    return Outcome(manifest.exit_code, run, helper.finish(), manifest.host)


class _Recorder(threading.Thread):
    """Imports what is heavy and records, beside the main thread that waits for the program."""

    def __init__(
        self, run: Path, spool: Path, manifest: Manifest, options: Options, collectors: dict[str, str], child: int
    ) -> None:
        super().__init__(name="recorder")
        self._run, self._spool, self._manifest, self._options = run, spool, manifest, options
        self._collectors, self._child = collectors, child
        self._recording: Recording | None = None
        self._lost: str | None = None
        self.share_of_cpu = 0.0  # CPU time of the supervisor, once started, over what the machine had to offer
        self._began: tuple[float, float] | None = None

    def start(self) -> None:
        """Begin, if it can: the program runs already, and its end is waited for in any case."""
        try:
            super().start()
        except RuntimeError as error:  # at the limit of processes
            self._lost = f"the recorder could not start: {error}"

    def run(self) -> None:
        try:
            # This thread and those it starts. The main thread stays as it is, so as not to be late for a signal; and a
            # job that stands back further, as others do of a shared machine, goes on to.
            os.setpriority(os.PRIO_PROCESS, 0, max(os.getpriority(os.PRIO_PROCESS, 0), _NICENESS))
            from tracekit.record.sampling import Recording

            samplers = _samplers(self._options.collectors, self._child, self._manifest)
            if self._options.noise is not None:
                samplers["noise"] = self._options.noise
            recording = Recording(self._manifest, samplers, self._child, self._options.sample_hz)
            recording.start()
            try:
                self._flush_by(recording)
            except BaseException:
                recording.stop()
                raise
            self._recording = recording
            self._began = time.monotonic(), time.process_time()
        except Exception as error:
            self._lost = f"the recorder could not start: {type(error).__name__}: {error}"

    def _flush_by(self, recording: "Recording") -> None:
        # A second of CPU time, which where the program needs all CPUs takes ten or twenty.
        from tracekit.record.flush import Flusher
        from tracekit.record.hangs import Hangs
        from tracekit.record.spools import SpoolFolder

        self._spools = SpoolFolder(self._spool)
        self._flusher = Flusher(self._run, self._manifest, self._spools, self._child)
        hangs = Hangs(self._run, self._manifest, self._flusher, self._spools, self._options.tell_of_hang)
        recording.flush_by(self._flusher, hangs)

    def program_ended(self) -> None:
        """Take the last look at the program, and stock of what the supervisor took while it ran."""
        if self._began is not None:
            wall, cpu = self._began
            offered = max(time.monotonic() - wall, 1e-9) * len(os.sched_getaffinity(0))
            self.share_of_cpu = (time.process_time() - cpu) / offered
        if self.ident is not None:
            self.join()  # a short program ends before we are ready: its one look is taken while it can still be read
        if self._recording is not None:
            self._recording.last_sample()

    def finish(self) -> str | None:
        """Complete the run; what was lost, or None."""
        if self._recording is None:
            return self._lost
        from tracekit.record.finish import finish

        problem = injection_problem(self._options.command)
        if problem:
            self._manifest.add_missing("everything inside the program", problem)
        try:
            self._recording.stop()
            self._flusher.flush(time.perf_counter_ns(), self._recording.rest())
            finish(self._run, self._manifest, self._flusher, self._spools)
        except OSError as error:
            return f"{error.filename or self._run}: {error.strerror}; what was not written waits in {self._spool}"
        except Exception as error:  # whatever is wrong with us, the exit code stays the program's
            return f"{type(error).__name__}: {error}; what was not written waits in {self._spool}"
        return None


def _why_unrecorded(error: OSError | UnicodeEncodeError, output: Path) -> str:
    if isinstance(error, UnicodeEncodeError):
        return f"{in_utf8(error.object)}: its name is not UTF-8, as reports are; choose another --output"
    return f"{error.filename or output}: {error.strerror}"


def _new_manifest(options: Options, spool: Path) -> Manifest:
    from tracekit.record.machine import describe_cpu, describe_memory, gpus

    boot, pid_namespace = whose_pids()
    return Manifest(
        tracekit=tracekit.__version__,
        run=in_utf8(options.output.name),
        host=os.uname().nodename,
        node=os.uname().nodename,
        job=options.job,
        command=[in_utf8(word) for word in options.command],
        directory=in_utf8(os.getcwd()),
        condition=options.condition,
        settings=options.settings,
        noise=options.noise.labels if options.noise is not None else [],
        started_ns=time.time_ns(),
        clock_offset_ns=time.time_ns() - time.perf_counter_ns(),
        spool=str(spool),
        supervisor=shown(os.getpid()),
        supervisor_started=process_started(shown(os.getpid())) or 0,
        boot=boot,
        pid_namespace=pid_namespace,
        cpu=describe_cpu(),
        memory=describe_memory(),
        gpus=gpus(),
        overhead=Overhead(budget=options.overhead),
        profile=options.profile,
        collectors=options.collectors,
    )


def _load_collectors(wanted: list[str], manifest: Manifest) -> dict[str, str]:
    """The collectors that work inside the program, as `module:attribute` by name."""
    inside = {}
    for point in importlib.metadata.entry_points(group="tracekit.collectors"):
        if point.name in wanted:
            try:
                if not hasattr(point.load(), "sample"):
                    inside[point.name] = point.value
            except Exception as error:
                manifest.add_missing(
                    point.name, f"the collector cannot be loaded: {type(error).__name__}: {error}", lost=True
                )
    return {name: inside[name] for name in wanted if name in inside}


def _samplers(wanted: list[str], child: int, manifest: Manifest) -> dict[str, Any]:
    samplers = {}
    for point in importlib.metadata.entry_points(group="tracekit.collectors"):
        if point.name in wanted:
            try:
                collector = point.load()
                if hasattr(collector, "sample"):
                    samplers[point.name] = collector(child)
            except Exception as error:
                manifest.add_missing(
                    point.name, f"the collector cannot start: {type(error).__name__}: {error}", lost=True
                )
    return samplers


def write_session(spool: Path, run: str, options: Options, collectors: dict[str, str]) -> None:
    """Tell the processes of the program what to do, and a salvage which run this is."""
    session = {
        "run": run,
        "collectors": collectors,
        "overhead": options.overhead,
        "profile": options.profile,
        "settings": options.settings,
        "explore": options.explore,
        "tracekit": tracekit.__version__,
        "python": sys.version,
    }
    (spool / "session.json").write_text(json.dumps(session), encoding="utf-8")
