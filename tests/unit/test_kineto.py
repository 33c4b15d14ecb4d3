"""The Kineto reader: exact times, the places of rows, and traces that are odd or broken."""

import gzip
import json
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tracekit.run.schema import TABLES
from tracekit.traces.kineto import TraceError, load_kineto, read_kineto, read_meta

BASE_NS = 1_790_857_026_000_000_000
Row = dict[str, object]


def event(**fields: object) -> dict[str, object]:
    usual = {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 10, "tid": 11, "ts": 1.0, "dur": 2.0}
    return usual | fields


def read(path: Path, **where: int) -> list[Row]:
    tables = list(read_kineto(path, **({"process": 3} | where)))
    for table in tables:
        table.validate(full=True)
    return pa.concat_tables([TABLES["operators"].empty_table(), *tables]).to_pylist()


@pytest.fixture
def trace(tmp_path: Path):
    """Write events, or the bytes of a whole document, to a file."""

    def write(*events: object, document: bytes | None = None, **head: object) -> Path:
        path = tmp_path / "trace.json"
        path.write_bytes(json.dumps({"traceEvents": events} | head).encode() if document is None else document)
        return path

    return write


def test_every_column_of_an_operator(trace) -> None:
    arguments = {"Input Dims": [[4, 5], [], [[1, 2]]], "Sequence number": 7, "External id": 99, "flops": 12}
    path = trace(event(ts=4376476174212.557, dur=2.373, args=arguments), baseTimeNanoseconds=BASE_NS)

    assert read(path, window=5, shift_ns=-1000) == [
        {
            "process": 3,
            "thread": 11,
            "start_ns": BASE_NS + 4376476174212557 - 1000,
            "duration_ns": 2373,
            "category": "cpu_op",
            "name": "aten::mm",
            "dims": "[[4,5],[],[[1,2]]]",
            "sequence": 7,
            "correlation": -1,
            "device": -1,
            "stream": -1,
            "bytes": -1,
            "flops": 12,
            "window": 5,
        }
    ]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.integers(0, 2**43 * 1000 - 1), min_size=1, max_size=20))
def test_times_are_exact_to_the_nanosecond(trace, times: list[int]) -> None:
    events = ",".join(f'{{"ph":"X","ts":{t // 1000}.{t % 1000:03},"dur":{t % 10**9 / 1000:.3f}}}' for t in times)
    path = trace(document=f'{{"baseTimeNanoseconds": {BASE_NS}, "traceEvents": [{events}]}}'.encode())

    assert [(row["start_ns"], row["duration_ns"]) for row in read(path)] == [(BASE_NS + t, t % 10**9) for t in times]


def test_unix_times_with_fractions_keep_their_nanoseconds(trace) -> None:
    digits = ["1695835542514261.123", "1695835542514261.125", "1695835542514999", "1695835542514262.001"]
    events = ",".join(f'{{"ph":"X","ts":{text},"dur":0.5}}' for text in digits)

    rows = read(trace(document=f"[{events}]".encode()))

    assert [row["start_ns"] for row in rows] == [
        1695835542514261123,
        1695835542514261125,
        1695835542514999000,
        1695835542514262001,
    ]


def test_a_time_beyond_reason_among_unix_times_costs_only_itself(trace) -> None:
    path = trace(event(ts=1695835542514261), event(ts=10**16), event(ts=-(10**300)))

    assert [row["start_ns"] for row in read(path)] == [1695835542514261000]
    assert load_kineto(path).unreadable == 2


