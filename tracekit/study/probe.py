"""The probe: the command of a run again, for some seconds of its loop.

One run has not seen how storage and CPUs serve more workers than it had, and no model tells small gains. So the program
as it is takes turns with itself with what seems best and with what may be, and all are ended when they have been seen;
or, where they end too soon for that, they run one after the other, again and again.
"""

import math
import os
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from tracekit.advice import analyze
from tracekit.advice.loader_choice import PREFETCH
from tracekit.advice.loader_effects import why_no_workers
from tracekit.advice.loading import holds_for
from tracekit.analysis.loading import LoaderCosts, loader_costs
from tracekit.analysis.steps import find_steps
from tracekit.analysis.words import in_words, shell_line
from tracekit.models.loader_memory import fits, needed, what_is_not_known
from tracekit.models.loading import worker_counts
from tracekit.record.launch import words_to_run
from tracekit.record.machine import describe_cpu, thread_budget
from tracekit.run.folder import PROBE
from tracekit.run.manifest import Loader, Memory
from tracekit.run.probes import Probed, Sittings, clear_probe, save_sittings
from tracekit.run.reader import Run
from tracekit.settings.catalogue import Value
from tracekit.settings.file import Entry, write_settings
from tracekit.study.contenders import Cells, best_of, contenders, deep, is_certain, most_open_first, rivals_of
from tracekit.study.recording import Recording, StudyError
from tracekit.study.turns import Turns, alone, patience, refuse_foreign_numbers, take_turns

# All turns of all: more would tell more, and be more than a look.
_LASTS_S = 10.0
# A turn has a dozen batches: short turns meet the same machine (of 0.1 s they tell ratios to 3 % where those of 0.25 s
# tell them to 4 %). Where storage is waited for it is longer, as what was read while the others had theirs is in it: a
# dozen times what a batch waits, and no more than a quarter of a second for that. Of batches so long that each would
# have less than six turns, fewer, but no less than three. Where a program ends before six, or before 1.5 s, it is
# alone: what it makes while it is stopped tells nothing, and that would be most of it.
_SHORTEST_TURN_S, _LONGEST_FOR_READS_S = 0.1, 0.25
_BATCHES_PER_TURN, _FEWEST_BATCHES = 12, 3
_TURNS = 6
# Where so many others have their turns in half of the time, that is for a choice, the other half for what was chosen.
_CHOICE = 2
_LONG_TURN_S = _LASTS_S / 2 / _TURNS
_SHORTEST_LOOP_S = 1.5
# Of whole runs, which take long to begin, as many of each as fit into the same time.
_FEWEST_ROUNDS, _MOST_ROUNDS = 3, 6
_LIGHTLY = ["--collectors", "steps,loading", "--profile", "off"]


def probe(run: Run, say: Callable[[str], None]) -> None:
    """Record the run's command again, in its directory, into the folder `probe` of the run, as it is, with what seems
    best, with what would be best if storage answered many as fast as few, with the most and the fewest workers that may
    be as good as that, and with a number between; where nothing seems better, with as many workers as are ever advised
    and fit into memory. Then again as it is and with what seems best of these, and, where that is certain to gain, with
    those of all that may be as good, and with more batches ahead.

    Raises StudyError when there is no loader that may have workers, or when the command fails before its loop.
    """
    steps = find_steps(run)
    costs = {each.loader: each for each in loader_costs(run, steps)}
    budget = thread_budget(describe_cpu())
    counts = {loader: worker_counts(math.ceil(min(each.cpus, budget))) for loader, each in costs.items()}
    # Half of the memory for each of two, as all of them may have their workers at the same time.
    shares = {loader: _share(each, len(costs)) for loader, each in costs.items()}
    reasons = {loader: _why_not(each, counts[loader]) for loader, each in shares.items()}
    most = {
        loader: (max(count for count in counts[loader] if fits(each, count, PREFETCH)), PREFETCH)
        for loader, each in shares.items()
        if not reasons[loader]
    }
    if not most:
        why = "; ".join(f"{loader}: {reason}" for loader, reason in reasons.items()) or "no loader was seen"
        raise StudyError(f"{run.path}: there is nothing to probe: {why}")
    refuse_foreign_numbers()
    clear_probe(run.path)
    window = steps.window(steps.main) if steps.main is not None else None
    began_s = (window[0] - run.manifest.started_ns) / 1e9 if window else 0.0
    _Probing(run, costs, began_s, say, most).go()


def _why_not(costs: LoaderCosts, counts: Sequence[int]) -> str:
    """Why a probe would try no other number of workers of the loader; "" where it would."""
    settings = costs.settings
    reasons = {
        "how its batches are made was not seen": not costs.known,
        "where it was made was not seen": not settings.made,
        "what its data set gives hangs on the number of workers": settings.iterable,
        "it was made with other settings or samplers in turn": settings.varied,
        "a thread of its own reads it": costs.is_aside,
        "it is read outside of the steps": not costs.in_loop,
        "several iterators of it were in use at once": costs.at_once,
        f"the program asks it in turn with {costs.in_turn_with}": bool(costs.in_turn_with),
    }
    fixed = next((why for why, holds in reasons.items() if holds), "") or why_no_workers(settings)
    if fixed or any(count and fits(costs, count, PREFETCH) for count in counts):
        return fixed
    unknown = what_is_not_known(costs)
    return f"it is not known {unknown}" if unknown else "there is no memory for a worker"


