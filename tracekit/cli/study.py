"""`tracekit study`."""

from collections.abc import Callable
from pathlib import Path

import click

from tracekit.cli.options import budget_option, end_on_signals, narrator, program_of, study_folder


def _options(study: Callable[..., None]) -> Callable[..., None]:
    """The options that every study has."""
    for option in (
        click.argument("command", nargs=-1, type=click.UNPROCESSED),
        click.option("-q", "--quiet", is_flag=True, help="No progress."),
        click.option("--json", "as_json", is_flag=True, help="Print one JSON object (schema 1) instead of text."),
        budget_option,
        click.option(
            "-o", "--output", type=click.Path(path_type=Path), help="Folder to make (default: one in tracekit-runs)."
        ),
    ):
        study = option(study)
    return study


@click.group()
def command() -> None:
    """Compare settings of one command by experiment: fresh processes, interleaved, with intervals."""


@command.command(context_settings={"allow_interspersed_args": False})
@_options
def threads(output: Path | None, budget: float, as_json: bool, quiet: bool, command: tuple[str, ...]) -> None:
    """Find the thread counts that make COMMAND fastest, and prove it.

    One run explores; then nothing set, each fixed count, a count per layer, and the control (the same interception
    with one count) are run in turn, until the verdicts are settled or --budget is spent; the control and its count
    inside one process too. Where CPUs are not all alike (several NUMA nodes, two threads a core) the best count is
    tried on fewer of them too.

    \b
        tracekit study threads --budget 5m -- python samples/lstm_widths.py
    """
    from tracekit.record.launch import find_program
    from tracekit.record.machine import counts_here, layouts_here
    from tracekit.study.result import text_of
    from tracekit.study.threads import study_threads

    program = program_of(command, "study threads")
    find_program(program)
    counts = counts_here()
    folder = output or study_folder(program)
    end_on_signals()
    study = study_threads(program, folder, counts, layouts_here, budget, narrator(quiet))
    click.echo(study.as_json() if as_json else text_of(study), nl=as_json)


@command.command(context_settings={"allow_interspersed_args": False})
@_options
def loading(output: Path | None, budget: float, as_json: bool, quiet: bool, command: tuple[str, ...]) -> None:
    """Find the workers and the prefetch factor that make COMMAND wait least for its data, and prove it.

    One run is recorded; then nothing set and the settings that are best if its storage answers more readers as fast as
    few, or no faster, are run in turn, until the verdicts are settled or --budget is spent. It is about the loader that
    is waited for most.

    \b
        tracekit study loading --budget 5m -- python samples/image_loading.py
    """
    from tracekit.record.launch import find_program
    from tracekit.study.loading import study_loading
    from tracekit.study.result import text_of

    program = program_of(command, "study loading")
    find_program(program)
    folder = output or study_folder(program)
    end_on_signals()
    study = study_loading(program, folder, budget, narrator(quiet))
    click.echo(study.as_json() if as_json else text_of(study), nl=as_json)


@command.command(context_settings={"allow_interspersed_args": False})
@_options
def ddp(output: Path | None, budget: float, as_json: bool, quiet: bool, command: tuple[str, ...]) -> None:
    """Find the gradient buckets that make the steps of COMMAND shortest, and prove it.

    One run is recorded; then nothing set, the caps that its replay says may be best, and gradients that live in their
    buckets are run in turn, until the verdicts are settled or --budget is spent.

    \b
        tracekit study ddp --budget 5m -- torchrun --nproc-per-node 2 samples/ddp_digits.py
    """
    from tracekit.record.launch import find_program
    from tracekit.study.ddp import study_ddp
    from tracekit.study.result import text_of

    program = program_of(command, "study ddp")
    find_program(program)
    folder = output or study_folder(program)
    end_on_signals()
    study = study_ddp(program, folder, budget, narrator(quiet))
    click.echo(study.as_json() if as_json else text_of(study), nl=as_json)
