"""`tracekit record`."""

import os
import shlex
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tracekit.cli.options import program_of
from tracekit.cli.saying import say
from tracekit.errors import TracekitError

if TYPE_CHECKING:
    from tracekit.noise.noise import Noise
    from tracekit.record.supervisor import Outcome


@click.command(context_settings={"allow_interspersed_args": False})
@click.option(
    "-o", "--output", type=click.Path(path_type=Path), help="Run directory to make (default: one in tracekit-runs)."
)
@click.option("--force", is_flag=True, help="Replace the run that is in --output.")
@click.option(
    "--job",
    envvar="TRACEKIT_JOB",
    help="Record into one --output with the other nodes of this job (default: the job step of Slurm, the job of PBS"
    " or LSF).",
)
@click.option("-q", "--quiet", is_flag=True, help="No closing summary.")
@click.option("--condition", help="What this run is done under (default: baseline, or fixed with --threads).")
@click.option("--threads", type=click.IntRange(min=1), help="Intra-op threads, set inside the process.")
@click.option("--interop", type=click.IntRange(min=1), help="Inter-op threads, set inside the process.")
@click.option("--settings", "settings_file", type=click.Path(path_type=Path), help="Apply a settings file.")
@click.option(
    "--explore",
    type=click.Choice(["threads", "buckets"]),
    help="Try thread counts in turn, in blocks of steps, at up to 20 % more time; or the gradient buckets of ranks;"
    " no profiler windows then.",
)
@click.option(
    "--noise", "noise", multiple=True, metavar="SPEC", help="Load beside it, as of `tracekit noise`; more than once."
)
@click.option("--backend", help="The tool that makes the noise, as of `tracekit noise`.")
@click.option("--pattern", help="When the noise is on, from the first steps on: 2s/2s, as of `tracekit noise`.")
@click.option("--overhead", help="Budget for recording, in percent of the run time (default: 1).")
@click.option("--profile", help="Profiler windows: auto, off, or full for every step (default: auto).")
@click.option(
    "--collectors", help="Comma-separated collectors, such as steps,layers (default: all; a wrong name lists them)."
)
@click.option("--sample-hz", help="Samples of the counters per second (default: 10).")
@click.argument("command", nargs=-1, type=click.UNPROCESSED)
def command(
    output: Path | None,
    force: bool,
    job: str | None,
    quiet: bool,
    condition: str | None,
    threads: int | None,
    interop: int | None,
    settings_file: Path | None,
    explore: str | None,
    noise: tuple[str, ...],
    backend: str | None,
    pattern: str | None,
    command: tuple[str, ...],
    **flags: str | None,
) -> int:
    """Run COMMAND unchanged and record it.

    The command gets its own stdin, stdout, stderr and signals; tracekit leaves with its exit code (128 + signal).
    Steps, layers, operators, loading, collectives, counters and collections of garbage go into a run directory, at a
    cost kept under --overhead.

    \b
        tracekit record -- python train.py --epochs 3
        tracekit record --threads 1 -- python train.py
        tracekit record --explore threads -- python train.py
        tracekit record -- torchrun --nproc-per-node 2 train.py
        tracekit record --noise memory=4GB/s --pattern 2s/2s -- python train.py
    """
    from tracekit import config
    from tracekit.cli.hangs import Hung
    from tracekit.record.machine import counts_here
    from tracekit.record.supervisor import Options, record
    from tracekit.run.folder import new_run_path
    from tracekit.settings.exploration import EXPLORING_OVERHEAD, bucket_exploration, exploration

    program = program_of(command, "record")
    options = {name: resolved.value for name, resolved in config.resolve(flags).items()}
    settings = _settings(settings_file, threads, interop)
    if explore and settings:
        raise TracekitError("--explore tries the settings itself; leave out --threads, --interop and --settings")
    for name, given in (("--pattern", pattern), ("--backend", backend)):
        if given and not noise:
            raise TracekitError(f"{name} is for noise, and there is none; add --noise, as in --noise cpu=1")
    job = job or _job_here()
    told_of = {"threads": lambda: exploration(counts_here(), job), "buckets": bucket_exploration}
    condition = condition or ("explore" if explore else _condition(settings, settings_file is not None, bool(noise)))
    outcome = record(
        Options(
            command=program,
            output=output or new_run_path(program, options["runs"]),
            force=force,
            job=job,
            condition=condition,
            settings=settings,
            overhead=EXPLORING_OVERHEAD if explore == "threads" else options["overhead"] / 100,
            profile="off" if explore else options["profile"],
            collectors=_that_let_explore(options["collectors"], explore),
            sample_hz=options["sample_hz"],
            explore=told_of[explore]() if explore else None,
            noise=_noise(noise, backend, pattern),
            tell_of_hang=None if quiet else Hung(),
        )
    )
    if not quiet:
        _summary(outcome)
    return outcome.exit_code


