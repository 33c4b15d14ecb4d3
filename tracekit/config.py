"""The options that hold for every command, from the first of these that says them: a flag, a `TRACEKIT_*` variable,
`[tool.tracekit]` in the nearest pyproject.toml upward, the default. Standard library only.
"""

import importlib.metadata
import os
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from tracekit.errors import TracekitError

Value = str | float | list[str]


class ConfigError(TracekitError):
    """An option with a value that it cannot have; names where the value came from."""


@dataclass(frozen=True)
class Resolved:
    """The value of an option and where it came from."""

    value: Any  # what the option's `parse` returns
    source: str


@dataclass(frozen=True)
class Option:
    """An option: its default, what it means, and how a given value becomes one. `parse` raises ValueError saying what
    the value must be.
    """

    name: str
    meaning: str
    default: Callable[[], Value]
    parse: Callable[[object], Value]

    @property
    def variable(self) -> str:
        return f"TRACEKIT_{self.name.upper()}"

    @property
    def flag(self) -> str:
        return f"--{self.name.replace('_', '-')}"


def _path(given: object) -> Value:
    if not isinstance(given, str) or not given:
        raise ValueError("the path of a directory")
    return given


def _number(low: float, high: float) -> Callable[[object], Value]:
    def parse(given: object) -> Value:
        try:
            number = float(given) if isinstance(given, str | int | float) and not isinstance(given, bool) else None
        except (ValueError, OverflowError):
            number = None
        if number is None or not low < number <= high:
            raise ValueError(f"a number above {low:g}, at most {high:g}")
        return number

    return parse


def _one_of(*words: str) -> Callable[[object], Value]:
    def parse(given: object) -> Value:
        if given not in words:
            raise ValueError(f"one of {', '.join(words)}")
        return str(given)

    return parse


# Collectors start in this order, whatever the order in which they are named: layers look for steps.
_FIRST_COLLECTORS = ["steps", "layers", "operators", "loading", "collectives", "counters", "garbage"]


def collector_names() -> list[str]:
    """The collectors that are installed, those of other packages included, in the order in which they start."""
    names = {point.name for point in importlib.metadata.entry_points(group="tracekit.collectors")}
    return [name for name in _FIRST_COLLECTORS if name in names] + sorted(names.difference(_FIRST_COLLECTORS))


def _collectors(given: object) -> Value:
    words = given.split(",") if isinstance(given, str) else given
    if not isinstance(words, Sequence) or not all(isinstance(word, str) for word in words):
        raise ValueError("names of collectors, separated by commas")
    names = {word.strip() for word in words if word.strip()}
    known = collector_names()
    for name in sorted(names):
        if name not in known:
            raise ValueError(f"out of {', '.join(known)}{_did_you_mean(name, known)}")
    return [name for name in known if name in names]


OPTIONS = {
    option.name: option
    for option in (
        Option("runs", "where runs are kept", lambda: "tracekit-runs", _path),
        Option("overhead", "budget for recording, percent of the run time", lambda: 1.0, _number(0, 100)),
        Option("profile", "profiler windows: auto, off, full", lambda: "auto", _one_of("auto", "off", "full")),
        Option("collectors", "what gathers evidence", collector_names, _collectors),
        # One reading of the counters of a large job takes milliseconds: beyond 100 a second it would do nothing else.
        Option("sample_hz", "readings of the counters per second", lambda: 10.0, _number(0, 100)),
    )
}


def resolve(
    flags: Mapping[str, object] | None = None,
    environment: Mapping[str, str] | None = None,
    directory: Path | None = None,
) -> dict[str, Resolved]:
    """Every option with its value and source. `flags` holds what was given on the command line, None where nothing was.

    Raises ConfigError for a value that an option cannot have and for a key of [tool.tracekit] that is no option.
    """
    environment = os.environ if environment is None else environment
    file, section = _project(Path.cwd() if directory is None else directory)
    return {
        name: _first_said(option, (flags or {}).get(name), environment.get(option.variable), section.get(name), file)
        for name, option in OPTIONS.items()
    }


def _first_said(option: Option, flag: object, variable: str | None, key: object, file: Path | None) -> Resolved:
    if flag is not None:
        return _parsed(option, flag, option.flag)
    if variable:  # an empty variable is the shell's way to say nothing
        return _parsed(option, variable, option.variable)
    if key is not None and file is not None:
        found = _parsed(option, key, f"{file} [tool.tracekit] {option.name}")
        if option.name == "runs":  # a relative path means the same wherever below the project one stands
            return Resolved(os.path.relpath(file.parent / str(found.value)), found.source)
        return found
    return Resolved(option.default(), "default")


def _parsed(option: Option, given: object, source: str) -> Resolved:
    try:
        return Resolved(option.parse(given), source)
    except ValueError as error:
        raise ConfigError(f"{source}: must be {error}; not {given!r}") from error


def _project(directory: Path) -> tuple[Path | None, dict[str, object]]:
    """The nearest pyproject.toml upward with a [tool.tracekit], and what it says there."""
    for folder in (directory, *directory.parents):
        file = folder / "pyproject.toml"
        try:
            text = file.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError):
            continue
        if "tool.tracekit" in text:  # a file that does not speak of tracekit may be as broken as it likes
            section = _section(file, text)
            if section is not None:
                return file, section
    return None, {}


def _section(file: Path, text: str) -> dict[str, object] | None:
    try:
        tool = tomllib.loads(text).get("tool")
    except (ValueError, RecursionError) as error:  # of a number of thousands of digits it is no TOMLDecodeError
        raise ConfigError(f"{file}: is not valid TOML ({error}); mend it, or remove its [tool.tracekit]") from error
    section = tool.get("tracekit") if isinstance(tool, dict) else None
    if section is None:
        return None
    if not isinstance(section, dict):
        raise ConfigError(f"{file}: tool.tracekit must be one table of options, [tool.tracekit]")
    for key in section:
        if key not in OPTIONS:
            raise ConfigError(f"{file}: [tool.tracekit] has no option {key!r}{_did_you_mean(key, list(OPTIONS))}")
    return dict(section)


def _did_you_mean(word: str, known: list[str]) -> str:
    close = get_close_matches(word, known, n=1)
    return f"; did you mean {close[0]}?" if close else f"; there are {', '.join(known)}"
