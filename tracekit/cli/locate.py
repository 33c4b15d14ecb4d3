"""Which run a command is asked about."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from tracekit.cli.saying import say
from tracekit.errors import RunError
from tracekit.settings.catalogue import Value

if TYPE_CHECKING:
    from tracekit.analysis.report_schema import Setting


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


def complete(run: Path) -> Path:
    """The run, with what a killed recording has left of it; what cannot be written is left for the next command."""
    from tracekit.record.salvage import salvage

    try:
        lines = salvage(run)
    except OSError as error:
        lines = [f"{run}: what a killed recording left could not be salvaged ({error.strerror})"]
    for line in lines:
        say(line)
    return run


def settings_of(given: Path) -> dict[str, Value]:
    """The settings of a settings file or of a run or study, by full name.

    Raises SettingsError when the file is none, or holds what this version cannot apply; RunError when a run has none.
    """
    from tracekit.settings.catalogue import check_applicable
    from tracekit.settings.file import load_settings

    path = given if given.is_file() else locate(given)
    file = path / "settings.toml" if path.is_dir() else path
    if path.is_dir() and not file.exists():
        raise RunError(f"{path}: has no settings yet; make them with: tracekit analyze {path}")
    settings = load_settings(file)
    if not settings:
        raise RunError(f"{file}: recommends nothing, so there is nothing to apply; tracekit analyze says why")
    check_applicable(settings)
    return settings


def best_fixed_of(given: Path) -> int | None:
    """The best one thread count that the exploration of a run, of a study, or beside a settings file has shown; None
    without one."""
    import json

    path = given.parent if given.is_file() else locate(given)
    try:
        if (path / "study.json").is_file():  # of the comparisons of a study of threads, its first is about that count
            name, _, count = json.loads((path / "study.json").read_bytes())["comparisons"][0]["b"].partition(":")
            return int(count) if name == "fixed" else None
        step = (json.loads((path / "findings.json").read_bytes()).get("exploration") or {}).get("step") or {}
        return int(min(step, key=lambda count: step[count]["expected"])) if step else None
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return None


def predicted_of(given: Path, values: Mapping[str, Value]) -> "list[Setting]":
    """What the run or study that the settings are of, or that their file is in, recommends, as far as these are it.
    Nothing where the run was recorded under others of them: it predicts what is gained over these, and not over nothing
    set."""
    import msgspec

    from tracekit.analysis.report_schema import Setting

    path = given.parent if given.is_file() else locate(given)
    for name in ("study.json", "findings.json"):
        try:
            found = msgspec.json.decode((path / name).read_bytes(), type=dict[str, msgspec.Raw])
            told = msgspec.json.decode(found["settings"], type=list[Setting])
        except (OSError, LookupError, UnicodeDecodeError, RecursionError, msgspec.MsgspecError):
            continue
        predicted = [each for each in told if _as_recommended(each, values)]
        others = _recorded_under(path) & values.keys() - {each.name for each in told}
        if not predicted or not others:
            return predicted
        say(f"{path}: recorded under {', '.join(sorted(others))}, so its prediction is no gain over nothing set")
    return []


def _recorded_under(path: Path) -> set[str]:
    """The names of the settings that a run was recorded under."""
    from tracekit.run.reader import open_run

    try:
        return set(open_run(path).manifest.settings)
    except RunError:  # a study, which has compared with nothing set
        return set()


def _as_recommended(setting: "Setting", values: Mapping[str, Value]) -> bool:
    plan = setting.recommended
    if isinstance(plan, dict):
        return all(values.get(f"{setting.name}.{layer}") == count for layer, count in plan.items())
    return values.get(setting.name) == plan