def _share(costs: LoaderCosts, loaders: int) -> LoaderCosts:
    have = costs.memory.free, costs.memory.shared, costs.memory.files
    return replace(costs, memory=Memory(*(None if each is None else each // loaders for each in have)))


class _Probing:
    """The program as it is and with other settings, at the same time or one after the other."""

    def __init__(
        self, run: Run, costs: dict[str, LoaderCosts], began_s: float, say: Callable[[str], None], most: Cells
    ) -> None:
        self._run, self._costs, self._say, self._most = run, costs, say, most
        self._loaders = analyze(run).loaders
        self._folder = Path(os.path.abspath(run.path)) / PROBE
        self._command = shell_line(run.manifest.command)
        self._number = 0
        self._sittings: Sittings = []
        longest = max((costs[loader] for loader in most), key=lambda each: float((each.wait + each.gap).sum()))
        self._turn_s = turn_s(float((longest.wait + longest.gap).mean()), float(longest.blocked.mean()))
        self._patience_s = patience(began_s)

    def go(self) -> None:
        """Let all take turns; where they cannot run side by side, one with other settings runs alone, or, where they
        end soon, all do, again and again. Raises StudyError when the command fails."""
        others = contenders(self._loaders, self._most) or [self._most]
        if self._run.manifest.may_use_gpu:
            self._say("not side by side: what is stopped leaves its work to the GPU")
        elif min(self._whole_s(each)[1] for each in others) < max(_TURNS * self._turn_s, _SHORTEST_LOOP_S):
            self._say("not side by side: it would end before it had turns enough")
            if self._again_and_again(others):
                return
        elif beside := self._that_fit(others):
            try:
                self._in_turns(beside)
                return
            except (StudyError, TimeoutError) as error:
                self._say(f"side by side {error}")
        else:
            self._say("two of it and their workers may not fit into memory side by side")
        self._alone(others[:1])

    def _in_turns(self, others: list[Cells]) -> None:
        """First with as many as have turns enough in half of the time, where that is a choice; then with what seems
        best of these, and, where that is certain to gain, with those that may be as good. Raises StudyError or
        TimeoutError where the first fails."""
        at_once, in_half = (int(lasts_s / (_TURNS * self._turn_s)) - 1 for lasts_s in (_LASTS_S, _LASTS_S / 2))
        if in_half < _CHOICE or len(others) < _CHOICE:
            self._have_turns(others[: max(min(at_once, _CHOICE), 1)], _LASTS_S)
            return
        tried = others[:in_half]
        self._have_turns(tried, _LASTS_S / 2)
        try:
            loaders = analyze(self._run).loaders
            best = best_of(tried, loaders)
            rivals = rivals_of(best, [*others, deep(best, loaders)], loaders) if is_certain(best, loaders) else []
            self._have_turns(self._that_fit([best, *rivals])[:in_half], _LASTS_S / 2)
        except (StudyError, TimeoutError) as error:
            self._say(f"the second time {error}")

    def _have_turns(self, others: list[Cells], lasts_s: float) -> None:
        what = f"running {self._command} for up to {lasts_s:.0f} s of its loop in all"
        self._say(f"{what}, as it is and with {_in_words(others)}, in turns; then all are ended")
        with tempfile.TemporaryDirectory() as scratch:
            launches = [self._launch(cells, Path(scratch)) for cells in ({}, *others)]
            turns = take_turns(launches, [self._turn_s] * len(launches), self._patience_s, lasts_s)
        self._sittings.append(_probed(launches, turns))
        save_sittings(self._run.path, self._sittings)

    def _again_and_again(self, others: list[Cells]) -> bool:
        """Each to its end, one after the other. Every second round goes backwards, so that steady drift cancels. False
        where too few rounds fit into the time, by what is known or as one that does not end in it shows."""
        others, rounds = self._rounds(most_open_first(others, self._loaders))
        if not rounds:
            return False
        self._say(f"running {self._command} {rounds} times as it is and as often with {_in_words(others)}")
        with tempfile.TemporaryDirectory() as scratch:
            for number in range(rounds):
                launches = [self._launch(cells, Path(scratch)) for cells in ({}, *others)]
                order = range(len(launches))[:: -1 if number % 2 else 1]
                turns: dict[int, Turns] = {}
                for each in order:
                    turns[each] = self._to_its_end(launches[each], others)
                    if turns[each].was_ended:
                        self._say(f"after {_LASTS_S:.0f} s it is not through, so it is not run again and again")
                        self._sittings.clear()
                        return False
                self._sittings.append(_probed(launches, [turns[each] for each in range(len(launches))]))
        save_sittings(self._run.path, self._sittings)
        return True

    def _alone(self, others: list[Cells]) -> None:
        if not self._fit(others):
            raise StudyError(f"{self._command} with {_in_words(others)} may not fit into memory")
        what = f"running {self._command} for up to {_LASTS_S:.0f} s of its loop"
        self._say(f"{what} with {_in_words(others)}; then it is ended")
        with tempfile.TemporaryDirectory() as scratch:
            launch = self._launch(others[0], Path(scratch))
            turns = self._to_its_end(launch, others)
        save_sittings(self._run.path, [_probed([launch], [turns])])

    def _to_its_end(self, launch: Recording, tried: list[Cells]) -> Turns:
        """Or for as long as a probe lasts."""
        try:
            return alone(launch, self._patience_s, _LASTS_S)
        except TimeoutError as error:
            raise StudyError(f"{self._command} with {_in_words(tried)} does not work: {error}") from error

    def _rounds(self, others: list[Cells]) -> tuple[list[Cells], int]:
        """Of which others so many whole runs fit into the time, and each by itself into memory; 0 where too few do. The
        third is not worth as many starts of the program."""
        for tried in (others[:2], others[:1]):
            now_s = max(self._whole_s(each)[0] for each in tried)
            rounds = min(int(_LASTS_S / (now_s + sum(self._whole_s(each)[1] for each in tried))), _MOST_ROUNDS)
            if rounds >= _FEWEST_ROUNDS and all(self._fit([each]) for each in ({}, *tried)):
                return tried, rounds
        return others, 0

    def _that_fit(self, others: list[Cells]) -> list[Cells]:
        """Those that fit into memory beside the program as it is and those before them."""
        fitting: list[Cells] = []
        for each in others:
            if self._fit([{}, *fitting, each]):
                fitting.append(each)
        return fitting

    def _whole_s(self, other: Cells) -> tuple[float, float]:
        """How long its loop takes as it is, and may take with other settings, at least, s."""
        both_ms = [
            (loader.batches * loader.batch_ms, loader.batches * each.low_ms)
            for loader in self._loaders
            for each in loader.forecasts
            if other.get(loader.loader) == (each.num_workers, each.prefetch_factor)
        ]
        now_ms, other_ms = (max(each) for each in zip(*both_ms, strict=True)) if both_ms else (math.inf, math.inf)
        return now_ms / 1e3, other_ms / 1e3

    def _fit(self, conditions: list[Cells]) -> bool:
        """Whether so many runs at once fit into memory, each program taken to be as large as a worker."""
        ahead = processes = 0
        for loader, (workers, prefetch) in (cell for cells in conditions for cell in self._cells(cells).items()):
            shared, memory = needed(self._costs[loader], workers, prefetch)
            ahead += shared
            processes += memory + self._costs[loader].worker_bytes
        free = next(iter(self._costs.values())).memory
        return (free.shared is None or ahead <= free.shared) and (free.free is None or processes <= free.free)

    def _cells(self, cells: Cells) -> Cells:
        own = {
            loader: (each.settings.num_workers, each.settings.prefetch_factor or 0)
            for loader, each in self._costs.items()
        }
        return own | cells

    def _launch(self, cells: Cells, scratch: Path) -> Recording:
        self._number += 1
        path = self._folder / str(self._number)
        words = [*words_to_run("tracekit"), "record", "-q", "-o", str(path), "--condition", PROBE, *_LIGHTLY]
        settings = self._run.manifest.settings | _values(cells, self._run.manifest.loaders)
        if settings:
            file = scratch / f"{self._number}.toml"
            write_settings(file, [Entry(*each) for each in settings.items()], "A probe of loaders.")
            words += ["--settings", str(file)]
        directory = self._run.manifest.directory
        return Recording(
            PROBE, [*words, "--", *self._run.manifest.command], path, path,
            directory if os.path.isdir(directory) else None,
        )  # fmt: skip


def turn_s(batch_s: float, blocked_s: float) -> float:
    """How long a turn is, with batches that take so long, and wait so long for storage, s."""
    long_s = max(_LONG_TURN_S, _FEWEST_BATCHES * batch_s)
    for_reads_s = min(_BATCHES_PER_TURN * blocked_s, _LONGEST_FOR_READS_S)
    return max(_SHORTEST_TURN_S, for_reads_s, min(_BATCHES_PER_TURN * batch_s, long_s))


def _values(cells: Cells, facts: dict[str, Loader]) -> dict[str, Value]:
    values: dict[str, Value] = {}
    for loader, (workers, prefetch) in cells.items():
        values[f"loader.{loader}.num_workers"] = workers
        if workers:
            values[f"loader.{loader}.prefetch_factor"] = prefetch
    return values | holds_for(facts, values)


def _in_words(conditions: list[Cells]) -> str:
    return ", ".join(" or ".join(in_words(*cell) for cell in dict.fromkeys(cells.values())) for cells in conditions)


def _probed(launches: list[Recording], turns: list[Turns]) -> list[Probed]:
    """Raises StudyError for one that failed by itself."""
    for launch, each in zip(launches, turns, strict=True):
        if each.process.returncode and not each.was_ended:
            launch.opened(each.process.returncode)
    return [Probed(launch.run.name, each.stops) for launch, each in zip(launches, turns, strict=True)]
