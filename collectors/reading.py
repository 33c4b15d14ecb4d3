"""Reading: from which files and objects the samples of a batch come, and how long reading them takes."""

import builtins
import io
import os
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import cache, partial
from threading import get_ident
from time import perf_counter_ns as clock
from time import thread_time_ns as cpu_clock
from types import BuiltinFunctionType, FunctionType
from typing import Any

from tracekit.record.wire import Kind

from .agent import Agent
from .looking import second_word_of
from .patching import dress
from .spool import threads
from .watched_files import WatchedFile, WatchedOpen, path_of, size_of, size_told

# Paths are kept in memory and on disk once each; a data set may have millions of files.
_MOST_PATHS = 10_000
# One batch has so many reads recorded: a program that reads byte by byte would wait for its records.
_MOST_READS = 4096
_OPEN = io.open
# What a thread was given by the kernel's `read` went past the replacements, if it is so much more than what was seen.
_SAME_DATA, _LITTLE = 1.5, 4096


class Reading:
    """Times what is read by Python's `open` and what builds on it, by fsspec and by HTTP, while it watches.

    It watches while a batch is made that is looked at closely. Then its replacements are in place, and only then: what
    the program does at other times does not meet them, but for the files that were opened meanwhile.
    """

    def __init__(self, agent: Agent) -> None:
        self._agent = agent
        self._watched = 0  # batches that are looked at now
        self._hooks: dict[str, list[_Hook]] = {}
        self._inside: set[int] = set()  # the threads that are in a read: what it calls is part of it
        self._paths: set[str] = set()
        self._left = 0
        self._seen = self._looked = 0
        self.spent_ns = 0

    def begin(self) -> None:
        self._agent.also_after_fork(self._start_anew)
        self._watched += 1
        if self._watched > 1:
            return
        self._left = _MOST_READS
        self.prepare()
        for hooks in list(self._hooks.values()):  # another thread may prepare those of a module
            for hook in hooks:
                hook.place()
        self._looked += 1
        self._began = get_ident(), _bytes_given(), self._seen

    def prepare(self) -> None:
        """Make the replacements for what has been imported."""
        for module, make in _MODULES.items():
            if module in sys.modules and module not in self._hooks:
                self._hooks[module] = self._made(module, make)

    def end(self) -> None:
        self._watched = max(self._watched - 1, 0)  # it was none of ours in a child that was forked meanwhile
        if self._watched:
            return
        self.off()
        ident, given, seen = self._began
        if ident != get_ident():  # what another thread has read is not told
            return
        taken, seen = _bytes_given() - given, self._seen - seen
        if self._looked > 1 and taken > _SAME_DATA * seen + _LITTLE:  # the first batch may have imported modules
            why = "samples are also read by native code, or from files opened before: not in the table reads"
            self._agent.note_missing("reads", why)

    def off(self) -> None:
        for hooks in list(self._hooks.values()):
            for hook in hooks:
                hook.take_out()

    def timed(
        self, path: str, offset: int, size: Callable[[Any], int], call: Callable[..., Any], /, *args: Any, **kwargs: Any
    ) -> Any:
        """What the call returns; a row for it, if it was watched and the read is nobody else's part."""
        ident = get_ident()
        if not self._watched or self._left <= 0 or ident in self._inside:
            return call(*args, **kwargs)
        entered = clock()
        self._inside.add(ident)
        try:
            cpu = cpu_clock()
            start = clock()
            result = call(*args, **kwargs)
            end = clock()
            cpu = cpu_clock() - cpu
        finally:
            self._inside.discard(ident)
        try:
            self._left -= 1
            count = size(result)
            self._seen += count
            name = self._agent.spool.intern(self._kept(path))
            tid = threads.current().tid
            self._agent.spool.note((name, tid, start, end, offset, count, cpu, 0, 0, 0, Kind.READ))
        except Exception as error:
            self._agent.fail("loading", error)
        self.spent_ns += start - entered + clock() - end
        return result

    def watches(self) -> bool:
        return self._watched > 0

    def _made(self, module: str, make: "Callable[[Reading], list[_Hook]]") -> "list[_Hook]":
        """The hooks of a module; none where it is of another version than those that are known."""
        try:
            hooks = make(self)
        except AttributeError:
            hooks = []
        if not hooks or not all(hook.fits() for hook in hooks):
            self._agent.note_missing(f"reads of {module}", "it is of a version that is not known")
            return []
        for hook in hooks:
            hook.prepare()
        return hooks

    def _kept(self, path: str) -> str:
        if path not in self._paths:
            if len(self._paths) >= _MOST_PATHS:
                self._agent.note_missing("paths of reads", f"a process keeps {_MOST_PATHS} paths; the rest have none")
                return ""
            self._paths.add(path)
        return path

    def _start_anew(self) -> None:
        """In a forked child: what its parent was reading is none of its business."""
        self._inside.clear()
        self._watched = self._looked = self.spent_ns = 0
        self.off()


