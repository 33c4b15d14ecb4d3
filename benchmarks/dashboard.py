"""How fast the dashboard answers on a run of millions of events: server time of the first view and of zooms, over HTTP.

    python benchmarks/dashboard.py [--json] [--steps 2500] [--operators 2000] [--zooms 40]

Makes a synthetic training run, starts the real server as a process of its own, and asks it what a browser would ask.
"""

import argparse
import json
import random
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tracekit.run.folder import create_run
from tracekit.run.manifest import CPU, Manifest, Torch
from tracekit.run.schema import TABLES
from tracekit.run.writer import PartWriter

BEGIN = 1_750_000_000_000_000_000
STEP = 40_000_000  # ns
MAIN, AUTOGRAD = 101, 102
Integers = npt.NDArray[np.int64]

# An operator and those it calls: name, and its [start, end) in thousandths of the root's duration.
TREE = [
    ("aten::linear", 0, 1000),
    ("aten::t", 20, 120),
    ("aten::transpose", 40, 100),
    ("aten::as_strided", 60, 80),
    ("aten::addmm", 150, 950),
    ("aten::expand", 170, 260),
    ("aten::as_strided", 190, 230),
    ("aten::copy_", 300, 500),
]


@dataclass
class Stretch:
    """A part of a step: which thread does `trees` operator trees between two fractions of the step."""

    thread: int
    begin: float
    end: float
    trees: int


def make_run(path: Path, steps: int, operators: int) -> Path:
    """Write a training run of `steps` steps with `operators` operators each, all of them profiled."""
    create_run(path)
    writer = PartWriter(path, "node0")
    trees = operators // len(TREE)
    forward, optimizer = trees * 4 // 10, trees // 10
    stretches = [
        Stretch(MAIN, 0.06, 0.40, forward),
        Stretch(AUTOGRAD, 0.42, 0.85, trees - forward - optimizer),
        Stretch(MAIN, 0.86, 0.97, optimizer),
    ]
    thread, start, duration, name = _step_template(stretches)
    for first in range(0, steps, 250):
        begins = BEGIN + STEP * np.arange(first, min(first + 250, steps), dtype=np.int64)
        writer.write("operators", _operators(begins, thread, start, duration, name))
    begins = BEGIN + STEP * np.arange(steps, dtype=np.int64)
    _write_steps(writer, begins)
    _write_counters(writer, steps)
    writer.write("processes", _rows("processes", np.array([BEGIN]), np.array([steps * STEP]), 1, role="main", rank=-1))
    writer.compact(path.parent)
    manifest = Manifest(
        run=path.name,
        host="node0",
        command=["python", "train.py", "--profile", "full"],
        started_ns=BEGIN,
        ended_ns=BEGIN + steps * STEP,
        exit_code=0,
        profile="full",
        cpu=CPU(model="synthetic", logical=4, affinity=[0, 1, 2, 3], physical_cores=4),
        torch=Torch(version="2.13.0", intra_op=4, inter_op=4),
    )
    manifest.save(path / "manifest" / "node0.json")
    return path


def _step_template(stretches: list[Stretch]) -> tuple[Integers, Integers, Integers, npt.NDArray[np.str_]]:
    """Thread, start and duration (ns since the step began) and name of one step's operators, by start."""
    rows = []
    for stretch in stretches:
        pace = (stretch.end - stretch.begin) * STEP / stretch.trees
        for tree in range(stretch.trees):
            root = stretch.begin * STEP + tree * pace
            for called, begin, end in TREE:
                scale = pace * 0.95 / 1000
                rows.append((stretch.thread, int(root + begin * scale), int((end - begin) * scale), called))
    rows.sort(key=lambda row: (row[1], -row[2]))
    thread, start, duration, name = zip(*rows, strict=True)
    return np.array(thread), np.array(start), np.array(duration), np.array(name)


def _operators(
    begins: Integers, thread: Integers, start: Integers, duration: Integers, name: npt.NDArray[np.str_]
) -> pa.Table:
    return _rows(
        "operators",
        (begins[:, None] + start).ravel(),
        np.tile(duration, len(begins)),
        np.tile(thread, len(begins)),
        name=pa.array(np.tile(name, len(begins))),
        category="cpu_op",
    )


