"""Ranks that are to change together, and agree to before they do."""

import json
import os
import sys
from contextlib import suppress
from typing import Any


class Agreement:
    """Whether all ranks of a group are to change after the same pass. Each offers to as that pass begins: when it is
    over all have, if they do. It is kept in the store by which the ranks have met, and nobody waits for anybody."""

    def __init__(self, store: Any, group: str, ranks: int) -> None:
        self._store, self._group, self._ranks = store, group, ranks
        self._block: int | None = None
        self._key = ""

    def offer(self, block: int, counted: int, chosen: list[int] | None = None) -> None:
        """`counted`: by which the end of this block is known from another one, as how many collectives the group has
        begun. Who chooses what comes next tells it to all.

        The first offer for a block is the one that holds: a rank that goes on offering, as its pass is of more runs of
        the engine than that of others, would leave them with an offer of its that it does not stand by.
        """
        if block == self._block:
            return
        self._block, self._key = block, f"tracekit/{self._group}/{block}/{counted}"
        if chosen is not None:
            self._store.set(f"{self._key}/next", json.dumps(chosen))
        self._store.add(self._key, 1)

    def withdraw(self) -> None:
        """This rank does not stand by what it has offered."""
        if self._key:
            with suppress(Exception):  # as where the store is gone
                self._store.add(self._key, -1)
            self._key = ""

    def is_reached(self) -> bool:
        return bool(self._key and self._store.add(self._key, 0) == self._ranks)

    def told(self) -> list[int]:
        """What was chosen; once all agree it is there."""
        told: list[int] = json.loads(self._store.get(f"{self._key}/next"))
        return told


def of_all_ranks(what: str) -> Agreement | None:
    """One of the ranks of torch's default process group; None where this process is in none with others, or that keeps
    no store."""
    if not _has_met_others():
        return None
    distributed = sys.modules["torch"].distributed
    store = distributed.distributed_c10d._get_default_store()
    return Agreement(store, what, distributed.get_world_size()) if store is not None else None


def is_one_of_many() -> bool:
    """Whether this process is a rank of several, which it may have become without a word in the environment."""
    return os.environ.get("WORLD_SIZE", "1") != "1" or _has_met_others()


def _has_met_others() -> bool:
    """Whether it is one in the default process group of torch."""
    distributed = getattr(sys.modules.get("torch"), "distributed", None)
    return bool(
        distributed is not None
        and distributed.is_available()
        and distributed.is_initialized()
        and distributed.get_world_size() > 1
    )
