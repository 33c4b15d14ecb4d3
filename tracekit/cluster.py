"""Clusters: the processes of a run are given to the workers of a Dask cluster, which read it from a shared folder.

Dask is the engine that users of clusters already run (`pip install 'tracekit[cluster]'`). What is shared out are the
accounts of single processes (`tracekit.analysis.accounts`); the report made of them is the same, bit for bit, whoever
made them. A worker that dies takes nothing with it but time: another one does its work again.
"""

import asyncio
import json
import logging
import os
import re
import shlex
import shutil
import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from importlib import metadata
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, TypeVar

import pyarrow as pa

from tracekit import __version__
from tracekit.errors import TracekitError

if TYPE_CHECKING:
    from distributed import Client
    from distributed.security import Security

    from tracekit.analysis.accounts import Each

T = TypeVar("T")

_PATIENCE_S = 10  # for a scheduler to answer
_OURS = re.compile(r"(local|slurm)(?::([1-9]\d*))?")
_ADDRESS = re.compile(r"([a-z]+://)?(?!(local|slurm):)[^/\s]+:\d+")


@contextmanager
def cluster(scheduler: str) -> "Iterator[Each]":
    """Something that gives each item of a series to the workers of a cluster, in place of `map`.

    `scheduler` is the address of a running one (`HOST:PORT`), the file in which it wrote that (`….json`); `local` for a
    worker on each CPU of this machine, or `local:N`; `slurm` for a job, or `slurm:N`, as the section jobqueue.slurm of
    the Dask configuration describes it. Raises TracekitError when there is no such cluster, or its workers fail.
    """
    with ExitStack() as resources:
        yield _given_to(_client(scheduler, resources))


def _client(scheduler: str, resources: ExitStack) -> "Client":
    ours = _OURS.fullmatch(scheduler)
    if not (ours or scheduler.endswith(".json") or _ADDRESS.fullmatch(scheduler)):
        raise TracekitError(
            f"--scheduler {scheduler!r} is none; give local, slurm, or the HOST:PORT of a Dask scheduler"
        )
    try:
        from distributed import Client

        logging.getLogger("distributed").setLevel(logging.CRITICAL)  # a worker that dies is replaced, and that is all
        if ours is None:
            client = resources.enter_context(Client(_answering(scheduler), timeout=_PATIENCE_S))
            _expect_tracekit(client)
            return client
        make = _local if ours[1] == "local" else _slurm
        return make(int(ours[2]) if ours[2] else None, resources)
    except ImportError:
        raise TracekitError("--scheduler needs Dask; install it with: pip install 'tracekit[cluster]'") from None
    except TracekitError:
        raise
    except Exception as error:  # what answers at a port, and what is in a file of settings, may be anything
        reason = str(error).strip().partition("\n")[0] or type(error).__name__
        raise TracekitError(f"--scheduler {scheduler}: no cluster to be had ({reason})") from error


def _answering(scheduler: str) -> str:
    """The address of a scheduler that answers, and has workers: Dask itself would wait for either for ever."""
    from distributed.core import rpc

    address = scheduler
    if scheduler.endswith(".json"):
        address = json.loads(Path(scheduler).read_text())["address"]

    async def identity() -> dict[str, Any]:
        async with rpc(address) as there:
            return await there.identity()

    with ThreadPoolExecutor(1) as aside:  # this thread may run a loop already, as in a notebook
        try:
            told = aside.submit(asyncio.run, asyncio.wait_for(identity(), _PATIENCE_S)).result()
        except TimeoutError:
            raise ValueError("nothing answers there as a Dask scheduler does") from None
    if not told["workers"]:
        raise ValueError(f"it has no workers; start some with: dask worker {address}")
    return address


def _expect_tracekit(client: "Client") -> None:
    """Without it a worker would keep its work and never say why."""
    try:
        found = client.run(metadata.version, "tracekit")
    except metadata.PackageNotFoundError:
        raise ValueError("a worker has no tracekit; install the same there") from None
    others = {worker: version for worker, version in found.items() if version != metadata.version("tracekit")}
    if others:
        worker, version = others.popitem()
        raise ValueError(f"{worker} has tracekit {version}, this is {__version__}; install the same there")


def _local(workers: int | None, resources: ExitStack) -> "Client":
    import dask
    from distributed import Client, LocalCluster

    scratch = resources.enter_context(TemporaryDirectory(prefix="tracekit-dask-", ignore_cleanup_errors=True))
    resources.enter_context(dask.config.set({"temporary-directory": scratch}))
    with _deaf_to_ctrl_c():  # as the workers are then: we end them
        made = LocalCluster(
            n_workers=workers or len(os.sched_getaffinity(0)),
            threads_per_worker=1,
            processes=True,
            dashboard_address="127.0.0.1:0",
            silence_logs=logging.CRITICAL,
            local_directory=scratch,
            security=True,  # what is sent there is run: nobody else of this machine is to send anything
        )
    return resources.enter_context(Client(resources.enter_context(made), timeout=_PATIENCE_S))