def _write_steps(writer: PartWriter, begins: Integers) -> None:
    parts = [
        ("layer", "LSTMModel", 0, "forward", 0.05, 0.41),
        ("layer", "encoder.rnn", 1, "forward", 0.06, 0.30),
        ("layer", "head", 1, "forward", 0.31, 0.40),
        ("phase", "backward", 0, "", 0.41, 0.85),
        ("layer", "head", 1, "backward", 0.42, 0.52),
        ("layer", "encoder.rnn", 1, "backward", 0.53, 0.84),
        ("phase", "optimizer", 0, "", 0.85, 0.98),
    ]
    for kind, name, depth, direction, begin, end in parts:
        duration = np.full(len(begins), int((end - begin) * STEP))
        start = begins + int(begin * STEP)
        table = _rows("spans", start, duration, MAIN, kind=kind, name=name, depth=depth, direction=direction)
        writer.write("spans", table)
    waits = np.full(len(begins), int(0.04 * STEP))
    writer.write("batches", _rows("batches", begins, waits, MAIN, loader="train", worker=-1))


def _write_counters(writer: PartWriter, steps: int) -> None:
    tick = 100_000_000
    starts = BEGIN + tick * np.arange(steps * STEP // tick, dtype=np.int64)
    for counter in ("task-clock", "context-switches", "rss", "run-queue wait"):
        values = np.abs(np.sin(np.arange(len(starts)) / 50)) * 1e8
        table = _rows(
            "counters", starts, np.full(len(starts), tick), MAIN, counter=counter, value=values, source="perf"
        )
        writer.write("counters", table)


def _rows(into: str, start: Integers, duration: Integers, thread: Integers | int, **columns: object) -> pa.Table:
    """Rows of the table `into`; a column is an array, or one value for all rows; those not given are -1, "" or
    False."""
    given = {"process": 0, "thread": thread, "start_ns": start, "duration_ns": duration} | columns
    arrays = []
    for column in TABLES[into]:
        kind = column.type.value_type if pa.types.is_dictionary(column.type) else column.type
        empty = "" if pa.types.is_string(kind) else False if pa.types.is_boolean(kind) else -1
        value = given.get(column.name, empty)
        if isinstance(value, np.ndarray | pa.Array):
            arrays.append(pa.Array.cast(pa.array(value), kind, safe=False))
        else:
            arrays.append(pa.repeat(pa.scalar(value, type=kind), len(start)))
    return pa.table(arrays, names=TABLES[into].names)


@dataclass
class Client:
    """Asks a dashboard what a browser would ask, and keeps what each answer took (ms) and weighed (bytes)."""

    url: str
    callbacks: dict[str, dict[str, object]] = field(default_factory=dict)
    milliseconds: list[float] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)

    def get(self, path: str) -> bytes:
        return self._timed(urllib.request.Request(self.url + path))

    def open(self) -> None:
        """What a browser fetches before the first callback, but for scripts and styles."""
        self.get("")
        self.get("_dash-layout")
        for callback in json.loads(self.get("_dash-dependencies")):
            self.callbacks[callback["output"]] = callback

    def page(self, path: str) -> None:
        """Follow a link to a page."""
        pathname = "/" + self.url.split("/", 3)[3] + path
        self.call("page.children", {"url.pathname": pathname, "url.search": ""})

    def call(self, output: str, values: dict[str, object], changed: str = "") -> dict[str, dict[str, object]]:
        """Run the callback that has `output` among its outputs, with values for some of its inputs and states."""
        callback = next(each for name, each in self.callbacks.items() if output in name)

        def filled(kind: str) -> list[dict[str, object]]:
            given = callback[kind]
            assert isinstance(given, list)
            return [each | {"value": values.get(f"{each['id']}.{each['property']}")} for each in given]

        name = str(callback["output"])
        outputs = [part.rsplit(".", 1) for part in name.strip(".").split("...")]
        pairs = [{"id": identity, "property": what} for identity, what in outputs]
        body = {
            "output": name,
            "outputs": pairs if name.startswith("..") else pairs[0],
            "inputs": filled("inputs"),
            "state": filled("state"),
            "changedPropIds": [changed] if changed else [],
        }
        request = urllib.request.Request(
            self.url + "_dash-update-component", json.dumps(body).encode(), {"Content-Type": "application/json"}
        )
        answer = self._timed(request)
        return json.loads(answer)["response"] if answer else {}

    def _timed(self, request: urllib.request.Request) -> bytes:
        begin = time.perf_counter()
        with urllib.request.urlopen(request, timeout=300) as answer:
            body: bytes = answer.read()
        self.milliseconds.append((time.perf_counter() - begin) * 1e3)
        self.sizes.append(len(body))
        return body


