"""The wire between a recorded process and its supervisor: fixed-size records in memory-mapped segments, and side files.

Written by `tracekit.collectors.spool` inside the program, so nothing here may import more than the standard library.
All files of one process share a stem, `<pid>-<start>`:

    <stem>.process        JSON, once: who the process is; it is there when its bracket is
    <stem>.names          the interned names: per name its length (uint32) and its UTF-8 bytes; ids count from 0. Those
                          that a forked process has from others are in their files: `names_of` in .process says per
                          file its stem, and up to which id
    <stem>.<n>.spool      segment n of records; the supervisor deletes it when it has read all of it
    <stem>.<n>.workers    where the workers of a loader begin that a process forks together: what they have in common of
                          a .process, for each the rest of it, and its segment 0; see `WorkersLayout`.
                          When all segments are read the supervisor puts a file without them in its place
    <stem>.status         JSON, replaced now and then: what recording cost, what was dropped, which collectors failed
    <stem>.entered        one record, mapped: the communication that a rank came to last
    <stem>.<n>.window     the raw Kineto trace of profiler window n

A record is committed by its last field: `kind` is written last and is never 0.
"""

import json
import struct
from enum import IntEnum
from pathlib import Path
from typing import NamedTuple

SEGMENT_RECORDS = 16_384
# The first segment of a process has fewer. The kernel clears much of a file, some even all of it, at the first touch:
# of 1 MiB that takes 0.2 ms, more than all the records of a worker that is forked for a short epoch.
FIRST_RECORDS = 1024
# Of workers that are forked together each begins in one of so many: 16 KiB.
WORKERS_RECORDS = 256
# name, thread, start, end, four integers whose meaning the kind gives, depth, direction, kind
RECORD = struct.Struct("<IIqqqqqqiHH")
RECORD_FIELDS = ["name", "thread", "start", "end", "a", "b", "c", "d", "depth", "direction", "kind"]
RECORD_FORMATS = ["<u4", "<u4", "<i8", "<i8", "<i8", "<i8", "<i8", "<i8", "<i4", "<u2", "<u2"]
NAME_LENGTH = struct.Struct("<I")
WORKERS_HEAD = struct.Struct("<II")  # the first fields of `WorkersLayout`
WORKER_BEGUN = struct.Struct("<qqq")  # of a worker its pid, its parent's, and when it began, 0 until it has

# The status is also replaced after so many steps: who waits for the program's loop to begin learns it at once.
STEPS_OF_A_LOOP = 3

# So many shapes of the inputs of a layer are told; of one with so many, others were met too.
MOST_SHAPES = 16

SHARES, UNKNOWN_SHARE, UNKNOWN = 10_000, 0xFFFF, 0xFFFFFFFF

FORWARD, BACKWARD = 1, 2  # the values of `direction`; 0 where it does not apply
# Those of what a rank came to last: it is in it, was through with it, or has left it by an error, and was in it if that
# was its end.
IN_IT, OVER, LEFT = 0, 1, 2
# Those of a collective: the program waited in the call, or went on; or it is bucket number `direction - BUCKET` of a
# backward pass.
CALL, ASYNC_CALL, BUCKET = 0, 1, 2
# What DistributedDataParallel sends to learn which parameters no rank has used in a pass: of this rank it is not known,
# all, or not all.
USED, ALL_USED, SOME_UNUSED = "used parameters", "all parameters used", "some parameters unused"

# What a rank was in whose buckets went past us, and came to that one of them.
PASSED = "the gradient buckets up to"
# Where the program waits for what it has begun: behind this what that is, if that is known.
WAIT = "wait"
WAIT_FOR = f"{WAIT} for "


