"""What a change of the thread count costs this OpenMP runtime, measured on the spot."""

from collections.abc import Iterator
from time import perf_counter_ns as clock
from types import ModuleType
from typing import Any

from .counted_calls import Setter
from .governor import cold_ns

_PROBES = 7
_GRAIN = 32_768  # elements that at::parallel_for gives to one thread


def switch_costs(setter: Setter, counts: list[int], torch: ModuleType) -> Iterator[tuple[str, int]]:
    """Names and costs, ns: `switch <pool>><count>`, the first parallel region with a count beyond what such regions
    usually take, after a pool of another size has idled; and `change`, of setting a count. Leaves the last one set."""
    for count in counts:
        data = torch.ones(_GRAIN * count, dtype=torch.float32, device="cpu")
        out = torch.empty_like(data)

        def region(data: Any = data, out: Any = out) -> int:
            began = clock()
            torch.add(data, 1.0, out=out)
            return clock() - began

        for pool in counts:
            costs = []
            for _ in range(_PROBES):
                setter.set(pool)
                region()
                region()
                setter.set(1)
                region()
                setter.set(count)
                first = region()
                costs.append(first - min(region() for _ in range(3)))
            yield f"switch {pool}>{count}", max(sorted(costs)[_PROBES // 2], 0) if count > 1 else 0

    def change() -> None:
        setter.set(counts[0])
        setter.set(counts[-1])

    setter.set(counts[-1])
    yield "change", cold_ns(change) // 2
