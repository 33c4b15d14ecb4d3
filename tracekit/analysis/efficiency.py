"""How well ranks work together: POP's efficiencies, and the path through all of them that decides how long it takes.

Efficiencies multiply: parallel = load balance x serialization x transfer (POP methodology, Rosas et al. 2014). Useful
is what a rank does between two meetings; an ideal network would let all leave a meeting when the last one has come.
"""

from dataclasses import dataclass

import numpy as np

from tracekit.analysis.awaited import MAKERS
from tracekit.analysis.meetings import PHASES, Floats, Meetings

LOADING, TRANSFER, KEPT, NOT_FOLLOWED = "loading", "transfer", "kept from a CPU", "not followed"


@dataclass(frozen=True)
class Efficiency:
    """Ratios of 0 to 1, each the product of those below it where it has any.

    `load_balance` = mean useful time / that of the busiest rank; `serialization` = that of the busiest / the time with
    an ideal network; `transfer` = the time with an ideal network / the time it took, `seconds`.
    """

    seconds: float
    load_balance: float
    serialization: float
    transfer: float

    @property
    def communication(self) -> float:
        return self.serialization * self.transfer

    @property
    def parallel(self) -> float:
        return self.load_balance * self.communication


def efficiency(meetings: Meetings) -> Efficiency | None:
    """From the first meeting of a group to its last, as far as all was recorded; None of less than two."""
    at = np.flatnonzero(meetings.seen)
    if not len(at):
        return None
    useful = np.maximum(meetings.came[:, at] - meetings.left[:, at - 1], 0)
    begins, ends = meetings.stretches
    took = int((meetings.left[:, ends].max(axis=0) - meetings.left[:, begins].min(axis=0)).sum())
    of_rank, ideal = useful.sum(axis=1), int(useful.max(axis=0).sum())
    busiest = int(of_rank.max())
    if not busiest or not ideal or took <= 0:
        return None
    return Efficiency(took / 1e9, float(of_rank.mean()) / busiest, busiest / ideal, ideal / took)


def critical_path(meetings: Meetings) -> dict[str, float]:
    """What the path consists of, seconds: from leaving the first meeting to leaving the last one, as far as all was
    recorded, at each meeting from the rank that came last. By phase of the ranks on it, of loading what the makers of
    batches did by itself; what the ranks were kept from a CPU; transfer. It adds up to the time that goes by on it."""
    at = np.flatnonzero(meetings.seen)
    if not len(at):
        return {}
    last = meetings.last[at]
    own, kept = meetings.own[last, at], meetings.kept[last, at]
    work = meetings.came[last, at] - meetings.left[last, at - 1]
    known = ~np.isnan(kept)
    path = {phase: float(own[known, place].sum()) for place, phase in enumerate(PHASES)}
    path |= _of_makers(own[known, PHASES.index(LOADING)], meetings.awaited[last, at][known])
    path[LOADING] -= sum(path[f"{LOADING}, {done}"] for done in MAKERS)
    path[KEPT] = float(kept[known].sum())
    path[NOT_FOLLOWED] = float(work.sum()) - sum(path.values())
    # From here the path goes on with who comes last to the next meeting, when that one has left this one.
    follows = np.where(np.append(np.diff(at) == 1, False), np.roll(last, -1), last)
    path[TRANSFER] = float((meetings.left[follows, at] - meetings.came[last, at]).sum())
    return {part: taken / 1e9 for part, taken in path.items()}


def _of_makers(loading: Floats, awaited: Floats) -> dict[str, float]:
    """What the makers of batches did on the path, ns, in the time that went by `loading` (n) as they did `awaited`
    (n, 2): of it all at most."""
    whole = awaited.sum(axis=1)
    part = np.minimum(np.divide(loading, whole, out=np.zeros_like(whole), where=whole > 0), 1.0)
    return {f"{LOADING}, {done}": float((awaited[:, at] * part).sum()) for at, done in enumerate(MAKERS)}
