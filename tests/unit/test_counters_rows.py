"""Totals become rows of intervals."""

import struct

import pytest

from tracekit.collectors.counter_rows import counter_rows
from tracekit.collectors.counter_table import counter_table
from tracekit.collectors.perf_events import HARDWARE, SOFTWARE, Group
from tracekit.collectors.procfs import SCHEDSTAT, THREADS
from tracekit.collectors.readings import Fields, Kind, Raw, Reader, Reading
from tracekit.run.schema import TABLES

Row = tuple[str, int, int, int]  # counter, start, end, value


def rows_of(readings: list[Reading], counter: str | None = None) -> list[Row]:
    rows = counter_rows(readings)
    names = [rows.names[number] for number in rows.counter]
    found = zip(names, rows.start_ns, rows.start_ns + rows.duration_ns, rows.value, strict=True)
    return [(name, int(start), int(end), int(value)) for name, start, end, value in found if counter in (None, name)]


def reader(kind: Kind, thread: int = 7) -> Reader:
    return Reader(kind, 3, thread, lambda: b"")


def schedstat(*totals: tuple[int, int]) -> list[Reading]:
    """Readings (time, CPU ns) of one thread."""
    one = reader(SCHEDSTAT)
    return [(time, one, f"{cpu} 0 1\n".encode()) for time, cpu in totals]


def test_rows_are_increases_between_readings() -> None:
    readings = schedstat((100, 1000), (200, 1030), (300, 1050))
    assert rows_of(readings, "thread.cpu_ns") == [("thread.cpu_ns", 100, 200, 30), ("thread.cpu_ns", 200, 300, 20)]


def test_successive_nothing_is_one_row_and_all_time_is_covered() -> None:
    readings = schedstat((0, 5), (10, 5), (20, 5), (30, 9), (40, 9), (50, 9))
    assert [row[1:] for row in rows_of(readings, "thread.cpu_ns")] == [(0, 20, 0), (20, 30, 4), (30, 50, 0)]


def test_equal_increases_are_not_joined() -> None:
    assert len(rows_of(schedstat((0, 0), (10, 4), (20, 8)), "thread.cpu_ns")) == 2


def test_levels_hold_their_value_and_stay_one_row_while_it_does() -> None:
    one = reader(THREADS, 0)
    readings: list[Reading] = [(0, one, 4), (10, one, 4), (20, one, 4), (30, one, 9)]
    assert rows_of(readings) == [("process.threads", 0, 20, 4), ("process.threads", 20, 30, 9)]


def test_a_single_reading_or_none_is_no_row() -> None:
    assert rows_of(schedstat((0, 5))) == []
    assert rows_of([]) == []


def test_two_readings_at_one_time_are_no_row() -> None:
    assert rows_of(schedstat((5, 1), (5, 2))) == []


def test_threads_do_not_mix() -> None:
    first, second = schedstat((0, 0), (10, 3)), schedstat((0, 100), (10, 104))
    mixed = [first[0], second[0], first[1], second[1]]
    assert [row[3] for row in rows_of(mixed, "thread.cpu_ns")] == [3, 4]


def test_a_total_that_fell_is_unknown_and_said() -> None:
    rows = counter_rows(schedstat((0, 50), (10, 20), (20, 25)))
    assert rows.backwards == ["thread.cpu_ns"]
    assert [row[1:] for row in rows_of(schedstat((0, 50), (10, 20), (20, 25)), "thread.cpu_ns")] == [(10, 20, 5)]


def perf(totals: int, enabled: int, running: int) -> Raw:
    return struct.pack("<7Q", 4, enabled, running, totals, 0, 0, 0)


def test_multiplexed_events_are_scaled_by_the_interval_they_were_counted_in() -> None:
    one = reader(Group("perf hardware", HARDWARE, False))
    # Counted all of the first interval, half of the second, none of the third; the thread did not run in the fourth.
    totals = [perf(0, 0, 0), perf(100, 10, 10), perf(150, 20, 15), perf(150, 30, 15), perf(150, 30, 15)]
    readings: list[Reading] = [(time * 10, one, raw) for time, raw in enumerate(totals)]
    assert [row[1:] for row in rows_of(readings, "perf.cycles")] == [(0, 10, 100), (10, 20, 100), (30, 40, 0)]


def test_large_totals_lose_no_digit() -> None:
    one = reader(Group("perf software", SOFTWARE, False))
    big = 2**60 + 1
    readings: list[Reading] = [(0, one, perf(big, 5, 5)), (10, one, perf(2 * big + 1, 9, 9))]
    assert rows_of(readings, "perf.task_clock_ns")[0][3] == big + 1


def test_the_last_moments_of_a_thread_come_from_its_perf_event() -> None:
    clock = reader(Group("perf software", SOFTWARE, False))
    clock.ended_ns = 20
    cpu = schedstat((0, 0), (10, 9))
    readings: list[Reading] = [
        *cpu,
        (0, clock, perf(0, 0, 0)),
        (10, clock, perf(9, 9, 9)),
        (20, clock, perf(13, 13, 13)),
    ]
    assert [row[1:] for row in rows_of(readings, "thread.cpu_ns")] == [(0, 10, 9), (10, 20, 4)]
    rows = counter_rows(readings)
    sources = [rows.sources[source] for name, source in zip(rows.counter, rows.source, strict=True)
               if rows.names[name] == "thread.cpu_ns"]  # fmt: skip
    assert sources == ["schedstat", "perf software"]


def test_devices_that_come_and_go() -> None:
    texts: dict[Raw, dict[str, int]] = {
        b"a": {"net.a.sent_bytes": 1},
        b"b": {"net.a.sent_bytes": 4, "net.b.sent_bytes": 50},
    }
    texts |= {b"c": {"net.b.sent_bytes": 57}, b"none": {}}
    one = reader(Fields("net", lambda raw: texts[raw]), 0)
    readings: list[Reading] = [(0, one, b"a"), (10, one, b"b"), (20, one, b"c"), (30, one, b"none")]
    assert rows_of(readings) == [("net.a.sent_bytes", 0, 10, 3), ("net.b.sent_bytes", 10, 20, 7)]


@pytest.mark.parametrize("readings", [[], schedstat((0, 0), (10, 3))])
def test_the_table_has_the_schema_of_the_run(readings: list[Reading]) -> None:
    table, fallen = counter_table(readings)
    assert table.schema == TABLES["counters"]
    assert fallen == []
    if readings:
        assert set(table.column("process").to_pylist()) == {3}
        assert set(table.column("thread").to_pylist()) == {7}
        assert set(table.column("source").to_pylist()) == {"schedstat"}
