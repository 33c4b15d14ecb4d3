"""Communication that ranks wait in while their run is being recorded, and others have not come to."""

from collections.abc import Iterable

from tracekit.analysis.unfinished import NeverEnded, by_op
from tracekit.run.manifest import LONG_WAIT_S, CameTo, Manifest

_ALL_RANKS = "world"  # the group of all of them, as its name begins


def hanging(manifests: Iterable[Manifest]) -> list[NeverEnded]:
    """Of each group of ranks the first communication that some have waited in for long, and others have not come to, as
    their supervisors saw it last. Of the group of all ranks those are named too that nobody has seen wait there."""
    groups: dict[tuple[int, str], list[CameTo]] = {}
    for manifest in manifests:
        for each in manifest.hanging:
            groups.setdefault((each.world, each.group), []).append(each)
    found = (_of_group(ranks) for _, each in sorted(groups.items()) for ranks in _attempts(each))
    return [each for each in found if each is not None]


def _attempts(ranks: list[CameTo]) -> list[list[CameTo]]:
    """The ranks of a group, which are of one attempt whatever it is called on their nodes: all of them live. Where some
    are there twice an attempt has not ended as another began, and those of each are told; of two jobs beside each other
    nobody knows who waits for whom."""
    if _are_distinct(ranks):
        return [ranks]
    by_attempt: dict[int, list[CameTo]] = {}
    for each in ranks:
        by_attempt.setdefault(each.attempt, []).append(each)
    return [each for _, each in sorted(by_attempt.items()) if _are_distinct(each)]


def _are_distinct(ranks: list[CameTo]) -> bool:
    return len({each.rank for each in ranks}) == len(ranks)


def _of_group(ranks: list[CameTo]) -> NeverEnded | None:
    first = max(ranks, key=lambda each: each.attempt)
    for number in sorted({each.sequence for each in ranks if each.waits_s >= LONG_WAIT_S}):
        inside = [each for each in ranks if each.sequence == number and each.waits_s >= 0]
        behind = sorted({(each.rank, each.sequence) for each in ranks if each.sequence < number})
        came = {each.rank for each in ranks if each.sequence > number or (each.sequence == number and not each.failed)}
        came |= {rank for rank, _ in behind}
        unseen = sorted(set(range(first.world)) - came) if first.group.startswith(_ALL_RANKS) else []
        ops = by_op({"op": each.op, "rank": each.rank} for each in inside)
        if behind or unseen or len(ops) > 1:
            return NeverEnded(
                first.group, first.attempt, " and ".join(ops), number, sorted(each.rank for each in inside), behind,
                ops if len(ops) > 1 else {}, max(each.waits_s for each in inside), unseen,
            )  # fmt: skip
    return None