def test_rows_of_a_device_carry_it_and_their_stream(trace) -> None:
    kernel = {"device": 1, "stream": 7, "correlation": 35}
    path = trace(
        event(cat="kernel", pid=1, tid=7, args=kernel),
        event(cat="gpu_memcpy", pid=1, tid=8, args=kernel | {"stream": 8, "bytes": 4096}),
        event(cat="gpu_user_annotation", pid=1, tid=7, args={"External id": 4}),
        event(cat="cuda_sync", pid=0, tid=7, args={"device": 0, "stream": 2**32 - 1}),
        event(cat="cuda_runtime", pid=10, tid=7, args={"stream": "0x0", "correlation": 35}),
    )

    rows = read(path)

    places = [(row["device"], row["stream"], row["thread"], row["correlation"], row["bytes"]) for row in rows]
    assert places == [(1, 7, 7, 35, -1), (1, 8, 8, 35, 4096), (1, 7, 7, -1, -1), (0, 7, 7, -1, -1), (-1, -1, 7, 35, -1)]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({"In msg nelems": 1000, "dtype": "BFloat16"}, 2000),
        ({"In msg nelems": "1000", "dtype": "Double"}, 8000),
        ({"In msg nelems": 1000, "dtype": "Float3"}, -1),
        ({"In msg nelems": 1000}, -1),
        ({"dtype": "Float"}, -1),
        ({"In msg nelems": 2**62, "dtype": "Double"}, 2**63 - 1),
        ({"bytes": 12, "In msg nelems": 1000, "dtype": "Float"}, 12),
    ],
)
def test_bytes_of_a_collective(trace, arguments: dict[str, object], expected: int) -> None:
    assert read(trace(event(args=arguments)))[0]["bytes"] == expected


def test_only_what_took_time_and_says_something_is_kept(trace) -> None:
    path = trace(
        event(ph="M", name="process_name"),
        event(ph="i", name="Record Window End"),
        event(ph="s", cat="ac2g"),
        event(cat="Trace", name="PyTorch Profiler (0)", pid="Spans", tid="PyTorch Profiler"),
        event(cat="python_function", name="train.py(3): <module>"),
        event(cat="python_function", name="nn.Module: LSTM_0"),
        event(cat="user_annotation", name="kept"),
    )

    assert [row["name"] for row in read(path)] == ["nn.Module: LSTM_0", "kept"]
    assert load_kineto(path).unreadable == 0


def test_begins_and_ends_are_paired_by_thread(trace) -> None:
    path = trace(
        event(ph="B", name="outer", ts=1),
        event(ph="B", name="other thread", ts=2, tid=12),
        event(ph="B", name="inner", ts=3),
        event(ph="E", ts=5, name=None),
        event(ph="E", ts=6, tid=12),
        event(ph="E", ts=9),
        event(ph="E", ts=10),
        event(ph="B", name="never ended", ts=11),
    )

    times = {row["name"]: (row["start_ns"], row["duration_ns"]) for row in read(path)}

    assert times == {"outer": (1000, 8000), "other thread": (2000, 4000), "inner": (3000, 2000)}
    assert load_kineto(path).unreadable == 2


def test_threads_without_a_number_of_their_own_get_one(trace) -> None:
    places = [(10, 11), (10, "11"), (20, 11), (10, "loader"), (10, None), (10, "loader"), (20, 12), (10, 12)]

    rows = read(trace(*[event(pid=pid, tid=tid) for pid, tid in places]))

    assert [row["thread"] for row in rows] == [11, -2, -3, -4, -5, -4, 12, -6]


def test_a_stream_takes_no_number_from_a_thread(trace) -> None:
    kernel = event(cat="kernel", pid=0, tid=7, args={"device": 0, "stream": 7})

    assert [row["thread"] for row in read(trace(kernel, event(tid=7)))] == [7, 7]


