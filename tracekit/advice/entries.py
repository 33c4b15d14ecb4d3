"""Advice as it stands in a settings file."""

from tracekit.analysis.report_schema import Advice, Report, Setting
from tracekit.settings.file import Entry


def settings_entries(report: Report) -> list[Entry]:
    """The entries for what a report recommends."""
    return entries_of(Advice(report.settings, report.advice, report.holds_for))


def entries_of(advice: Advice) -> list[Entry]:
    """One entry per setting, the layers of a plan each on a line, then what the plan was measured with."""
    entries = []
    for setting in advice.settings:
        if isinstance(setting.recommended, dict):
            counts = sorted(setting.recommended.items())
            entries += [
                Entry(f"{setting.name}.{layer}", count, "" if number else _comment(setting))
                for number, (layer, count) in enumerate(counts)
            ]
        else:
            entries.append(Entry(setting.name, setting.recommended, _comment(setting)))
    said = {entry.name for entry in entries}
    return entries + [Entry(name, value) for name, value in advice.holds_for.items() if name not in said]


def _comment(setting: Setting) -> str:
    """Why, and what it changes in the results."""
    return setting.why if setting.effect == "identical" else f"{setting.why}; effect on results: {setting.effect}"
