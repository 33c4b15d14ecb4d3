"""All pages, in the order of the navigation. The first is what the bare URL shows."""

from tracekit.dashboards.pages.counters import COUNTERS
from tracekit.dashboards.pages.distributed import DISTRIBUTED
from tracekit.dashboards.pages.layers import LAYERS
from tracekit.dashboards.pages.loading import LOADING
from tracekit.dashboards.pages.noise import NOISE
from tracekit.dashboards.pages.operators import OPERATORS
from tracekit.dashboards.pages.overview import OVERVIEW
from tracekit.dashboards.pages.page import Page
from tracekit.dashboards.pages.runs import RUNS
from tracekit.dashboards.pages.settings import SETTINGS
from tracekit.dashboards.pages.threads import THREADS
from tracekit.dashboards.pages.timeline import TIMELINE

PAGES: list[Page] = [
    RUNS, OVERVIEW, TIMELINE, LAYERS, OPERATORS, THREADS, LOADING, DISTRIBUTED, NOISE, COUNTERS, SETTINGS,
]  # fmt: skip
