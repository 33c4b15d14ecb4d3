"""One run of a study: `tracekit record` in a process of its own."""

import json
import os
import random
import subprocess
from dataclasses import dataclass
from pathlib import Path

from tracekit.errors import TracekitError
from tracekit.record.wire import is_in_loop
from tracekit.run.reader import Run, open_run

# Conditions differ in what is in memory before the program, and where its data then lies is worth some percent either
# way, the same in each run. An environment of random size makes that a noise that rounds average out (Mytkowicz et al.,
# Producing wrong data without doing anything obviously wrong, ASPLOS 2009).
_PADDING, _MOST_PADDING = "TRACEKIT_STUDY_PADDING", 4096


class StudyError(TracekitError):
    """A study that cannot be made of this command; or not with one `condition` of it."""

    def __init__(self, text: str, condition: str | None = None) -> None:
        super().__init__(text)
        self.condition = condition


@dataclass(frozen=True)
class Recording:
    """A run that is to be recorded: under which condition, by which words, where the run and its output go."""

    condition: str
    words: list[str]
    run: Path
    output: Path
    directory: str | None = None  # where to run it; None: here

    def start(self) -> subprocess.Popen[bytes]:
        with open(f"{self.output}.txt", "wb") as output, open(f"{self.output}.err", "wb") as errors:
            return subprocess.Popen(
                self.words, stdin=subprocess.DEVNULL, stdout=output, stderr=errors, process_group=0,
                cwd=self.directory, env=os.environ | {_PADDING: "x" * random.randrange(_MOST_PADDING)},
            )  # fmt: skip

    def in_loop(self) -> bool:
        """Whether a process of it has begun its loop of steps."""
        try:
            (manifest,) = (self.run / "manifest").glob("*.json")
            return is_in_loop(Path(json.loads(manifest.read_bytes())["spool"]))
        except (OSError, ValueError, KeyError, TypeError):  # not there yet
            return False

    def opened(self, code: int) -> Run:
        """What was recorded, once it has ended with this code. Raises StudyError when it failed."""
        if code:
            errors = Path(f"{self.output}.err").read_text(encoding="utf-8", errors="replace")
            last = errors.strip().splitlines()[-1:] or ["nothing on stderr"]
            raise StudyError(
                f"the command ended with exit code {code} under {self.condition}: {last[0]}; its output is in"
                f" {self.output}.txt and .err",
                self.condition,
            )
        return open_run(self.run)