@pytest.mark.parametrize(
    ("odd", "expected"),
    [
        ({"pid": "Spans"}, {}),
        ({"pid": [1]}, {}),
        ({"tid": 11.0}, {}),
        ({"ts": "1.5"}, {"start_ns": 1500}),
        ({"dur": 0}, {"duration_ns": 0}),
        ({"name": None}, {"name": ""}),
        ({"name": 5}, {"name": "5"}),
        ({"name": {"a": 1}}, {"name": "{'a': 1}"}),
        ({"cat": None}, {"category": ""}),
        ({"args": None}, {"dims": ""}),
        ({"args": [1]}, {"dims": ""}),
        ({"args": {"Sequence number": None, "correlation": "x"}}, {"sequence": -1, "correlation": -1}),
        ({"args": {"Sequence number": {"a": 1}, "correlation": 6}}, {"sequence": -1, "correlation": 6}),
        ({"args": {"Sequence number": 2**64, "flops": 1.5e300}}, {"sequence": -1, "flops": -1}),
        ({"args": {"Input Dims": "a <b>\n%"}}, {"dims": '"a<b>\\n%"'}),
        ({"args": {"Input Dims": [[1]], "bytes": []}}, {"dims": "[[1]]", "bytes": -1}),
        ({"name": "a\nb%\"<script>'\x00"}, {"name": "a\nb%\"<script>'\x00"}),
    ],
)
def test_an_odd_field_costs_only_itself(trace, odd: dict[str, object], expected: Row) -> None:
    rows = read(trace(event(**odd), event(name="next")))

    assert rows[0] | expected == rows[0]
    assert (rows[0]["thread"], rows[1]["name"]) == (11, "next")


@pytest.mark.parametrize(
    "odd",
    [
        {"ts": None},
        {"ts": "now"},
        {"ts": 1e300},
        {"ts": 10**400},
        {"ts": [1]},
        {"dur": None},
        {"dur": -1},
        {"dur": -0.001},
        {"dur": 1e18},
        {"dur": {}},
    ],
)
def test_an_event_without_a_usable_time_is_counted_not_kept(trace, odd: dict[str, object]) -> None:
    path = trace(event(**odd), event(name="next"))

    assert [row["name"] for row in read(path)] == ["next"]
    assert load_kineto(path).unreadable == 1


def test_a_number_longer_than_python_reads_costs_only_itself(trace) -> None:
    digits = b"9" * 5000
    odd = b'{"ph":"X","tid":11,"ts":1,"dur":2,"name":"odd","args":{"Sequence number":%b,"flops":3}}' % digits
    endless = b'{"ph":"X","ts":1,"dur":%b,"pid":[]}' % digits
    path = trace(document=b'{"traceEvents":[%b,%b]}' % (odd, endless))

    assert [(row["name"], row["sequence"], row["flops"]) for row in read(path)] == [("odd", -1, 3)]
    assert load_kineto(path).unreadable == 1


def test_entries_that_are_no_events_are_counted(trace) -> None:
    path = trace(event(), None, 5, [event()], "x")

    assert len(read(path)) == 1
    assert load_kineto(path).unreadable == 4


@pytest.mark.parametrize(
    ("written", "name"),
    [
        (rb'"name": "C:\Users\new"', "C:\\Users\new"),
        (rb'"name": "C:\\good"', "C:\\good"),
        (b'"name": "a\x01b"', "a\x01b"),
        (rb'"name": "\ud800 \ud83d\ude00"', "\ufffd \U0001f600"),
        (b'"name": "\xff"', "\ufffd"),
        (rb'"name": "nan", "args": {"memory bandwidth (GB/s)": nan, "x": -inf, "y": [Infinity, NaN]}', "nan"),
        (b'"name": "first", "name": "second"', "second"),
    ],
)
def test_what_is_not_quite_json_is_mended(trace, written: bytes, name: str) -> None:
    rows = read(trace(document=b'{"traceEvents": [{"ph":"X","ts":1,"dur":2,%b}]}' % written))

    assert [(row["name"], row["start_ns"], row["duration_ns"]) for row in rows] == [(name, 1000, 2000)]


@pytest.mark.parametrize(
    "wrap", [bytes, gzip.compress, lambda data: b"\xef\xbb\xbf" + data, lambda data: b"\n " + data]
)
@pytest.mark.parametrize("bare", [False, True])
def test_plain_and_gzipped_objects_and_lists(trace, wrap, bare: bool) -> None:
    events = [event(), event()]

    assert len(read(trace(document=wrap(json.dumps(events if bare else {"traceEvents": events}).encode())))) == 2


WHOLE = json.dumps({"traceEvents": [event(), event()]}).encode()


