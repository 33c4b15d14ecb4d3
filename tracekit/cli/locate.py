"""Which run a command is asked about."""

from pathlib import Path


def locate(run: Path | None) -> Path:
    """The run directory meant: a path, the name of a run in the directory of runs, or None for the newest one there.

    Raises RunError when there is no run at all, ConfigError when the directory of runs is not well said.
    """
    from tracekit import config
    from tracekit.run.folder import newest_run

    runs = Path(config.resolve()["runs"].value)
    if run is None:
        return newest_run(runs)
    if not run.exists() and (runs / run).is_dir():
        return runs / run
    return run
