"""`tracekit noise`."""

import csv
import json
import time
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

import click

from tracekit.cli.options import Duration, end_on_signals
from tracekit.cli.saying import say
from tracekit.errors import TracekitError

if TYPE_CHECKING:
    from tracekit.noise.noise import Noise
    from tracekit.noise.spec import Spec

_LOOK_EVERY_S = 0.1


@click.command()
@click.option("--for", "seconds", type=Duration(), help="How long (default: until Ctrl-C).")
@click.option("--backend", help="Have it made by stress-ng (cpu, busy), fio (disk) or iperf3 (network).")
@click.option("--pattern", help="Which are on and when: 2s/2s, or 'memory:2s off:1s', or FILE.yaml#NAME of NOIGENA.")
@click.option(
    "--log", "log_file", type=click.Path(path_type=Path), help="CSV file to make: what was asked and done each 100 ms."
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object (schema 1) instead of text.")
@click.argument("specs", nargs=-1, required=True, metavar="SPEC...")
def command(
    specs: tuple[str, ...],
    seconds: float | None,
    backend: str | None,
    pattern: str | None,
    log_file: Path | None,
    as_json: bool,
) -> None:
    """Make noise with a dose: load on CPUs, memory, disks or networks.

    A SPEC is KIND=DOSE[@WHERE]. Kinds: cpu and busy (in CPUs), memory and cache (B/s, read and written bytes both
    counted), capacity (bytes that are held), disk (B/s), metadata (operations/s), network (b/s or B/s, through the
    loopback interface, or to a host). WHERE: CPUs, a NUMA node, nice19, ionice3; of disk and metadata a folder; of
    network a host, and the interface to it. A tool too (@fio): --backend adds it to all. What was achieved is said at
    the end.

    \b
        tracekit noise memory=4GB/s --for 30s
        tracekit noise cpu=2@2-3 disk=50MB/s@/scratch --pattern 2s/2s
        tracekit noise network=1Gb/s@192.0.2.7
    """
    from tracekit.noise.noise import Noise
    from tracekit.noise.pattern import parse_pattern
    from tracekit.noise.spec import parse_all

    noises = parse_all(specs, backend)
    stretches = parse_pattern(pattern, noises) if pattern is not None else None
    end_on_signals()
    with ExitStack() as stack:
        rows = csv.writer(stack.enter_context(_new_file(log_file))) if log_file is not None else None
        if rows is not None:
            rows.writerow(["noise", "start_ns", "end_ns", "asked", "done", "unit"])
        try:
            noise = Noise(noises, stretches)
        except KeyboardInterrupt:
            return
        try:
            noise.start()
            until = time.monotonic() + (seconds or float("inf"))
            while noise.is_on() and (left := until - time.monotonic()) > 0:
                time.sleep(min(_LOOK_EVERY_S, left))
                for each in noise.log():
                    if rows is not None:
                        unit = each.spec.kind.unit
                        rows.writerow([each.spec.label, each.start_ns, each.end_ns, each.asked, each.done, unit])
        except KeyboardInterrupt:
            pass
        finally:
            noise.stop()
    for note in noise.missing():
        say(f"{note.what}: {note.why}")
    click.echo(_json(noises, noise) if as_json else _text(noises, noise))


def _new_file(path: Path) -> TextIO:
    try:
        return open(path, "x", encoding="utf-8", newline="", buffering=1)
    except FileExistsError:
        raise TracekitError(f"{path}: exists already; name another file") from None
    except OSError as error:
        raise TracekitError(f"{path}: cannot be written ({error.strerror})") from error


def _json(specs: "list[Spec]", noise: "Noise") -> str:
    achieved = noise.achieved()
    rows = [
        {"noise": spec.label, "kind": spec.kind.name, "asked": spec.dose, "achieved": achieved[spec.label].done}
        | {"share": achieved[spec.label].share, "seconds": achieved[spec.label].seconds, "of": spec.kind.dose_unit}
        for spec in specs
    ]
    return json.dumps({"schema": 1, "noises": rows}, indent=2)


def _text(specs: "list[Spec]", noise: "Noise") -> str:
    from tracekit.noise.spec import dose_text

    lines = []
    for spec in specs:
        achieved = noise.achieved()[spec.label]
        dose = dose_text(spec.kind, achieved.done)
        lines.append(f"{spec.label}: {dose} ({achieved.share:.1%} of what was asked) in {achieved.seconds:.1f} s")
    return "\n".join(lines)
