"""`tracekit study`."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tracekit.cli.options import budget_option, end_on_signals, narrator, program_of, study_folder
from tracekit.cli.saying import say
from tracekit.errors import TracekitError

if TYPE_CHECKING:
    from tracekit.noise.spec import Spec
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


@command.command(context_settings={"allow_interspersed_args": False})
@click.option("--kinds", help="Comma-separated kinds of noise (default: cpu,memory,cache,disk,metadata,network).")
@click.option("--on", "where", help="Where the noise runs: CPUs such as 3-4, or node1 (default: on any).")
@click.option("--noise", "noises", multiple=True, metavar="SPEC", help="A noise of `tracekit noise` to try instead.")
@click.option("--backend", help="The tool that makes the noise, as of `tracekit noise`.")
@click.option(
    "--margin", default="2%", show_default=True, help="The slowdown from which on it matters; less is no harm."
)
@_options
def noise(
    kinds: str | None,
    where: str | None,
    noises: tuple[str, ...],
    backend: str | None,
    margin: str,
    output: Path | None,
    budget: float,
    as_json: bool,
    quiet: bool,
    command: tuple[str, ...],
) -> None:
    """Find out what may share the node with COMMAND, how much of it, and what that costs.

    Load on CPUs, memory, disks and networks goes on and off beside it, each kind with three doses up to what this
    machine gives, in blocks of some steps of the same run, in random order. Each is called safe (steps get no longer
    than by the margin), unsafe or undecided, with the slowdown, its interval, and the phase and resource to blame. What
    is safe is then tried together; what is unsafe, of a guest that stands back (nice 19, ionice -c 3, on CPUs that the
    program does not use). With --noise it is these alone.

    \b
        tracekit study noise --budget 9m -- python samples/lstm_lm.py
        tracekit study noise --on 1 --kinds cpu,memory -- taskset -c 0 python train.py
        tracekit study noise --noise disk=50MB/s@/scratch -- python train.py
    """
    from tracekit.noise.spec import parse_all
    from tracekit.study.noise import study_noise

    if noises and (kinds is not None or where):
        raise TracekitError("--noise says what to try, and where; leave out --kinds and --on")
    share, given = _share(margin), parse_all(noises, backend)

    def study(program: list[str], folder: Path, say: Callable[[str], None]) -> "Study":
        specs = given or _ladders(kinds, f"@{where}" if where else "", backend)
        return study_noise(program, folder, specs, share, budget, say, try_gentler=not given)

    _carry_out("noise", command, output, as_json, quiet, study)


def _ladders(kinds: str | None, place: str, backend: str | None) -> "list[Spec]":
    """The doses to try of these kinds; of the usual ones, those that there is something for here, and that the backend
    makes."""
    from tracekit.noise.reach import USUAL, ladder
    from tracekit.noise.spec import BACKENDS, NoiseError, by

    made_by = by(backend)
    usual = [kind for kind in USUAL if not backend or kind in BACKENDS[backend]]
    specs = []
    why_not = []
    for kind in kinds.split(",") if kinds is not None else usual:
        try:
            specs += ladder(kind, place + made_by)
        except NoiseError as error:
            if kinds is not None:
                raise
            why_not.append(error)
    if not specs:
        raise why_not[0]
    for why in why_not:
        say(f"not tried: {why}")
    return specs


def _share(text: str) -> float:
    """A share such as 2%, or 0.02. Raises TracekitError."""
    try:
        share = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        share = 0.0
    if not 0 < share < 1:
        raise TracekitError(f"--margin {text}: is no share between 0 and 1, such as 2%")
    return share
