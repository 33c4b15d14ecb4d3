"""Noise as one asks for it: doses, units and places."""

import os
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracekit.noise.spec import KINDS, NoiseError, dose_text, parse, parse_all


@pytest.mark.parametrize(
    ("word", "kind", "rate"),
    [
        ("memory=4GB/s", "memory", 4e9),
        ("memory=1.5GiB/s", "memory", 1.5 * 2**30),
        ("disk=50MB/s", "disk", 50e6),
        ("network=1Gb/s", "network", 125e6),
        ("network=10MB/s", "network", 10e6),
        ("cpu=2", "cpu", 2e9),
        ("busy=50%", "busy", 0.5e9),
        ("metadata=500/s", "metadata", 500),
        ("capacity=2GB", "capacity", 2e9),
        ("cache=800kB/s", "cache", 8e5),
    ],
)
def test_doses_are_read_in_their_units(word: str, kind: str, rate: float) -> None:
    spec = parse(word)
    assert spec.kind.name == kind
    assert spec.rate == pytest.approx(rate)


@pytest.mark.parametrize(
    "word",
    [
        "", "memory", "memory=", "memory=fast", "memory=4", "memory=4Gb/s", "memory=4GB", "memory=-4GB/s",
        "memory=0GB/s", "metadata=3/s",
        "capacity=2GB/s", "cpu=2GB/s", "cpu=0", "metadata=5", "disk=1e9B/s", "heat=3", "network=1Gb", "memory=4GB/s@",
        "memory=4GB/s@moon", "cpu=1@99999", "cpu=1@1-0", "cpu=1@node999", "disk=1MB/s@/no/such/folder", "cpu =1",
        "memory=4GB/s\n", "memory=99999999999999TB/s", "disk=1MB/s@\x1b[31m", "cpu=1@0-99999999999",
        "cpu=1@nice0", "cpu=1@nice20", "cpu=1@nice99999999", "cpu=1@nice000012345", "disk=1MB/s@/dev/null",
    ],
)  # fmt: skip
def test_what_is_no_noise_is_said_in_one_line(word: str) -> None:
    with pytest.raises(NoiseError) as error:
        parse(word)
    assert "\n" not in str(error.value)
    assert str(error.value).isprintable()


def test_a_noise_has_its_place(tmp_path) -> None:
    cpu = min(os.sched_getaffinity(0))
    assert parse(f"cpu=1@{cpu}").cpus == (cpu,)
    assert parse(f"disk=1MB/s@{tmp_path}@{cpu}@nice19").folder == str(tmp_path)
    spec = parse(f"disk=1MB/s@{tmp_path}@{cpu}@nice19")
    assert (spec.cpus, spec.nice, spec.io_idle) == ((cpu,), 19, False)
    assert parse(f"disk=1MB/s@{tmp_path}@ionice3").io_idle
    assert parse("cpu=1@nice0000007").nice == 7
    assert parse("network=1Mb/s@lo@10.0.0.2").interface == "lo"
    assert parse("network=1Mb/s@lo@10.0.0.2").host == "10.0.0.2"


@pytest.mark.parametrize(
    ("word", "backend"), [("cpu=1", "stress-ng"), ("disk=1MB/s", "fio"), ("network=1Mb/s", "iperf3")]
)
def test_a_tool_may_make_it(word: str, backend: str) -> None:
    (asked,) = parse_all([word], backend)
    assert asked == parse(f"{word}@{backend}") and asked.backend == backend
    assert asked.with_dose(asked.dose / 2).label.endswith(f"@{backend}")
    assert parse(word).without_dose() != asked.without_dose()  # they share no processes


@pytest.mark.parametrize(("word", "backend"), [("memory=1GB/s", "stress-ng"), ("cpu=1", "fio"), ("cpu=1", "hydra")])
def test_a_tool_that_does_not_make_it_is_refused(word: str, backend: str) -> None:
    with pytest.raises(NoiseError, match=backend):
        parse_all([word], backend)


def test_a_guest_stands_back_as_far_as_it_can(tmp_path) -> None:
    """GIVEN noises on any CPU, on one, and on a disk THEN they take the spare ones if these are enough, and the last
    place for CPUs and disks; who stands there already stays the same."""
    cpu = min(os.sched_getaffinity(0))
    gentle = parse("cpu=1").standing_back([cpu])
    assert (gentle.label, gentle.cpus, gentle.nice, gentle.instead) == (f"cpu=1@{cpu}@nice19", (cpu,), 19, "cpu=1")
    assert gentle == replace(parse(gentle.label), instead="cpu=1")
    assert parse("cpu=2").standing_back([cpu]).cpus == ()
    assert parse("cache=1GB/s").standing_back([cpu, cpu]).processes == 1  # with more it would be other noise
    assert parse(f"cpu=1@{cpu}").standing_back([]).label == f"cpu=1@{cpu}@nice19"
    assert parse(f"disk=1MB/s@{tmp_path}").standing_back([]).io_idle
    assert gentle.standing_back([cpu]) is gentle


def test_no_process_is_asked_for_more_than_a_cpu() -> None:
    assert [parse(f"cpu={dose}").processes for dose in ("0.5", "1", "1.5", "3")] == [1, 1, 2, 3]


def test_a_dose_beyond_all_cpus_does_not_start_as_many_processes() -> None:
    cpu = min(os.sched_getaffinity(0))
    assert parse(f"cpu=8@{cpu}").processes == parse(f"busy=99999@{cpu}").processes == 8
    assert parse("cpu=99999").processes == 8 * len(os.sched_getaffinity(0))


def test_the_same_noise_twice_is_refused() -> None:
    with pytest.raises(NoiseError, match="given twice"):
        parse_all(["cpu=1", "memory=1GB/s", "cpu=1"])


@given(st.sampled_from(sorted(KINDS)), st.floats(30, 1e6))
def test_a_dose_that_is_written_is_read_again(kind: str, dose: float) -> None:
    text = dose_text(KINDS[kind], dose if KINDS[kind].unit != "operations" else max(round(dose), 1))
    assert parse(f"{kind}={text}").dose == pytest.approx(dose, rel=0.01, abs=0.51)
