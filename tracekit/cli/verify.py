"""`tracekit verify`."""

from pathlib import Path

import click

from tracekit.cli.options import budget_option, end_on_signals, narrator, program_of, study_folder


@click.command(context_settings={"allow_interspersed_args": False})
@click.option("-o", "--output", type=click.Path(path_type=Path), help="Folder to make (default: one in tracekit-runs).")
@budget_option
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object (schema 1) instead of text.")
@click.option("-q", "--quiet", is_flag=True, help="No progress.")
@click.option(
    "--require",
    type=click.Choice(["faster"]),
    help="Leave with code 1 unless that is the verdict, and where the best one thread count is faster.",
)
@click.argument("settings", type=click.Path(path_type=Path))
@click.argument("command", nargs=-1, type=click.UNPROCESSED)
def command(
    output: Path | None,
    budget: float,
    as_json: bool,
    quiet: bool,
    require: str | None,
    settings: Path,
    command: tuple[str, ...],
) -> int:
    """Test by experiment whether SETTINGS (a settings file, or an analyzed run) make COMMAND faster.

    Fresh processes with and without the settings, interleaved; the baseline is run twice a round to tell the machine's
    noise. The verdict is faster, same, slower or undecided, with the interval of the gain.

    \b
        tracekit verify tracekit-runs/train-20260721T101500Z-1a2b3c -- python train.py
        tracekit verify --require faster --budget 10m settings.toml -- python train.py
    """
    from tracekit.cli.locate import best_fixed_of, predicted_of, settings_of
    from tracekit.record.launch import find_program
    from tracekit.record.machine import cpus_for, refuse_elsewhere
    from tracekit.study.result import text_of
    from tracekit.study.verify import RECOMMENDED, verify

    program = program_of(command, "verify RUN")
    find_program(program)
    values = settings_of(settings)
    refuse_elsewhere(values)
    cpus_for(values)
    folder = output or study_folder(program)
    end_on_signals()
    predicted = predicted_of(settings, values)
    study = verify(program, folder, values, best_fixed_of(settings), budget, narrator(quiet), predicted)
    click.echo(study.as_json() if as_json else text_of(study), nl=as_json)
    first, *others = [each.verdict for each in study.comparisons if each.b == RECOMMENDED]
    return int(require is not None and (first != require or "slower" in others))
