"""The rungs of a machine: what is planted is read, what is not is said."""

from pathlib import Path

from tracekit.collectors.counter_rows import counter_rows
from tracekit.collectors.counters import Counters
from tracekit.collectors.host import Host
from tracekit.collectors.procfs import probe


def plant(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


def test_a_machine_that_shows_nothing_says_so_for_each_rung(tmp_path: Path) -> None:
    host = Host(1, {0}, proc=tmp_path, sys=tmp_path)
    assert host.often == host.seldom == []
    assert len(host.rungs) == 5
    assert all(not rung.available and rung.why and rung.expected for rung in host.rungs)


def test_what_is_there_is_read_though_the_rest_is_not(tmp_path: Path) -> None:
    pressure = "some avg10=0.00 avg60=0.00 avg300=0.00 total={}\n"
    files = {f"pressure/{resource}": pressure.format(5) for resource in ("cpu", "memory", "io")}
    host = Host(1, {0}, proc=plant(tmp_path, files), sys=tmp_path)
    readings = [(0, reader, reader.read()) for reader in host.often]
    plant(tmp_path, {name: pressure.format(9) for name in files})
    readings += [(10, reader, reader.read()) for reader in host.often]
    rows = counter_rows(readings)
    assert {rows.names[name]: int(value) for name, value in zip(rows.counter, rows.value, strict=True)} == {
        "psi.cpu.some_ns": 4000,
        "psi.memory.some_ns": 4000,
        "psi.io.some_ns": 4000,
    }
    assert [rung.name for rung in host.rungs if rung.available] == ["pressure (PSI)"]
    host.close()


def test_a_schedstat_of_zeros_is_no_schedstat(tmp_path: Path) -> None:
    plant(tmp_path, {"schedstat": "0 0 0\n", "io": "rchar: 0\n"})
    schedstat, storage = probe(tmp_path)
    assert not schedstat.available
    assert schedstat.remedy
    assert storage.available
    plant(tmp_path, {"schedstat": "812 0 3\n"})
    assert probe(tmp_path)[0].available
    assert [rung.available for rung in probe(tmp_path / "absent")] == [False, False]


def test_beyond_its_budget_it_reads_less_often_and_says_so() -> None:
    counters = Counters(root_pid=2**30, budget=0.0)  # no such process
    for second in range(5):
        counters.sample(second * 10**9)
    notes = {note.what: note.why for note in counters.missing()}
    assert notes["counters: some samples"].startswith("4 of 5 were left out")
    assert "counters: processes that ended before they could be read" in notes
    counters.sample(6 * 10**9, complete=True)
    assert {note.what: note.why for note in counters.missing()}["counters: some samples"].startswith("4 of 6")
    counters.close()


def test_no_budget_is_spent_on_a_gpu_that_nobody_expects() -> None:
    counters = Counters(root_pid=2**30)
    expected = {f"counters: {rung.name}" for rung in counters.rungs() if rung.expected and not rung.available}
    assert {note.what for note in counters.missing()} == expected
    counters.close()
