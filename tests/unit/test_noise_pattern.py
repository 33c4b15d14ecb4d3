"""Patterns of noise: sequences, draws, and NOIGENA's files."""

import itertools
from collections import Counter
from pathlib import Path

import pytest

from tracekit.noise.pattern import Stretch, always, parse_pattern
from tracekit.noise.spec import NoiseError, parse_all

SPECS = parse_all(["memory=1GB/s", "disk=5MB/s", "network=1Mb/s", "busy=1"])
ALL = frozenset(spec.label for spec in SPECS)

NOIGENA = """
NOISE_PATTERNS:
  PATTERN_ONCE:
    Sequence:
      - MEMORY_NOISE: LOW_NOISE 5
      - NO_NOISE: NULL 1
      - NETWORK_NOISE: MEDIUM_NOISE 2 2
  PATTERN_M2S2:
    Sequence:
    - REPEATED_NOISE:
        REPEAT: inf
        Sequence:
          - MEMORY_NOISE: 2 2
          - NO_NOISE: NULL 3
  PATTERN_TWICE:
    Sequence:
    - REPEATED_NOISE:
        REPEAT: 2
        Sequence:
          - IO_NOISE: 2 1
    - BUSY_WAIT_NOISE: NULL 4
  PATTERN_RND:
    Sequence:
      - RANDOM_NOISE:
          Seed: 53
          TIME: 400
          MEMORY_NOISE: 25
          NO_NOISE: 75
"""


def stretches(text: str, count: int = 5) -> list[tuple[set[str], float]]:
    pattern = parse_pattern(text, SPECS)
    return [({label.split("=")[0] for label in each.on}, each.seconds) for each in itertools.islice(pattern(), count)]


def test_without_a_pattern_all_is_on_for_good() -> None:
    (only,) = always(SPECS)()
    assert only == Stretch(ALL, float("inf"))


def test_on_and_off_and_sequences_come_again() -> None:
    assert stretches("2s/500ms", 3) == [({"memory", "disk", "network", "busy"}, 2), (set(), 0.5)] * 1 + [
        ({"memory", "disk", "network", "busy"}, 2)
    ]
    assert stretches("memory:2s off:1s disk+network:3s", 4) == [
        ({"memory"}, 2), (set(), 1), ({"disk", "network"}, 3), ({"memory"}, 2),
    ]  # fmt: skip


def test_a_label_may_have_the_sign_that_joins(tmp_path: Path) -> None:
    folder = tmp_path / "a+b"
    folder.mkdir()
    disk, cpu = parse_all([f"disk=5MB/s@{folder}", "cpu=1"])
    (first, second) = itertools.islice(parse_pattern(f"{cpu.label}+{disk.label}:1s {disk.label}:2s", [disk, cpu])(), 2)
    assert first.on == {disk.label, cpu.label}
    assert second.on == {disk.label}


def test_shares_are_drawn_and_a_seed_draws_the_same() -> None:
    text = "random:7 1s memory:25% disk:25% off:50%"
    drawn = [tuple(sorted(on)) for on, _ in stretches(text, 4000)]
    assert drawn == [tuple(sorted(on)) for on, _ in stretches(text, 4000)]
    counted = Counter(drawn)
    assert counted[()] == pytest.approx(2000, abs=150)
    assert counted[("memory",)] == pytest.approx(1000, abs=150)


def test_noigenas_patterns_are_read_as_they_are(tmp_path: Path) -> None:
    file = tmp_path / "noigena_cfg.yaml"
    file.write_text(NOIGENA)
    assert stretches(f"{file}#PATTERN_ONCE", 9) == [({"memory"}, 5), (set(), 1), ({"network"}, 2)]
    assert stretches(f"{file}#M2S2", 3) == [({"memory"}, 2), (set(), 3), ({"memory"}, 2)]
    assert stretches(f"{file}#TWICE", 9) == [({"disk"}, 1), ({"disk"}, 1), ({"busy"}, 4)]
    drawn = [len(on) for on, _ in stretches(f"{file}#RND", 999)]
    assert len(drawn) == 400
    assert sum(drawn) == pytest.approx(100, abs=35)
    assert drawn == [len(on) for on, _ in stretches(f"{file}#RND", 999)]


@pytest.mark.parametrize(
    "text",
    ["", " ", "2s/", "memory", "memory:", ":2s", "heat:2s", "memory:-1s", "memory:0s", "memory:2h", "random",
     "random:x 1s off:100%", "random 1s memory:25%", "random 1s memory:25", "cache:2s", "no.yaml#X", "1s/1s/1s",
     "off:1s", "off:1s off:2s", "/tmp#M2", "random:7 1s off:100%", "random:7 1s off:100% memory:0%"],
)  # fmt: skip
def test_what_is_no_pattern_is_said_in_one_line(text: str) -> None:
    with pytest.raises(NoiseError) as error:
        parse_pattern(text, SPECS)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    "body",
    [
        "a: [", "[]", "NOISE_PATTERNS: 3", "NOISE_PATTERNS: {PATTERN_X: 3}",
        "NOISE_PATTERNS: {PATTERN_X: {Sequence: [3]}}",
        "NOISE_PATTERNS: {PATTERN_X: {Sequence: [{HEAT: NULL 2}]}}",
        "NOISE_PATTERNS: {PATTERN_X: {Sequence: [{MEMORY_NOISE: LOW}]}}",
        "NOISE_PATTERNS: {PATTERN_X: {Sequence: [{REPEATED_NOISE: {REPEAT: inf, Sequence: []}}]}}",
        "NOISE_PATTERNS: {PATTERN_X: {Sequence: [{REPEATED_NOISE: {REPEAT: often, Sequence: [{NO_NOISE: NULL 1}]}}]}}",
        "NOISE_PATTERNS: {PATTERN_X: {Sequence: [{RANDOM_NOISE: {TIME: 3, MEMORY_NOISE: 50}}]}}",
        "NOISE_PATTERNS: {PATTERN_Y: {Sequence: []}}", "\x00",
    ],
)  # fmt: skip
def test_a_file_that_is_no_noigena_file_is_said_in_one_line(body: str, tmp_path: Path) -> None:
    file = tmp_path / "p.yaml"
    file.write_text(body)
    with pytest.raises(NoiseError) as error:
        parse_pattern(f"{file}#X", SPECS)
    assert "\n" not in str(error.value)
