"""What a study found: one JSON object in its folder, which the text and the dashboard show too."""

from collections.abc import Sequence
from pathlib import Path

import msgspec

from tracekit.analysis.json_objects import json_of
from tracekit.analysis.noise_effects import NoiseEffect
from tracekit.analysis.report_schema import Finding, Guideline, Setting
from tracekit.analysis.text_settings import settings_lines, together
from tracekit.analysis.words import shell_line, visible
from tracekit.errors import RunError
from tracekit.models.noise import Mix
from tracekit.run.files import replace_file
from tracekit.run.folder import STUDY_FILE
from tracekit.settings.file import Entry, write_settings
from tracekit.study.statistics import FEWEST_PAIRS, Comparison, ConditionSummary

STUDY_VERSION = 1
WHY_MEAN = "compared by the mean step, as the median step tells another gain: steps are of several kinds"


class Study(msgspec.Struct):
    """A study: its conditions, what each gave, and how they compare. `blocks_ms` has the median step of every block,
    or the mean step where it is `by_loop` or `by_mean`.

    `floor` is the gain that the baseline seems to have over itself, `level` the certainty that each interval of a
    comparison of runs was made with: more than 0.95 where the results were looked at before the end. Where the fastest
    of several was chosen, its interval is surer by as much as choosing costs (`statistics.level_among`). `stopped` says
    why no more rounds were run.
    """

    schema: int
    study: str
    path: str
    command: list[str]
    conditions: list[ConditionSummary]
    comparisons: list[Comparison]
    floor: float
    level: float
    stopped: str
    blocks_ms: dict[str, list[float]]
    by_loop: bool = False  # the steps are mean steps of whole loops, what their loaders had them wait for included
    by_mean: bool = False  # as the median step tells another gain than the mean step
    interleaved: str = ""  # how runs of the same round were set against each other
    settings: list[Setting] = []
    predicted: list[Setting] = []  # what was recommended, and is verified here
    guidelines: list[Guideline] = []
    explored: str | None = None  # the run whose exploration the settings come from
    advice: str = ""
    noise: list[NoiseEffect] = []
    mixes: list[Mix] = []  # of noises
    findings: list[Finding] = []

    @property
    def step(self) -> str:
        """Which step `blocks_ms` has, in words."""
        return "mean step of the loop" if self.by_loop else "mean step" if self.by_mean else "median step"

    def save(self, folder: Path, entries: Sequence[Entry] = (), why: str = "") -> None:
        """Write it into the study's folder, with the settings to go on with; it says so where the disk takes neither:
        what was found is still to be told."""
        try:
            write_settings(folder / "settings.toml", entries, why)
            replace_file(folder / STUDY_FILE, self.as_json())
        except OSError as error:
            self.stopped += f"; it could not be written to {folder} ({error.strerror})"

    def as_json(self) -> bytes:
        return json_of(self)

    @classmethod
    def load(cls, folder: Path) -> "Study":
        """Raises RunError when there is none, or one of a newer schema."""
        file = folder / STUDY_FILE
        try:
            found = msgspec.json.decode(file.read_bytes(), type=cls)
        except OSError as error:
            raise RunError(f"{file}: cannot be read ({error.strerror})") from error
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise RunError(f"{file}: is not a study of this tracekit ({error})") from error
        if found.schema > STUDY_VERSION:
            raise RunError(f"{file}: written by a newer tracekit; upgrade tracekit to open this study")
        return found


def _times(condition: ConditionSummary) -> str:
    """The interval is left out where so few blocks tell none."""
    if not condition.blocks:
        return "in no round"
    low, high = condition.ci
    interval = f"  [{low:.4g}, {high:.4g}]" if condition.blocks >= FEWEST_PAIRS else ""
    return f"{condition.median_ms:9.4g} ms{interval}  in {condition.blocks}"


def _comparisons(study: Study, floor: str) -> list[str]:
    lines = [f"  comparisons; {floor}"]
    for each in study.comparisons:
        gain = f", saves {each.gain.expected:+.1%} [{each.gain.low:+.1%}, {each.gain.high:+.1%}]"
        why = f" ({each.why})" if each.why else ""
        known = gain if each.pairs >= FEWEST_PAIRS else ""
        pairs = "pairs of blocks, each of one process" if each.in_one_process else "pairs"
        lines.append(f"    {each.b} against {each.a}: {each.verdict}{known}, {each.pairs} {pairs}{why}")
    return lines


def predictions(study: Study) -> list[str]:
    """What was predicted of the settings, a line each; those that go together have one gain."""
    lines = []
    for group in together(study.predicted):
        gain, names = group[0].gain, ", ".join(visible(each.name) for each in group)
        saves = f"saves {gain.expected:+.1%} [{gain.low:+.1%}, {gain.high:+.1%}] of a step"
        lines.append(f"predicted ({group[0].basis}): {saves} with {names}")
    return lines


def _verdicts(study: Study, floor: str) -> list[str]:
    """Of a study of noise: what is said of each, and of those that were on together."""
    lines = [f"  verdicts; {floor}", *(f"    {each.title}" for each in study.findings)]
    for mix in study.mixes:
        predicted, measured = mix.predicted.expected, mix.measured.expected
        lines.append(f"    {mix.noise}: {predicted:+.1%} was predicted from each by itself, {measured:+.1%} was seen")
    return lines


def text_of(study: Study) -> str:
    """The study as lines for a terminal."""
    width = max((len(each.name) for each in study.conditions), default=0)
    lines = [f"STUDY  {study.study} of {shell_line(study.command)}", f"  folder {study.path}", ""]
    lines += [f"  {study.step} by condition, its 95 % interval, blocks"]
    lines += [f"    {each.name:<{width}}  {_times(each)}" for each in study.conditions]
    floor = f"the noise floor is {study.floor:.1%}" if study.floor < 1 else "the noise floor is not known yet"
    lines += [
        "",
        *(_verdicts(study, floor) if study.noise else _comparisons(study, floor)),
        *(f"    {each}" for each in predictions(study)),
    ]
    lines += ["", f"  {study.stopped}", *([f"  {study.interleaved}"] if study.interleaved else [])]
    if study.by_mean:
        lines += [f"  {WHY_MEAN}"]
    if study.advice:
        lines += [f"  {study.advice}"]
    lines += [f"  {line}" for line in settings_lines(study.settings)]
    lines += [f"    apply: {how}" for how in dict.fromkeys(each.apply for each in study.settings)]
    if study.guidelines:
        lines += ["", f"  guidelines, and the share of {study.guidelines[0].grid} that each beats"]
        lines += [f"    {each.beats:4.0%}  {each.sentence}" for each in study.guidelines]
    following = f"next: {shell_line(['tracekit', 'dashboard', str(Path(study.path).parent)])}"
    return "\n".join(visible(line) for line in [*lines, "", following]) + "\n"
