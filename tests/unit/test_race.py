"""Which conditions leave a race whose truth is known."""

import random

import pytest

from tracekit.collectors.race import Race

NARROW, WIDE, ANY = range(3)
FORWARD, BACKWARD = 1, 2


def raced(times: list[dict[int, float]], rounds: int, noise: float = 0.02, seed: int = 0, keep: int = 0) -> set[int]:
    """Run the race of conditions, each given by what its layers take; which were dropped on the way."""
    race, draw, running = Race(), random.Random(seed), list(range(len(times)))
    dropped: set[int] = set()
    for number in range(rounds):
        beaten = race.beaten(number, keep)
        assert keep not in beaten
        running = [each for each in running if each not in beaten]
        dropped |= beaten
        for condition in running:
            race.begin()
            total = 0
            for layer, ms in times[condition].items():
                ns = int(ms * 1e6 * draw.lognormvariate(0, noise))
                race.add(layer, FORWARD, 0, ns)
                total += ns
            race.close(condition, number, total + int(1e5 * draw.lognormvariate(0, noise)))
    assert len(running) >= 2
    return dropped


def test_counts_that_are_best_for_no_layer_leave_early() -> None:
    """GIVEN 1, 2, 4 and 8 threads: 1 is best for the narrow layer, 4 for the wide one, one does not care THEN 2 and 8
    leave."""
    times = [
        {NARROW: 1.0, WIDE: 8.0, ANY: 1.0},
        {NARROW: 1.2, WIDE: 4.5, ANY: 1.0},
        {NARROW: 1.5, WIDE: 3.0, ANY: 1.0},
        {NARROW: 3.0, WIDE: 4.0, ANY: 1.0},
    ]
    assert raced(times, 17, keep=2) == {1, 3}


def test_a_count_that_is_best_for_one_layer_stays() -> None:
    times = [{NARROW: 1.0, WIDE: 9.0}, {NARROW: 2.0, WIDE: 4.0}, {NARROW: 3.0, WIDE: 3.0}]
    assert not raced(times, 41, keep=2) & {0, 2}


def test_the_programs_own_count_stays_and_one_to_compare_it_with() -> None:
    times = [{WIDE: 1.0}, {WIDE: 2.0}, {WIDE: 4.0}]
    assert raced(times, 41, keep=2) == {1}
    assert raced(times[:2], 41, keep=1) == set()


@pytest.mark.parametrize("noise", [0.02, 0.3])
def test_equals_are_seldom_dropped(noise: float) -> None:
    times = [{NARROW: 1.0, WIDE: 4.0}] * 4
    assert sum(bool(raced(times, 21, noise, seed)) for seed in range(100)) <= 15


def trained(times: list[dict[int, float]], rounds: int = 8) -> Race:
    """A race in which every layer of `times` is called by an outer one, and is called back."""
    race, draw = Race(), random.Random(1)
    for number in range(rounds):
        for condition, layers in enumerate(times):
            race.begin()
            for direction in (FORWARD, BACKWARD):
                for layer, ms in layers.items():
                    race.add(layer, direction, 1, int(ms * 1e6 * draw.lognormvariate(0, 0.01)))
                race.add(OUTER, direction, 0, int(sum(layers.values()) * 1e6))
            race.close(condition, number, int(2 * sum(layers.values()) * 1e6))
    return race


OUTER = 9


FREE = {FORWARD: 0, BACKWARD: 0}


def test_the_best_for_each_layer_is_told_and_callers_are_none() -> None:
    times = [{NARROW: 1.0, WIDE: 9.0, ANY: 1.0, OUTER: 0.9}, {NARROW: 2.0, WIDE: 4.0, ANY: 1.0, OUTER: 0.3}]
    common, layers = trained(times).best_for_each(FREE)
    assert common == 1
    assert {key: best for key, best in layers.items() if key[0] != ANY} == {(NARROW, FORWARD): 0, (NARROW, BACKWARD): 0}


def test_where_most_layers_want_one_condition_the_others_are_told_apart() -> None:
    """GIVEN a step that is the fastest with 2 threads for one wide layer, and many narrow ones that want 1 WHEN a call
    with a count of its own costs something THEN the wide layer has it, unless the rest of the step wants 2 too."""
    narrow = dict.fromkeys(range(10, 20), 0.1), dict.fromkeys(range(10, 20), 0.12)
    times = [{**narrow[0], WIDE: 9.0}, {**narrow[1], WIDE: 4.0}]
    touch = {FORWARD: 5_000, BACKWARD: 5_000}
    assert trained(times).best_for_each(touch) == (0, {(WIDE, FORWARD): 1, (WIDE, BACKWARD): 1})

    times[0][OUTER], times[1][OUTER] = 0.4, 0.1  # of the caller's own
    common, layers = trained(times).best_for_each(touch)
    assert common == 1
    assert {layer for layer, _ in layers} == set(range(10, 20))


def test_what_saves_less_than_its_call_costs_is_left_alone() -> None:
    times = [{NARROW: 0.010, WIDE: 9.0}, {NARROW: 0.012, WIDE: 4.0}]
    assert (NARROW, FORWARD) in trained(times).best_for_each(FREE)[1]
    assert trained(times).best_for_each({FORWARD: 5_000, BACKWARD: 5_000}) == (1, {})
