"""How well ranks work together: POP's efficiencies, and the path through all of them that decides how long it takes.

Efficiencies multiply: parallel = load balance x serialization x transfer (POP methodology, Rosas et al. 2014). Useful
is what a rank does between two meetings, and beside one that it has entered and not waited for yet; an ideal network
would let all leave a meeting when the last one has come.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tracekit.analysis.awaited import MAKERS
from tracekit.analysis.meetings import PHASES, Floats, Meetings, Times

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
    ways, beside = np.maximum(meetings.came[:, at] - meetings.left[:, at - 1], 0), meetings.beside[:, at]
    begins, ends = meetings.stretches
    took = int((meetings.left[:, ends].max(axis=0) - meetings.left[:, begins].min(axis=0)).sum())
    of_rank, ideal = (ways + beside).sum(axis=1), _ideal(ways, beside, np.cumsum(ends - begins))
    busiest = int(of_rank.max())
    if not busiest or not ideal or took <= 0:
        return None
    return Efficiency(took / 1e9, float(of_rank.mean()) / busiest, busiest / ideal, ideal / took)


def _ideal(ways: Times, beside: Times, ends: NDArray[np.intp]) -> int:
    """How long it would take with an ideal network, ns, given what each rank takes to each meeting and beside it (N,
    K), and behind which meetings everything begins anew: nobody leaves before all have come, nor before it waits."""
    if not beside.any():
        return int(ways.max(axis=0).sum())
    took, now, last = 0, np.zeros(len(ways), dtype=np.int64), set(ends.tolist())
    for at in range(ways.shape[1]):
        came = now + ways[:, at]
        now = np.maximum(came.max(), came + beside[:, at])
        if at + 1 in last:
            took, now = took + int(now.max()), np.zeros_like(now)
    return took


def critical_path(meetings: Meetings) -> dict[str, float]:
    """What the path consists of, seconds: from leaving the first meeting to leaving the last one, as far as all was
    recorded, at each meeting from the rank that came last, or on that which was not through beside it. By phase of the
    ranks on it, of loading what the makers of batches did by itself; what the ranks were kept from a CPU; transfer. It
    adds up to the time that goes by on it."""
    at = np.flatnonzero(meetings.seen)
    if not len(at):
        return {}
    comes, leaves, goes_on = _on_path(meetings, at)
    # On its way it did as much beside the meeting before, of which only what is on the path counts, with that meeting.
    besides, before = meetings.besides[comes, at], meetings.besides[comes, at - 1]
    took = np.column_stack([meetings.own[comes, at], meetings.kept[comes, at]]) - before
    took += np.where(goes_on[:, None], besides, 0.0)
    work = meetings.came[comes, at] - meetings.left[comes, at - 1]
    work += np.where(goes_on, meetings.beside[comes, at], 0)
    known = ~np.isnan(took).any(axis=1)
    path = {phase: float(took[known, place].sum()) for place, phase in enumerate(PHASES)}
    path |= _of_makers(took[known, PHASES.index(LOADING)], meetings.awaited[comes, at][known])
    path[LOADING] -= sum(path[f"{LOADING}, {done}"] for done in MAKERS)
    path[KEPT] = float(took[known, -1].sum())
    path[NOT_FOLLOWED] = float(work.sum()) - sum(path.values())
    path[TRANSFER] = float((meetings.left[leaves, at] - meetings.left[comes, at - 1] - work).sum())
    return {part: taken / 1e9 for part, taken in path.items()}


def _on_path(meetings: Meetings, at: NDArray[np.intp]) -> tuple[NDArray[np.intp], NDArray[np.intp], NDArray[np.bool_]]:
    """Of these meetings, which rank the path comes with, which it leaves with, and whether that is one that went on
    beside the meeting when all had come. From the last one on: it leaves with who comes to the next one."""
    came, beside = meetings.came, meetings.beside
    comes = meetings.last[at]
    leaves = comes.copy()
    goes_on = np.zeros(len(at), dtype=bool)
    for place in range(len(at) - 1, -1, -1):
        meeting = at[place]
        if place + 1 < len(at) and at[place + 1] == meeting + 1:
            leaves[place] = comes[place + 1]
        leaver = leaves[place]
        goes_on[place] = came[leaver, meeting] + beside[leaver, meeting] > came[comes[place], meeting]
        if goes_on[place]:
            comes[place] = leaver
    return comes, leaves, goes_on


def _of_makers(loading: Floats, awaited: Floats) -> dict[str, float]:
    """What the makers of batches did on the path, ns, in the time that went by `loading` (n) as they did `awaited`
    (n, 2): of it all at most."""
    whole = awaited.sum(axis=1)
    part = np.minimum(np.divide(loading, whole, out=np.zeros_like(whole), where=whole > 0), 1.0)
    return {f"{LOADING}, {done}": float((awaited[:, at] * part).sum()) for at, done in enumerate(MAKERS)}