@pytest.mark.parametrize(
    ("document", "why"),
    [
        (b"", "is empty"),
        (b" \n", "is empty"),
        (WHOLE[:-1], "ends too early"),
        (WHOLE[:60], "ends too early"),
        (b"[" + WHOLE[17:60], "ends too early"),
        (gzip.compress(WHOLE, mtime=0)[:-12], "in the middle of its gzip data"),
        (gzip.compress(WHOLE, mtime=0)[:-8] + b"damaged!", "gzip data is damaged"),
        (b"5", "is not a Kineto trace"),
        (b'{"a": 1}', "is not a Kineto trace"),
        (b'{"traceEvents": {}}', "is not a Kineto trace"),
        (b"[1, 2, 3]", "is not a Kineto trace"),
        (b"PAR1\x00\x01", "is not a Kineto trace"),
        (b"<html>", "is not a Kineto trace"),
        (b"[" * 100_000, "is not a Kineto trace"),
    ],
)
def test_a_file_that_is_no_trace_is_named_with_the_reason(trace, document: bytes, why: str) -> None:
    path = trace(document=document)

    with pytest.raises(TraceError) as caught:
        read(path)

    assert str(caught.value).startswith(f"{path}: ")
    assert why in str(caught.value)
    assert "\n" not in str(caught.value)
    assert caught.value.exit_code == 2


def test_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match=r"absent\.json: cannot be read \(No such file or directory\)"):
        read(tmp_path / "absent.json")


def test_a_trace_without_events_has_no_tables(trace) -> None:
    assert list(read_kineto(trace(), process=0)) == []


def test_meta(trace) -> None:
    path = trace(
        baseTimeNanoseconds=BASE_NS,
        deviceProperties=[{"id": 0, "name": "H200", "totalGlobalMem": 150}, {"id": 1}],
        distributedInfo={"backend": "nccl", "rank": 3, "world_size": 8, "pg_config": []},
        host_name="node7",
    )

    meta = read_meta(path)

    assert meta.base_time_ns == BASE_NS
    assert [(device.id, device.name, device.memory_bytes) for device in meta.devices] == [(0, "H200", 150), (1, "", -1)]
    assert (meta.distributed.backend, meta.distributed.rank, meta.distributed.world_size) == ("nccl", 3, 8)
    assert meta.host == "node7"
    assert load_kineto(path).meta == meta


def test_a_strange_head_costs_only_itself(trace) -> None:
    path = trace(event(), baseTimeNanoseconds="soon", deviceProperties="[]", distributedInfo=[1], host_name="node7")

    meta = read_meta(path)

    assert (meta.base_time_ns, meta.devices, meta.distributed.rank, meta.host) == (0, [], -1, "node7")
    assert read(path)[0]["start_ns"] == 1000


SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5)
ANYTHING = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3)
)
ARGUMENTS = [
    "Input Dims",
    "Sequence number",
    "correlation",
    "device",
    "stream",
    "bytes",
    "In msg nelems",
    "dtype",
    "flops",
]
EVENTS = st.fixed_dictionaries(
    {"ph": st.sampled_from("XBE")},
    optional=dict.fromkeys(("name", "pid", "tid"), ANYTHING)
    | dict.fromkeys(("ts", "dur"), ANYTHING | st.integers(0, 2**53) | st.floats(0, 2**53))
    | {"cat": ANYTHING | st.sampled_from(["kernel", "gpu_memcpy", "cpu_op"])}
    | {"args": ANYTHING | st.fixed_dictionaries({}, optional=dict.fromkeys(ARGUMENTS, ANYTHING))},
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(EVENTS, max_size=6))
def test_no_event_of_any_shape_stops_the_reader(trace, events: list[object]) -> None:
    for table in read_kineto(trace(*events), process=0):
        table.validate(full=True)
        for start, duration in zip(table["start_ns"].to_pylist(), table["duration_ns"].to_pylist(), strict=True):
            assert duration >= 0
            assert -(2**63) <= start + duration < 2**63
