"""`tracekit doctor`."""

from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from tracekit.record.examination import Check, Examination
    from tracekit.run.manifest import CPU

_WIDTH = 80
_LABEL = 12


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of text.")
def command(as_json: bool) -> None:
    """Say what this machine offers a recording, what is missing, and how to get it.

    Looks by trying: the counters that can be read, the CPUs and their quota, torch and its OpenMP runtime, GPUs, the
    folder for evidence, and whether a recorder starts inside Python. The exit code is 0 also when something is missing.

    \b
        tracekit doctor
        tracekit doctor --json
    """
    from tracekit.record import examination

    found = examination.examine()
    click.echo(examination.as_json(found) if as_json else text(found))


def text(found: "Examination") -> str:
    """The examination in lines of at most 80 characters."""
    lines = _machine(found)
    lines += ["", "Offered here"]
    lines += [line for check in found.checks if check.available for line in _item(check)]
    missing = [check for check in found.checks if not check.available]
    lines += ["", "Not here"] if missing else ["", "Nothing is missing."]
    lines += [line for check in missing for line in _item(check)]
    return "\n".join(lines)


def _machine(found: "Examination") -> list[str]:
    lines = _fact("tracekit", found.tracekit)
    lines += _fact("Python", found.python)
    lines += _fact("system", found.system)
    lines += _fact("CPU", found.cpu.model)
    lines += _fact("CPUs", _cpus(found.cpu))
    lines += _fact("quota", "none" if found.cpu.quota is None else f"{found.cpu.quota:g} CPUs, set by the cgroup")
    lines += _fact("threads", f"up to {found.thread_budget} can run at once")
    if found.torch is not None:
        build = found.torch
        lines += _fact("torch", f"{build.version}, {f'CUDA {build.cuda}' if build.cuda else 'without CUDA'}")
        lines += _fact("OpenMP", ", ".join(build.openmp) or "no runtime found among the loaded libraries")
        lines += _fact("defaults", f"{build.intra_op} intra-op and {build.inter_op} inter-op threads")
    lines += _fact("GPUs", ", ".join(found.gpus) or "none")
    if found.spool is not None:
        free = f"{found.spool.free_bytes / 2**30:.1f} GiB free"
        lines += _fact("spool", f"{found.spool.folder} ({found.spool.file_system or 'unknown file system'}, {free})")
    if found.sample_ms is not None:
        lines += _fact("sampling", f"{found.sample_ms:.2f} ms of CPU time to read the counters of one process once")
    return lines


def _cpus(cpu: "CPU") -> str:
    from tracekit.record.topology import format_cpu_list

    places = [
        (cpu.physical_cores, "physical core"),
        (cpu.sockets, "socket"),
        (cpu.numa_nodes, "NUMA node"),
    ]
    usable = f"{len(cpu.affinity)} of {cpu.logical} usable ({format_cpu_list(cpu.affinity)})"
    told = [f"{count} {word}{'s' if count > 1 else ''}" if count else f"{word}s unknown" for count, word in places]
    return ", ".join([usable, *told])


def _fact(label: str, value: str) -> list[str]:
    return _wrapped(label.ljust(_LABEL), value, " " * _LABEL)


def _item(check: "Check") -> list[str]:
    mark = "  yes  " if check.available else "  no   "
    lines = _wrapped(mark, check.name, " " * len(mark))
    if check.why:
        lines += _wrapped(" " * 9, check.why, " " * 9)
    if check.remedy:
        lines += _wrapped(" " * 9 + "to get it: ", check.remedy, " " * 9)
    return lines


def _wrapped(first: str, value: str, rest: str) -> list[str]:
    """A value in lines; what a terminal would take for a command is shown as U+FFFD."""
    import textwrap

    plain = "".join(letter if letter.isprintable() else "\ufffd" for letter in value) or "unknown"
    return textwrap.wrap(plain, _WIDTH, initial_indent=first, subsequent_indent=rest, break_long_words=True)