@contextmanager
def serving(directory: Path) -> Iterator[str]:
    """The dashboard of a directory as a process of its own; yields the address that it prints."""
    command = [sys.executable, "-m", "tracekit", "dashboard", str(directory), "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        found = re.search(r"http://\S+", server.stdout.readline())
        assert found is not None
        yield found[0]
        server.send_signal(signal.SIGINT)


def first_view(url: str, run: str) -> tuple[float, dict[str, dict[str, object]]]:
    """Open the timeline in a new browser: ms that the server took for all of it, and the last answer."""
    client = Client(url)
    client.open()
    client.page("timeline")
    shown = client.call("timeline.figure", {"timeline-run.data": {"run": run, "query": {}}})
    return sum(client.milliseconds), shown


def _zooms(shown: dict[str, dict[str, object]], count: int) -> list[tuple[float, float]]:
    """Views from the whole run down to a hundred-thousandth of it, anywhere in it: begin and end in seconds."""
    view = shown["timeline-range"]["data"]
    assert isinstance(view, dict)
    length = (int(view["end"]) - int(view["begin"])) / 1e9
    chance = random.Random(2)
    widths = [length * 10 ** (-5 * number / (count - 1)) for number in range(count)]
    begins = [chance.uniform(0, length - width) for width in widths]
    return [(begin, begin + width) for begin, width in zip(begins, widths, strict=True)]


def _marks(answer: dict[str, dict[str, object]]) -> int:
    """How many bars a figure has."""
    figure = answer["timeline"]["figure"]
    assert isinstance(figure, dict)
    return sum(len(trace["hovertext"]) for trace in figure["data"])


def measure(directory: Path, run: str, zooms: int, events: int) -> dict[str, object]:
    """First views and zooms of the run; all times in ms of server time, round trip on this machine."""
    with serving(directory) as url:
        cold, shown = first_view(url, run)
        client = Client(url)
        client.open()
        client.call("overview-report.children", {"overview-run.data": run})  # until what goes on in the background ends
        report = client.milliseconds[-1]
        warm = [first_view(url, run)[0] for _ in range(5)]
        client.page("overview")
        overview = client.milliseconds[-1]
        client.milliseconds.clear()
        client.sizes.clear()
        marks = [
            _marks(
                client.call(
                    "timeline.figure",
                    {
                        "timeline.relayoutData": {"xaxis.range[0]": begin, "xaxis.range[1]": end},
                        "timeline-run.data": {"run": run, "query": {}},
                        "timeline-range.data": shown["timeline-range"]["data"],
                        "timeline-processes.value": shown["timeline-processes"]["value"],
                    },
                    "timeline.relayoutData",
                )
            )
            for begin, end in _zooms(shown, zooms)
        ]
    return {
        "events": events,
        "first_view_ms": {"median": round(statistics.median(warm), 1), "worst": round(max(warm), 1), "limit": 2000},
        "first_view_of_a_cold_server_ms": round(cold, 1),
        "overview_ms": round(overview, 1),
        "report_of_a_cold_server_ms": round(report, 1),
        "zoom_ms": {
            "median": round(statistics.median(client.milliseconds), 1),
            "worst": round(max(client.milliseconds), 1),
            "count": len(client.milliseconds),
            "limit": 500,
        },
        "zoom_bytes": {"median": int(statistics.median(client.sizes)), "worst": max(client.sizes)},
        "marks": {"median": int(statistics.median(marks)), "worst": max(marks), "limit": 5000},
    }


def main() -> None:
    """Make the run, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--steps", type=int, default=2500)
    parser.add_argument("--operators", type=int, default=2000, help="in each step")
    parser.add_argument("--zooms", type=int, default=40)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="tracekit-benchmark-") as scratch:
        run = make_run(Path(scratch) / "runs" / "training", options.steps, options.operators)
        result = measure(run.parent, run.name, options.zooms, options.steps * options.operators)
    if options.json:
        print(json.dumps(result, indent=2))
        return
    for name, value in result.items():
        print(f"{name}: {value}")


if __name__ == "__main__":
    main()
