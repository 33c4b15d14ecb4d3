"""Communication that ranks wait in while their run is being recorded, and others have not come to."""

from collections.abc import Iterable

from tracekit.analysis.unfinished import NeverEnded, by_op
from tracekit.run.manifest import LONG_WAIT_S, CameTo, Manifest

_ALL_RANKS = "world"  # the group of all of them, as its name begins


def hanging(manifests: Iterable[Manifest]) -> list[NeverEnded]:
    """Of each group of ranks the first communication that some have waited in for long, and others have not come to, as
    their supervisors saw it last. Of the group of all ranks those are named too that nobody has seen wait there."""
    groups: dict[tuple[int, int, str], list[CameTo]] = {}
    for manifest in manifests:
        for each in manifest.hanging:
            groups.setdefault((each.attempt, each.world, each.group), []).append(each)
    found = (_of_group(ranks) for _, ranks in sorted(groups.items()))
    return [each for each in found if each is not None]


def _of_group(ranks: list[CameTo]) -> NeverEnded | None:
    first = ranks[0]
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
