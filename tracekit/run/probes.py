"""The probe of a run: its command again under other settings, processes that took turns, or one after the other."""

import shutil
from pathlib import Path
from typing import Annotated

import msgspec

from tracekit.errors import RunError
from tracekit.run.folder import PROBE

_TURNS = "turns.json"

Time = Annotated[int, msgspec.Meta(ge=0, le=1 << 62)]


class Probed(msgspec.Struct):
    """A run below the folder of the probe, and when it was stopped and resumed, CLOCK_MONOTONIC ns."""

    run: str
    stops: list[tuple[Time, Time]]


# What was compared: the program as it is and then with other settings, which took turns, perhaps again with others of
# them; or ran, of programs that end soon, again and again, each to its end; or one with other settings alone.
Sittings = list[list[Probed]]


def clear_probe(run: Path) -> None:
    """Make the folder of a run's probe, empty. Raises RunError where it cannot be made."""
    folder = run / PROBE
    try:
        if folder.exists():
            shutil.rmtree(folder)
        folder.mkdir()
    except OSError as error:
        raise RunError(f"{folder}: a probe cannot be kept there ({error.strerror})") from None


def save_sittings(run: Path, sittings: Sittings) -> None:
    """Raises RunError where it cannot be written."""
    file = run / PROBE / _TURNS
    try:
        file.write_bytes(msgspec.json.encode(sittings))
    except OSError as error:
        raise RunError(f"{file}: cannot be written ({error.strerror})") from None


def load_sittings(run: Path) -> Sittings:
    """What ran in a run's probe, [] where it has none. Raises RunError for a file that does not say it."""
    file = run / PROBE / _TURNS
    try:
        found = msgspec.json.decode(file.read_bytes(), type=Sittings)
    except FileNotFoundError:
        return []
    except (OSError, msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise RunError(f"{file}: cannot be read ({error}); make the probe again") from None
    fewest = 1 if len(found) == 1 else 2
    names = [[each.run for each in sitting] for sitting in found]
    is_whole = found and all(len(each) >= fewest for each in names)
    if not is_whole or any(Path(name).name != name for each in names for name in each):
        raise RunError(f"{file}: it names what is no run of the probe; make the probe again")
    return found
