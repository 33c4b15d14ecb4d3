"""`tracekit study`."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tracekit.cli.options import budget_option, end_on_signals, narrator, program_of, study_folder

if TYPE_CHECKING:
    from tracekit.study.result import Study


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


def _carry_out(
    name: str, command: tuple[str, ...], output: Path | None, as_json: bool, quiet: bool, study: "Callable[..., Study]"
) -> None:
    """Do a study of the command, which gets the command, the folder to make, and what tells the progress; print it."""
    from tracekit.record.launch import find_program
    from tracekit.study.result import text_of

    program = program_of(command, f"study {name}")
    find_program(program)
    folder = output or study_folder(program)
    end_on_signals()
    found = study(program, folder, say=narrator(quiet))
    click.echo(found.as_json() if as_json else text_of(found), nl=as_json)


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
    from tracekit.record.machine import counts_here, layouts_here
    from tracekit.study.threads import study_threads

    study = partial(study_threads, counts=counts_here(), layouts=layouts_here, budget_s=budget)
    _carry_out("threads", command, output, as_json, quiet, study)


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
    from tracekit.study.loading import study_loading

    _carry_out("loading", command, output, as_json, quiet, partial(study_loading, budget_s=budget))


@command.command(context_settings={"allow_interspersed_args": False})
@_options
def ddp(output: Path | None, budget: float, as_json: bool, quiet: bool, command: tuple[str, ...]) -> None:
    """Find the gradient buckets that make the steps of COMMAND shortest, and prove it.

    One run is recorded; then nothing set, the caps that its replay says may be best, and gradients that live in their
    buckets are run in turn, until the verdicts are settled or --budget is spent.

    \b
        tracekit study ddp --budget 5m -- torchrun --nproc-per-node 2 samples/ddp_digits.py
    """
    from tracekit.study.ddp import study_ddp

    _carry_out("ddp", command, output, as_json, quiet, partial(study_ddp, budget_s=budget))
