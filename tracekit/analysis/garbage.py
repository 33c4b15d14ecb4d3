"""Garbage: for how long Python's full collections held up a loop, and the workers of its loaders."""

import msgspec

from tracekit.analysis.people import Person
from tracekit.run.reader import Run

_MS = 1e6
_LEAST_MS = 1e-3  # of a loop


class GarbageUse(msgspec.Struct):
    """Full collections of one process while its loop ran, `share` of its time; and of all `workers` of its loaders
    those that `collected`: one that is forked when its program stands just before a collection does it too."""

    process: int
    role: str
    collections: int
    share: float
    longest_ms: float
    workers: int
    collected: int
    worker_ms: float  # of one collection in a worker, on average

    def is_notable(self, share: float) -> bool:
        """Whether it is worth a word: more than this share of the loop, or done again by workers."""
        return self.collected > 0 or self.share > share

    def title(self) -> str:
        """In a sentence or two."""
        said = []
        if self.collections:
            said.append(
                f"{self.role} stood still for {self.share:.1%} of its loop while Python collected garbage of all"
                f" generations, {self.collections} times, {self.longest_ms:.3g} ms at most"
            )
        if self.collected:
            said.append(
                f"{self.collected} of {self.workers} loader workers of {self.role} did a full garbage collection of"
                f" what they were forked with, {self.worker_ms:.3g} ms each: gc.freeze() before the loop spares them it"
            )
        return "; ".join(said)


def garbage_use(run: Run, person: Person, window: tuple[int, int]) -> GarbageUse | None:
    """None where nothing was collected. `run` is what was recorded of the process; its workers are asked too.
    `window`: of the loop, from and to, Unix ns."""
    # Workers that are not forked begin with what they import: it is not the program's that they collect.
    are_forked = all(each.start_method in ("", "fork") for each in run.manifest.loaders.values())
    workers = person.workers if are_forked else ()
    rows = run.of(person.process, *workers).sql(
        "SELECT process, duration_ns / ? AS ms FROM spans "
        "WHERE kind = 'garbage' AND (process <> ? OR start_ns >= ? AND start_ns < ?)",
        [_MS, person.process, *window],
    )
    is_own = rows["process"] == person.process
    own, theirs = rows[is_own], rows[~is_own]
    if own.empty and theirs.empty:
        return None
    return GarbageUse(
        process=person.process,
        role=person.role or f"process {person.process}",
        collections=len(own),
        share=float(own["ms"].sum()) / max((window[1] - window[0]) / _MS, _LEAST_MS),
        longest_ms=float(own["ms"].max()) if len(own) else 0.0,
        workers=len(workers),
        collected=int(theirs["process"].nunique()),
        worker_ms=float(theirs["ms"].mean()) if len(theirs) else 0.0,
    )
