"""Perf events on every kind of machine, played by an opener."""

import errno
import os
import struct

import pytest

from tracekit.collectors import perf_events
from tracekit.collectors.perf_events import HARDWARE, SOFTWARE, Event, PerfEvents


class Machine:
    """Opens the events it has; what it refuses, it refuses with an errno. Its files say what was opened."""

    def __init__(self, lacking: dict[str, int] | None = None, kernel: int = 0, calls: int = 0) -> None:
        self.lacking = lacking or {}
        self.kernel = kernel  # errno for counting the kernel too
        self.calls = calls  # errno for every call
        self.opened: list[tuple[str, int, bool, bool]] = []

    def __call__(self, event: Event, thread: int, leader: int, user_only: bool) -> int:
        refused = self.calls or (0 if user_only else self.kernel) or self.lacking.get(event.counter, 0)
        if refused:
            raise OSError(refused, os.strerror(refused))
        self.opened.append((event.counter, thread, leader >= 0, user_only))
        receive, send = os.pipe()
        os.write(send, struct.pack("<7Q", 4, 9, 9, 1, 2, 3, 4))
        os.close(send)
        return receive


def names(events: tuple[Event, ...]) -> list[str]:
    return [event.counter for event in events]


def test_a_machine_with_everything() -> None:
    machine = Machine()
    perf = PerfEvents(machine)
    assert [(group.source, names(group.events)) for group in perf.groups] == [
        ("perf software", names(SOFTWARE)),
        ("perf hardware", names(HARDWARE)),
    ]
    assert all(rung.available and not rung.why for rung in perf.rungs)

    machine.opened.clear()
    readers = perf.attach(process=2, thread=77)
    assert [reader.thread for reader in readers] == [77, 77]
    assert {thread for _, thread, _, _ in machine.opened} == {77}
    led = {name: is_led for name, _, is_led, _ in machine.opened}
    assert [name for name, is_led in led.items() if not is_led] == ["perf.task_clock_ns", "perf.cycles"]
    decoded = readers[0].kind.decode([readers[0].read()])
    assert dict(zip(decoded.names, decoded.value.tolist(), strict=True)) == dict(
        zip(names(SOFTWARE), [1, 2, 3, 4], strict=True)
    )
    for reader in readers:
        reader.close()
        reader.close()


@pytest.mark.parametrize("code", [errno.ENOENT, errno.EOPNOTSUPP, errno.ENODEV])
def test_a_virtual_machine_without_hardware_events(code: int) -> None:
    perf = PerfEvents(Machine(lacking=dict.fromkeys(names(HARDWARE), code)))
    assert [group.source for group in perf.groups] == ["perf software"]
    hardware = perf.rungs[0]
    assert not hardware.available
    assert "virtual" in hardware.why
    assert hardware.remedy


def test_one_event_lacking_is_said_and_the_others_counted() -> None:
    perf = PerfEvents(Machine(lacking={"perf.cache_misses": errno.ENOENT}))
    assert "perf.cache_misses" not in names(perf.groups[1].events)
    assert perf.rungs[0].available
    assert "perf.cache_misses" in perf.rungs[0].why


def test_with_the_kernel_closed_nothing_that_would_read_zero_is_opened() -> None:
    machine = Machine(kernel=errno.EACCES)
    perf = PerfEvents(machine)
    software, hardware = perf.groups
    assert names(software.events) == ["perf.task_clock_ns", "perf.page_faults"]
    assert names(hardware.events) == names(HARDWARE)
    assert software.source == "perf software (user mode)"
    assert all(user_only for _, _, _, user_only in machine.opened)
    lacking = perf.rungs[1]
    assert lacking.available
    assert "perf.context_switches" in lacking.why
    assert "paranoid" in lacking.why
    assert "user mode only" in perf.rungs[0].why


@pytest.mark.parametrize(
    ("code", "word"), [(errno.EPERM, "seccomp"), (errno.ENOSYS, "no perf events"), (errno.EMFILE, "open files")]
)
def test_nothing_at_all_is_said_with_its_reason(code: int, word: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(perf_events, "_allow_more_files", lambda: False)
    perf = PerfEvents(Machine(calls=code))
    assert perf.groups == []
    assert perf.attach(0, 1) == []
    assert [rung.available for rung in perf.rungs] == [False, False]
    assert all(word in rung.why for rung in perf.rungs)


def test_a_thread_that_ended_is_no_trouble_but_a_refusal_is() -> None:
    machine = Machine()
    perf = PerfEvents(machine)
    machine.calls = errno.ESRCH
    assert perf.attach(0, 1) == []
    assert perf.refusal() is None
    machine.calls = errno.EACCES
    assert perf.attach(0, 1) == []
    assert "refused" in (perf.refusal() or "")


def test_a_group_that_opens_halfway_leaves_no_file_open() -> None:
    machine = Machine()
    perf = PerfEvents(machine)
    before = len(os.listdir("/proc/self/fd"))
    machine.lacking = {"perf.migrations": errno.EBUSY, "perf.branch_misses": errno.EBUSY}
    assert perf.attach(0, 1) == []
    assert len(os.listdir("/proc/self/fd")) == before


def test_out_of_files_it_asks_for_more_once(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine()
    perf = PerfEvents(machine)
    asked: list[bool] = []

    def allow() -> bool:
        asked.append(True)
        machine.calls = 0
        return True

    monkeypatch.setattr(perf_events, "_allow_more_files", allow)
    machine.calls = errno.EMFILE
    readers = perf.attach(0, 1)
    assert len(readers) == 2
    assert asked == [True]
    for reader in readers:
        reader.close()
