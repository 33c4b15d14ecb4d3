"""`tracekit analyze`."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tracekit.cli.saying import say

if TYPE_CHECKING:
    from tracekit.analysis.accounts import Each
    from tracekit.analysis.report_schema import Report


@click.command()
@click.argument("run", required=False, type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object (schema 1) instead of text.")
@click.option(
    "--probe",
    is_flag=True,
    help="Run the run's command again, for up to 10 s of its loop in all, to see what other loader settings gain.",
)
@click.option(
    "--scheduler",
    metavar="WHERE",
    help="Share the run's processes out to a Dask cluster: local, slurm, or the HOST:PORT of a scheduler.",
)
def command(run: Path | None, as_json: bool, probe: bool, scheduler: str | None) -> None:
    """Explain where the time of RUN goes and recommend settings (default: the newest run). RUN may be a study.

    Writes findings.json (the same object as --json) and settings.toml into the run; a settings.toml that you edited
    stays as it is. With --probe what one run cannot know of storage and CPUs is measured, by running its command with
    other loader settings; it is ended after that, by SIGTERM.

    With --scheduler the processes of a run of many ranks are looked at by many workers at once; the result is the same.
    WHERE is the address of a Dask scheduler, local or local:N for workers on this machine, slurm or slurm:N for jobs as
    your Dask configuration describes them. It needs tracekit[cluster].

    \b
        tracekit analyze
        tracekit analyze tracekit-runs/train-20260721T101500Z-1a2b3c --json
        tracekit analyze --scheduler local:8
    """
    from tracekit.advice import analyze
    from tracekit.analysis.report import report_json
    from tracekit.analysis.text import text_report
    from tracekit.cli.locate import complete, locate
    from tracekit.errors import RunError
    from tracekit.run.folder import is_study
    from tracekit.run.reader import open_run
    from tracekit.study.result import Study, text_of

    path = locate(run)
    if is_study(path):
        if probe:
            raise RunError(f"{path} is a study; only a run can be probed, such as one in its runs/")
        study = Study.load(path)
        click.echo(study.as_json() if as_json else text_of(study), nl=as_json)
        return
    complete(path)
    if probe:
        _probe(path)
    with _each_by(scheduler) as each:
        report = analyze(open_run(path), each)
    as_text = report_json(report)
    _write(path, report, as_text)
    click.echo(as_text if as_json else text_report(report), nl=as_json)


@contextmanager
def _each_by(scheduler: str | None) -> "Iterator[Each]":
    """Who looks at the processes of the run: this process, or a cluster."""
    from tracekit.analysis.accounts import in_turn

    if scheduler is None:
        yield in_turn
        return
    from tracekit.cli.options import end_on_signals
    from tracekit.cluster import cluster

    end_on_signals()
    with cluster(scheduler) as each:
        yield each


def _probe(path: Path) -> None:
    from tracekit.cli.options import end_on_signals
    from tracekit.run.reader import open_run
    from tracekit.study.probe import probe

    end_on_signals()
    probe(open_run(path), say)


def _write(path: Path, report: "Report", as_text: bytes) -> None:
    """Write findings.json and settings.toml; a run that cannot be written to is still explained."""
    from tracekit.advice.entries import settings_entries
    from tracekit.run.files import replace_file
    from tracekit.settings.file import write_settings

    entries = settings_entries(report)
    try:
        replace_file(path / "findings.json", as_text)
        if not write_settings(path / "settings.toml", entries, report.advice):
            say(f"{path / 'settings.toml'} was edited and is kept as it is; remove it to get what is recommended now")
    except OSError as error:
        say(f"{path}: findings.json and settings.toml were not written there ({error.strerror})")
