"""Data-parallel training on a tape per rank, whose delays are known: for tests of what is said of ranks."""

from collections.abc import Callable
from pathlib import Path
from typing import cast

import numpy as np
from synthetic import Tape, make_manifest, make_run, ns

from tracekit.run.reader import Run, open_run

LOADING, FORWARD, BACKWARD, OPTIMIZER, TRANSFER = 2.0, 5.0, 9.0, 3.0, 1.0
STEP_MS = LOADING + FORWARD + BACKWARD + TRANSFER + OPTIMIZER
# What a rank takes longer for a phase in a step, ms, by rank, step and phase; what it is kept from its CPU, likewise.
Longer = Callable[[int, int, str], float]


def nothing(rank: int, step: int, phase: str) -> float:
    return 0.0


def noise(share: float, seed: int = 0) -> Longer:
    """What phases take longer now and then, as a share of a step."""
    random = np.random.default_rng(seed)
    return lambda rank, step, phase: float(random.exponential(share * STEP_MS))


def both(*longer: Longer) -> Longer:
    return lambda rank, step, phase: sum(each(rank, step, phase) for each in longer)


def delay(phase: str, ms: float, of: Callable[[int], int]) -> Longer:
    """A delay of the rank `of(step)`."""
    return lambda rank, step, of_phase: ms if of_phase == phase and rank == of(step) else 0.0


def ranks_run(
    path: Path,
    ranks: int = 2,
    steps: int = 200,
    longer: Longer = nothing,
    kept: Longer = nothing,
    missing: Callable[[int, int], bool] = lambda rank, step: False,
    computes: bool = False,
    bucket_bytes: tuple[int, int] = (4, 4),
    hosts: int = 1,
    made_with: float | None = None,
    left_out: Callable[[int], bool] = lambda step: False,
    collects: Longer = nothing,
    gives: bool = False,
    extra: Callable[[int], bool] = lambda step: False,
    ahead_ms: float = 0.0,
    cpus: int = 4,
    threads: int = 1,
    group: Callable[[int], str] = lambda rank: "world",
) -> Run:
    """A run in which all ranks wait for each other at the end of each backward pass, in two buckets; `missing` says of
    which rank and step there is no record of it. What phases take goes by blocked, unless it `computes`. `made_with`:
    each rank is seen to make its batches, and computes for so much of that time. Of steps that are `left_out` neither
    phases nor buckets are recorded. At the end of a phase garbage is collected for as long as `collects` tells. Before
    the forward pass rank 0 `gives` all others its buffers, which they wait for; behind `extra` steps all meet once
    more. The clocks of all hosts but the first are `ahead_ms`. `threads` share an operator, on so many `cpus`.
    The gradients of each rank meet those of its `group`."""
    tapes = [
        Tape(process=rank, role=f"rank {rank}", rank=rank, thread=100 + rank, host=f"node{rank * hosts // ranks}")
        for rank in range(ranks)
    ]
    delayed, cpu = [0] * ranks, [0] * ranks
    sequence = 0

    def spend(rank: int, step: int, phase: str, ms: float) -> None:
        tape = tapes[rank]
        if not left_out(step):
            tape.change(phase, cpu[rank], delayed[rank])
        took = ms + longer(rank, step, phase)
        tape.gap(took)
        cpu[rank] += ns(took) if computes else 0
        if garbage := collects(rank, step, phase):
            tape.add("spans", tape.now, tape.now + ns(garbage), kind="garbage", name="full collection")
            tape.gap(garbage)
            cpu[rank] += ns(garbage)
        lost = ns(kept(rank, step, phase))
        delayed[rank] += lost
        tape.now += lost

    for step in range(steps):
        begun: list[tuple[int, int]] = []
        given = 0
        for rank, tape in enumerate(tapes):
            start = tape.now
            spend(rank, step, "loading", LOADING)
            tape.add("batches", start, tape.now, loader="loader", epoch=0, index=step, worker=-1)
            if made_with is not None:
                cpu_ns = round(made_with * (tape.now - start))
                tape.add("fetches", start, tape.now, iteration=0, turn=step, cpu_ns=cpu_ns, samples=1)
            if gives:
                start, given = tape.now, given if rank else tape.now + ns(0.05)
                tape.change("communication", cpu[rank], delayed[rank])
                tape.now = max(start + ns(0.02), given if rank else 0)
                tape.met(start, start, tape.now, sequence, op="broadcast of buffers")
            start = tape.now
            spend(rank, step, "forward", FORWARD)
            tape.add("spans", start, tape.now, kind="layer", name="Model", layer=0, depth=0, direction="forward")
            start = tape.now
            spend(rank, step, "backward", BACKWARD)
            if not left_out(step):
                tape.change("communication", cpu[rank], delayed[rank])
            begun.append((start, tape.now))
        left = max(tape.now for tape in tapes) + ns(TRANSFER)
        for rank, tape in enumerate(tapes):
            start, entered = begun[rank]
            early = start + (entered - start) // 2
            if not missing(rank, step) and not left_out(step):
                # Nobody has looked at the first meanwhile, nor at the last before the loop has waited for it.
                for bucket, ready in enumerate((early, entered)):
                    tape.met(
                        ready, ready, left, sequence + 1 + bucket, bucket=bucket, is_async=True,
                        bytes=bucket_bytes[bucket], unsure_ns=left - ready, group=group(rank),
                    )  # fmt: skip
            tape.now = left
            tape.add("spans", start, left, kind="phase", name="backward", layer=0)
            start = tape.now
            spend(rank, step, "optimizer", OPTIMIZER)
            tape.add("spans", start, tape.now, kind="phase", name="optimizer", layer=0)
            if not left_out(step):
                tape.change("" if left_out(step + 1) else "other", cpu[rank], delayed[rank])
        sequence += 3
        if extra(step):
            left = max(tape.now for tape in tapes) + ns(0.05)
            for rank, tape in enumerate(tapes):
                phases = [] if left_out(step) else ["communication", "other"]
                for phase in phases[:1]:
                    tape.change(phase, cpu[rank], delayed[rank])
                tape.met(tape.now, tape.now, left, sequence)
                tape.now = left
                for phase in phases[1:]:
                    tape.change(phase, cpu[rank], delayed[rank])
            sequence += 1
    for row in (row for tape in tapes if tape.host != tapes[0].host for rows in tape.rows.values() for row in rows):
        row |= {name: cast(int, row[name]) + ns(ahead_ms) for name in ("start_ns", "ready_ns") if name in row}
    # As torchrun has it: one thread, unless the program says more.
    return open_run(make_run(path, tapes, manifest=make_manifest(cpus, intra_op=threads)))
