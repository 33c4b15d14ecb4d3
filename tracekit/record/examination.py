"""What this machine offers a recording: found by trying, each thing on its own, so that no failure hides another."""

import importlib.metadata
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import msgspec

import tracekit
from tracekit.record.launch import program_environment
from tracekit.record.machine import describe_cpu, gpus, thread_budget
from tracekit.record.mounts import file_system
from tracekit.record.pid_namespaces import shown
from tracekit.run.manifest import CPU

# Loading torch from a cold network file system takes minutes.
_TORCH_TIMEOUT_S = 300
_INJECTION_TIMEOUT_S = 60
# File systems on which a memory-mapped spool fails or crawls (memray#748).
_SHARED = ("nfs", "lustre", "gpfs", "beegfs", "ceph", "cifs", "smb", "9p", "afs", "panfs", "orangefs", "fuse.sshfs")
# What one recorded process may put there while it waits to be read: collectors/spool.py.
_SPOOL_BYTES = 128 << 20

# Run by a Python of its own: tracekit itself stays without torch.
_ASK_TORCH = """
import json, os, re, torch
maps = open("/proc/self/maps").read()
libraries = re.findall(r"/(lib(?:gomp|iomp5|omp)[^/ ]*\\.so[^/ ]*)$", maps, re.M)
print(json.dumps({
    "version": torch.__version__,
    "cuda": torch.version.cuda,
    "openmp": sorted(set(libraries)),
    "intra_op": torch.get_num_threads(),
    "inter_op": torch.get_num_interop_threads(),
    "mkldnn": torch.backends.mkldnn.is_available(),
    "gpus": torch.cuda.device_count(),
}))
"""


class Check(msgspec.Struct):
    """Something that is there or not, why, and what would bring it."""

    name: str
    available: bool
    why: str = ""
    remedy: str = ""


class TorchBuild(msgspec.Struct):
    """The torch that this Python imports; `intra_op` and `inter_op` are its default thread counts."""

    version: str
    cuda: str | None
    openmp: list[str]
    intra_op: int
    inter_op: int
    mkldnn: bool
    gpus: int


class Spool(msgspec.Struct):
    """Where recorded processes leave their evidence until it is read."""

    folder: str
    free_bytes: int
    file_system: str


class Examination(msgspec.Struct):
    """Everything that `tracekit doctor` tells. `sample_ms`: the CPU time of reading one process's counters once."""

    schema: int
    tracekit: str
    python: str
    system: str
    cpu: CPU
    thread_budget: int
    gpus: list[str]
    torch: TorchBuild | None
    spool: Spool | None
    sample_ms: float | None
    checks: list[Check]


def examine() -> Examination:
    """Look at everything. What fails is a check that is not available, never an exception."""
    checks: list[Check] = []
    cpu = describe_cpu()
    torch, check = _ask_torch()
    checks.append(check)
    checks.append(_try_injection())
    spool, check = _look_at_spool()
    checks.append(check)
    counters, sample_ms = _try_counters()
    return Examination(
        schema=1,
        tracekit=tracekit.__version__,
        python=f"{platform.python_version()} ({sys.executable})",
        system=f"{platform.system()} {platform.release()} {platform.machine()}",
        cpu=cpu,
        thread_budget=thread_budget(cpu),
        gpus=gpus(),
        torch=torch,
        spool=spool,
        sample_ms=sample_ms,
        checks=checks + counters,
    )


def _ask_torch() -> tuple[TorchBuild | None, Check]:
    name = "torch"
    remedy = "pip install torch, into the environment of this Python"
    try:
        answer = subprocess.run(
            [sys.executable, "-P", "-c", _ASK_TORCH],
            capture_output=True,
            text=True,
            timeout=_TORCH_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return None, Check(name, False, str(error))
    if answer.returncode:
        last = answer.stderr.strip().splitlines()[-1:] or [f"exit code {answer.returncode}"]
        return None, Check(name, False, last[0], remedy)
    try:
        build = msgspec.json.decode(answer.stdout.splitlines()[-1], type=TorchBuild)
    except (IndexError, msgspec.MsgspecError) as error:
        return None, Check(name, False, f"its answer makes no sense ({error})")
    return build, Check(name, True)


def _try_injection() -> Check:
    """Start a Python as a recorded program is started, and see whether it announces itself."""
    name = "recording inside Python programs"
    try:
        with tempfile.TemporaryDirectory(prefix="tracekit-") as folder:
            environment = program_environment(Path(folder))
            child = subprocess.run(
                [sys.executable, "-c", "pass"],
                env=environment,
                capture_output=True,
                text=True,
                timeout=_INJECTION_TIMEOUT_S,
                check=False,
            )
            if any(Path(folder).glob("*.process")):
                return Check(name, True)
    except Exception as error:
        return Check(name, False, f"{type(error).__name__}: {error}")
    last = child.stderr.strip().splitlines()[-1:]
    why = "a child Python did not start the recorder from PYTHONPATH" + "".join(f": {line}" for line in last)
    return Check(name, False, why, "see whether this Python ignores PYTHONPATH or drops the environment (-I, -E)")


def _look_at_spool() -> tuple[Spool | None, Check]:
    name = "spool folder"
    remedy = "point TMPDIR at a folder on a disk of this machine with room"
    try:
        folder = tempfile.gettempdir()
        with tempfile.NamedTemporaryFile(dir=folder, prefix="tracekit-"):
            free = shutil.disk_usage(folder).free
    except OSError as error:
        return None, Check(name, False, f"{error.filename or 'no temporary folder'}: {error.strerror}", remedy)
    kind = file_system(Path(folder).resolve())
    spool = Spool(folder, free, kind)
    if kind.startswith(_SHARED):
        return spool, Check(name, False, f"{folder} is on a shared file system ({kind})", remedy)
    if free < _SPOOL_BYTES:
        return spool, Check(
            name, False, f"{folder} has less free than a process may need ({_SPOOL_BYTES >> 20} MiB)", remedy
        )
    return spool, Check(name, True)


def _try_counters() -> tuple[list[Check], float | None]:
    """Sample ourselves once for the opening and once for the cost; the rungs say what is there."""
    name = "counters"
    try:
        point = next(iter(importlib.metadata.entry_points(group="tracekit.collectors", name=name)))
        counters = point.load()(shown(os.getpid()), budget=1.0)
        try:
            counters.sample(time.time_ns())
            before = counters.cpu_ns
            counters.sample(time.time_ns())
            cost = (counters.cpu_ns - before) / 1e6
            return [Check(rung.name, rung.available, rung.why, rung.remedy) for rung in counters.rungs()], cost
        finally:
            counters.close()
    except StopIteration:
        return [Check(name, False, "no such collector is installed", "install tracekit again")], None
    except Exception as error:
        return [Check(name, False, f"{type(error).__name__}: {error}")], None


def as_json(examination: Examination) -> str:
    """The examination as one JSON object."""
    return json.dumps(msgspec.to_builtins(examination), indent=2)