class _Hook:
    """A function of a module or class, and what stands there while reads are watched."""

    def __init__(self, owner: Any, name: str, make: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
        self._owner, self._name, self._make = owner, name, make
        self._original: Callable[..., Any] | None = None
        self._ours: Callable[..., Any] | None = None

    def fits(self) -> bool:
        return self._name in vars(self._owner)

    def prepare(self) -> bool:
        """Make ours of what is there; False where that is another's, which may do anything and be called in its own
        way."""
        found = vars(self._owner).get(self._name)
        if type(found) not in (FunctionType, BuiltinFunctionType) or (self._name == "open" and found is not _OPEN):
            return False
        if found is not self._original and found is not self._ours:
            self._original, self._ours = found, dress(self._make(found), found)
        return True

    def place(self) -> None:
        if self.prepare():
            setattr(self._owner, self._name, self._ours)

    def take_out(self) -> None:
        """Put the original back, but where the program has replaced ours meanwhile."""
        if self._ours is not None and vars(self._owner).get(self._name) is self._ours:
            setattr(self._owner, self._name, self._original)


# Files.


def _files(reading: Reading) -> list[_Hook]:
    WatchedFile.reading = reading
    opened = cache(partial(WatchedOpen, reading))  # one object for one function: it is pickled by its name in `io`
    return [_Hook(builtins, "open", opened), _Hook(io, "open", opened)]


def _numpy(reading: Reading) -> list[_Hook]:
    """`numpy.load` reads by the file's number."""

    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        def fromfile(file: Any, *args: Any, **kwargs: Any) -> Any:
            path = path_of(file if isinstance(file, os.PathLike) else getattr(file, "name", file))
            return reading.timed(path, -1, _array_bytes, original, file, *args, **kwargs)

        return fromfile

    return [_Hook(sys.modules["numpy"], "fromfile", make)]


# Objects.


def _fsspec_files(reading: Reading) -> list[_Hook]:
    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        def read(file: Any, length: Any = -1) -> Any:
            path, at = _without_key(path_of(getattr(file, "path", ""))), getattr(file, "loc", -1)
            return reading.timed(path, at if type(at) is int else -1, size_of, original, file, length)

        return read

    return [_Hook(sys.modules["fsspec.spec"].AbstractBufferedFile, "read", make)]


def _fsspec_calls(reading: Reading) -> list[_Hook]:
    """What a file system that works asynchronously is asked for: all of it comes through here."""

    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        def sync(loop: Any, func: Any, *args: Any, **kwargs: Any) -> Any:
            path = _without_key(path_of(args[0] if args else ""))
            return reading.timed(path, -1, size_of, original, loop, func, *args, **kwargs)

        return sync

    return [_Hook(sys.modules["fsspec.asyn"], "sync", make)]


def _http(reading: Reading) -> list[_Hook]:
    """Python's own client, and what builds on it: urllib, urllib3, requests, botocore."""

    def asked(original: Callable[..., Any]) -> Callable[..., Any]:
        def putrequest(connection: Any, method: Any, url: Any, *args: Any, **kwargs: Any) -> Any:
            _note_path(connection, _address(connection, url))
            return original(connection, method, url, *args, **kwargs)

        return putrequest

    def sent(original: Callable[..., Any]) -> Callable[..., Any]:
        def request(connection: Any, method: Any, url: Any, *args: Any, **kwargs: Any) -> Any:
            path = _address(connection, url)
            return reading.timed(path, -1, _nothing, original, connection, method, url, *args, **kwargs)

        return request

    def answered(original: Callable[..., Any]) -> Callable[..., Any]:
        def getresponse(connection: Any, *args: Any, **kwargs: Any) -> Any:
            path = getattr(connection, "_tracekit_path", "")
            response = reading.timed(path, -1, _nothing, original, connection, *args, **kwargs)
            _note_path(response, path)
            return response

        return getresponse

    def read(size: Callable[[Any], int]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        def make(original: Callable[..., Any]) -> Callable[..., Any]:
            def read(response: Any, *args: Any, **kwargs: Any) -> Any:
                path = getattr(response, "_tracekit_path", "")
                return reading.timed(path, -1, size, original, response, *args, **kwargs)

            return read

        return make

    client = sys.modules["http.client"]
    return [
        _Hook(client.HTTPConnection, "putrequest", asked),
        _Hook(client.HTTPConnection, "request", sent),
        _Hook(client.HTTPConnection, "getresponse", answered),
        _Hook(client.HTTPResponse, "read", read(size_of)),
        _Hook(client.HTTPResponse, "read1", read(size_of)),
        _Hook(client.HTTPResponse, "readinto", read(size_told)),
    ]


def _note_path(exchange: Any, path: str) -> None:
    """Keep a path with a connection or a response; one of the program's own may have no place for it."""
    with suppress(Exception):
        exchange._tracekit_path = path


def _without_key(path: str) -> str:
    """What an object is called; without what is behind the question mark of a URL: it may be a key to the storage."""
    return path.partition("?")[0] if "://" in path else path


def _address(connection: Any, url: Any) -> str:
    """The URL that a connection is asked for, without its key."""
    try:
        path = str(url).partition("?")[0]
        scheme = "https" if connection.default_port == 443 else "http"
        return path if "://" in path else f"{scheme}://{connection.host}:{connection.port}{path}"
    except Exception:
        return ""


_MODULES: dict[str, Callable[[Reading], list[_Hook]]] = {
    "io": _files,
    "numpy": _numpy,
    "fsspec.spec": _fsspec_files,
    "fsspec.asyn": _fsspec_calls,
    "http.client": _http,
}


def _array_bytes(array: Any) -> int:
    return int(array.nbytes)


def _nothing(result: Any) -> int:
    return 0


def _bytes_given() -> int:
    """What `read` has given to this thread since it began; 0 where the kernel does not tell."""
    return second_word_of("io", 0)