def _that_let_explore(collectors: list[str], explore: str | None) -> list[str]:
    """To see a bucket takes Python, for each of them: many would seem slower than they are."""
    if explore == "buckets" and "steps" not in collectors:
        raise TracekitError("--explore buckets compares steps, and --collectors leaves them out; add steps to it")
    return [each for each in collectors if each != "collectives" or explore != "buckets"]


def _job_here() -> str:
    """The job of the batch system that this command is a part of, "" outside any."""
    from tracekit.run.folder import AGAIN

    given = os.environ.get
    if given("SLURM_JOB_ID"):
        attempt = given("SLURM_RESTART_COUNT", "0")  # a requeued job keeps its number
        again = f"{AGAIN}{attempt}" if attempt != "0" else ""
        return f"slurm {given('SLURM_JOB_ID')}.{given('SLURM_STEP_ID', '')}{again}"
    return next((f"{name} {given(name)}" for name in ("PBS_JOBID", "LSB_JOBID") if given(name)), "")


def _settings(file: Path | None, threads: int | None, interop: int | None) -> dict[str, Any]:
    """The settings of this run: those of the file, then the flags."""
    settings: dict[str, Any] = {}
    if file is not None:
        from tracekit.settings.catalogue import check_applicable
        from tracekit.settings.file import load_settings

        settings = load_settings(file)
        check_applicable(settings)
    if threads is not None:
        settings["threads.intra_op"] = threads
    if interop is not None:
        settings["threads.inter_op"] = interop
    return settings


def _noise(specs: tuple[str, ...], backend: str | None, pattern: str | None) -> "Noise | None":
    """What makes the noise; it waits."""
    if not specs:
        return None
    from tracekit.noise.noise import Noise
    from tracekit.noise.pattern import parse_pattern
    from tracekit.noise.spec import parse_all

    noises = parse_all(specs, backend)
    return Noise(noises, parse_pattern(pattern, noises) if pattern is not None else None)


def _condition(settings: dict[str, Any], from_file: bool, noisy: bool) -> str:
    if noisy:
        return "noisy"
    if any(name.startswith(("threads.layers.", "threads.backward.")) for name in settings):
        return "dynamic"
    if from_file:
        return "settings"
    return "fixed" if settings else "baseline"


def _summary(outcome: "Outcome") -> None:
    """The closing lines on stderr: the run, its steps, the overhead, what is missing, the next command."""
    if outcome.run is None:
        say(f"the program ran unrecorded: {outcome.lost}")
        return
    try:
        from tracekit.cli.closing import describe

        lines = describe(outcome.run, outcome.host, outcome.lost)
    except Exception as error:  # whatever is wrong with us, the exit code stays the program's
        why = str(error) if isinstance(error, TracekitError) else f"{type(error).__name__}: {error}"
        lines = [f"recorded {outcome.run}, but not summed up: {why}"]
        lines += [f"LOST: {outcome.lost}"] if outcome.lost else []
    for line in lines:
        say(line)
    say(f"next: tracekit analyze {shlex.quote(_short(outcome.run))}")


def _short(path: Path) -> str:
    with suppress(OSError, ValueError):  # it is elsewhere, or the program has removed the folder that we are in
        return str(path.relative_to(Path.cwd()))
    return str(path)
