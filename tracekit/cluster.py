"""Clusters: the processes of a run are given to the workers of a Dask cluster, which read it from a shared folder.

Dask is the engine that users of clusters already run (`pip install 'tracekit[cluster]'`). What is shared out are the
accounts of single processes (`tracekit.analysis.accounts`); the report made of them is the same, bit for bit, whoever
made them. A worker that dies takes nothing with it but time: another one does its work again.
"""

import logging
import os
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

import pyarrow as pa

from tracekit import __version__
from tracekit.errors import TracekitError

if TYPE_CHECKING:
    from distributed import Client

    from tracekit.analysis.accounts import Each

T = TypeVar("T")

_PATIENCE = "10s"  # for a scheduler to answer
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
    in_file = scheduler.endswith(".json")
    if in_file and not os.path.isfile(scheduler):  # Dask would wait for it
        raise TracekitError(f"--scheduler {scheduler}: no such file; give that which a Dask scheduler has written")
    if not (ours or in_file or _ADDRESS.fullmatch(scheduler)):
        raise TracekitError(
            f"--scheduler {scheduler!r} is none; give local, slurm, or the HOST:PORT of a Dask scheduler"
        )
    try:
        from distributed import Client
    except ImportError:
        raise TracekitError("--scheduler needs Dask; install it with: pip install 'tracekit[cluster]'") from None
    logging.getLogger("distributed").setLevel(logging.CRITICAL)  # a worker that dies is replaced, and that is all
    try:
        if ours is None:
            where = {"scheduler_file": scheduler} if in_file else {"address": scheduler}
            return resources.enter_context(Client(**where, timeout=_PATIENCE))
        made = (_local if ours[1] == "local" else _slurm)(int(ours[2]) if ours[2] else None)
        return resources.enter_context(Client(resources.enter_context(made), timeout=_PATIENCE))
    except (OSError, ValueError) as error:
        reason = str(error).partition("\n")[0] or type(error).__name__
        raise TracekitError(f"--scheduler {scheduler}: no cluster to be had ({reason})") from error


def _local(workers: int | None) -> Any:
    from distributed import LocalCluster

    count = workers or len(os.sched_getaffinity(0))
    return LocalCluster(
        n_workers=count,
        threads_per_worker=1,
        processes=True,
        dashboard_address="127.0.0.1:0",
        silence_logs=logging.CRITICAL,
    )


def _slurm(jobs: int | None) -> Any:
    try:
        from dask_jobqueue import SLURMCluster
    except ImportError:
        raise TracekitError("--scheduler slurm needs dask-jobqueue: pip install 'tracekit[cluster]'") from None
    import dask

    cores = dask.config.get("jobqueue.slurm.cores")
    if cores is None:
        raise ValueError("jobqueue.slurm.cores and .memory are not set in the Dask configuration")
    # One thread in each process: what is done there holds the interpreter's lock much of the time.
    made = SLURMCluster(processes=cores, scheduler_options={"dashboard_address": ":0"})
    made.scale(jobs=jobs or 1)
    return made


def _given_to(client: "Client") -> "Each":
    from distributed import KilledWorker

    def each(function: Callable[..., T], *items: Iterable[Any]) -> Iterator[T]:
        futures = client.map(_Task(function), *(list(series) for series in items), pure=False)
        for number, future in enumerate(futures):
            try:
                yield future.result()
            except KilledWorker as error:
                raise TracekitError(
                    f"the workers died {error.allowed_failures + 1} times at part {number + 1} of {len(futures)}; give"
                    " them more memory"
                ) from None
            except ImportError as error:
                raise TracekitError(f"a worker cannot do its work ({error}); install tracekit there too") from None
            future.release()

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
        pa.set_cpu_count(1)  # the other CPUs have workers of their own
        return self._function(*items)
