"""From findings to settings with a value, a gain and a reason."""

from tracekit.advice.buckets import bucket_settings
from tracekit.advice.loading import loader_settings
from tracekit.advice.thread_plan import measured_threads
from tracekit.advice.threads import fewer_threads
from tracekit.analysis.accounts import Each, in_turn
from tracekit.analysis.report import analyze as _analyze
from tracekit.analysis.report_schema import Advisor, Report
from tracekit.run.reader import Run

# Each looks at the report and returns settings, or says why it has none.
ADVISORS: list[Advisor] = [measured_threads, fewer_threads, loader_settings, bucket_settings]


def analyze(run: Run, each: Each = in_turn) -> Report:
    """The whole report of a run: what the analyses establish, and what the advisors make of it. `each` has its
    processes looked at, by others too (`tracekit.cluster`)."""
    return _analyze(run, ADVISORS, each)