class Kind(IntEnum):
    """What a record is, and what its integers a, b, c, d mean."""

    STEP = 1  # an explicit step; a: its number
    LAYER = 2  # a: layer id; b: 1 when layers inside an RNN were told apart during this call
    PHASE = 3  # name: backward | optimizer; a: which optimizer, or 1 for torch.autograd.grad
    RANGE = 4  # a span that the user named
    # A batch was made; a: its turn among those of its iteration; b: the iteration of this process and, above bit 32,
    # for which part of the time its samples were put together, in 1/SHARES, plus 1; c: CPU time of the thread; d: for
    # how long it waited for a CPU, -1 unknown; depth: samples in it, -1 unknown; direction: what of c page faults may
    # have taken, in 1/SHARES; name: for how long other threads of the process ran meanwhile, likewise
    FETCH = 5
    # The program got a batch; name: loader; a: epoch; b: index; c: worker; d: bytes, -1 unknown; depth: for how long it
    # was at taking it, from when the bytes that a worker had sent were there, -1 unknown
    BATCH = 6
    # A loader started a worker, in the time that all of them took, of which its sampler took d; name: loader; a: epoch;
    # b: worker; c: pid. Or it stopped all of them; b: -1; c: how many
    WORKER = 14
    SAMPLE = 15  # a sample was made; a: turn of its batch; b: iteration; c: its index, -1 unknown; d: CPU time
    # Something was read for a batch; name: path; a: offset, -1 unknown; b: bytes; c: CPU time of the thread
    READ = 16
    # Ranks communicate, from when they could; name: op; a: id of the group's name and, above bit 32, of the dtype's;
    # b: sequence, -1 where not all of the group take part; c: bytes; d: after so long it was begun; depth: by how much
    # the end may be earlier, -1 it was not seen; direction: how
    COLLECTIVE = 7
    # The communication that a rank came to last, when start says; name, a, b as of COLLECTIVE; direction: above
    ENTERED = 18
    # From here on the loop of a rank is in a phase; name: of the phase, "" not known; a: CPU time of its thread; b: for
    # how long it has waited for a CPU, -1 unknown
    CHANGE = 17
    GARBAGE = 19  # Python collected garbage of all generations; a: -1
    BLOCK = (
        9  # a block of an exploration; name: condition; a: its number; b: round; c: transition steps; d: 1 to drop it
    )
    PLAIN_BLOCK = 13  # the same of an exploration in detail, where only whole steps were recorded
    PROBE = 10  # a measured cost, end - start; name: of what
    SHAPE = 11  # name: `<layer> = <dtype> <shape>`, met in an exploration; a: layer id
    PLANNED = (
        12  # name: layer, "" for all else; a: layer id; b: its count in a plan that is tried; c: the plan's number
    )
    WINDOW = 8  # a profiler window ended; a: its number; b: Unix time at its end; c: CLOCK_MONOTONIC then


class WorkersLayout(NamedTuple):
    """What is where in a file of workers that are forked together; offsets are in bytes.

    `WORKERS_HEAD`, then a JSON object; `WORKER_BEGUN` for each worker; a segment for each.
    """

    workers: int
    length: int  # of the JSON; in the file 0 until all before the segments is there

    @property
    def begun(self) -> int:
        return _next_multiple(WORKERS_HEAD.size + self.length, 8)

    @property
    def segments(self) -> int:
        """Where they begin; what is before them is kept when they have been read."""
        return _next_multiple(self.begun + self.workers * WORKER_BEGUN.size, 4096)

    @property
    def size(self) -> int:
        return self.segment(self.workers)

    def segment(self, worker: int) -> int:
        return self.segments + worker * WORKERS_RECORDS * RECORD.size


def _next_multiple(offset: int, of: int) -> int:
    return -(-offset // of) * of


def is_in_loop(spool: Path) -> bool:
    """Whether a process of this spool folder has begun its loop of steps."""
    try:
        return any(json.loads(file.read_bytes())["steps"] >= STEPS_OF_A_LOOP for file in spool.glob("*.status"))
    except (OSError, ValueError, KeyError, TypeError):  # it is just being written, or gone
        return False
