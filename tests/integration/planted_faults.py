"""A program's `sitecustomize`: breaks the collectors that PLANTED_FAULT names as "one,another:install" or ":event"."""

import os
from functools import partial

import wrapt

collectors, _, when = os.environ["PLANTED_FAULT"].partition(":")


def boom(*args, **kwargs):
    raise RuntimeError("planted")


class BrokenSpool:
    """Names can be interned, but nothing can be written."""

    def __init__(self, spool):
        self.intern = spool.intern
        self.write = self.note = boom
        self.before_writing = spool.before_writing


class BrokenAgent:
    """The agent as this collector sees it: every record and every description fails."""

    def __init__(self, agent):
        self.agent = agent
        self.spool = BrokenSpool(agent.spool)
        self.describe = boom

    def __getattr__(self, name):
        return getattr(self.agent, name)


def plant(collector, module):
    kind = getattr(module, collector.capitalize())
    if collector == "counters":
        setattr(kind, "__init__" if when == "install" else "sample", boom)
    elif collector == "conditions" and when == "event":
        kind._apply = boom
    elif when == "install":
        kind.install = boom
    else:
        install = kind.install
        kind.install = lambda self, agent: install(self, BrokenAgent(agent))


for each in collectors.split(","):
    wrapt.register_post_import_hook(partial(plant, each), f"tracekit.collectors.{each}")