@contextmanager
def _deaf_to_ctrl_c() -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _slurm(jobs: int | None, resources: ExitStack) -> "Client":
    import dask
    from dask_jobqueue import SLURMCluster
    from distributed import Client

    cores = dask.config.get("jobqueue.slurm.cores")
    if not isinstance(cores, int):
        raise ValueError("jobqueue.slurm.cores and .memory are not set to numbers in the Dask configuration")
    if shutil.which("sbatch") is None:
        raise ValueError("there is no sbatch here")
    # One thread in each process: what is done there holds the interpreter's lock much of the time.
    shared = dask.config.get("jobqueue.slurm.shared-temp-directory", None) or os.getcwd()
    if shlex.quote(shared := os.path.expanduser(shared)) != shared:  # a job's script has its name as it is
        raise ValueError(
            f"jobs are to find their keys in {shared!r}, whose name a shell would not leave alone; set"
            " jobqueue.slurm.shared-temp-directory in the Dask configuration to another folder that they share"
        )
    keys = resources.enter_context(TemporaryDirectory(prefix=".tracekit-dask-", dir=shared, ignore_cleanup_errors=True))
    made = SLURMCluster(processes=cores, scheduler_options={"dashboard_address": ":0"}, security=_keys_in(Path(keys)))
    resources.enter_context(_closed(made))
    submitted = made.sync(_submitted, made, jobs or 1)
    if submitted is not None:
        raise ValueError(f"sbatch does not take the job: {submitted}")
    return resources.enter_context(Client(made, timeout=_PATIENCE_S))


def _keys_in(folder: Path) -> "Security":
    """Keys for the jobs alone, made now and left where they can read them: what is sent to a worker is run."""
    from distributed.security import Security

    made = Security.temporary()
    roles = [f"tls_{role}_{what}" for role in ("client", "scheduler", "worker") for what in ("cert", "key")]
    files = {name: folder / name for name in ("tls_ca_file", *roles)}
    for name, file in files.items():
        file.write_text(getattr(made, name), encoding="ascii")
    return Security(require_encryption=True, **{name: str(file) for name, file in files.items()})


@contextmanager
def _closed(made: Any) -> Iterator[None]:
    """A cluster at the end; Dask has it asserted that every job was started."""
    try:
        yield
    finally:
        with suppress(AssertionError):
            made.close()


async def _submitted(made: Any, jobs: int) -> str | None:
    """Have so many jobs started; why they cannot be, or None. `made.scale` would leave that to a log."""
    while len(made.worker_spec) < jobs:
        made.worker_spec.update(made.new_worker_spec())
    try:
        await made._correct_state()
    except Exception as error:
        lines = [line for line in str(error).splitlines() if line]
        return lines[lines.index("stderr:") + 1] if "stderr:" in lines[:-1] else str(lines[:1])
    return None


def _given_to(client: "Client") -> "Each":
    from distributed import CancelledError, KilledWorker

    def each(function: Callable[..., T], *items: Iterable[Any]) -> Iterator[T]:
        futures = client.map(_Task(function), *(list(series) for series in items), pure=False)
        for number, future in enumerate(futures):
            part = f"part {number + 1} of {len(futures)}"
            try:
                found = future.result()
            except KilledWorker as error:
                times = error.allowed_failures + 1
                raise TracekitError(f"the workers died {times} times at {part}; give them more memory") from None
            except ImportError as error:
                raise TracekitError(f"a worker cannot do its work ({error}); install tracekit there too") from None
            except CancelledError:
                raise TracekitError(f"the scheduler went away at {part}; nothing was written") from None
            except (OSError, MemoryError) as error:
                raise TracekitError(f"a worker failed at {part} ({type(error).__name__}: {error})") from error
            future.release()
            yield found

    return each


class _Task:
    """A function, as a worker is to call it."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function, self._version = function, __version__

    def __call__(self, *items: Any) -> Any:
        """Refuses where tracekit is of another version: what it finds might differ."""
        if self._version != __version__:
            node = os.uname().nodename
            raise TracekitError(f"{node} has tracekit {__version__}, this is {self._version}; install the same there")
        before = pa.cpu_count()
        pa.set_cpu_count(1)  # the other CPUs have workers of their own
        try:
            return self._function(*items)
        finally:
            pa.set_cpu_count(before)
