"""The commands of the loading benchmark: programs that take turns, round by round, and what they print."""

import json
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray

Times = NDArray[np.float64]

RESAMPLES = 1000


def in_turn(commands: list[list[str]], order: list[int], times: int, seconds: float = 0.0) -> list[dict[str, Times]]:
    """What some commands have found in their rounds, each a process of its own, whose rounds come in this order: so
    many times, and until so much time has passed. Whose turn it is not stands still: what records a program would go on
    writing down its turn, which made the start of workers beside it take 10 % longer."""
    with ExitStack() as stack:
        processes = [stack.enter_context(_waiting([*command, "--in-turn"])) for command in commands]
        found: list[list[str]] = [[] for _ in processes]
        for process in processes:  # the start of one is not to disturb the rounds of another
            assert process.stdout
            process.stdout.readline()
            process.send_signal(signal.SIGSTOP)
        began, done = time.monotonic(), 0
        while done < times or time.monotonic() - began < seconds:
            for at in order:
                process = processes[at]
                assert process.stdin and process.stdout
                process.send_signal(signal.SIGCONT)
                process.stdin.write("\n")
                process.stdin.flush()
                found[at].append(process.stdout.readline())
                process.send_signal(signal.SIGSTOP)
            done += 1
    return [by_cell(lines) for lines in found]


def by_cell(lines: list[str]) -> dict[str, Times]:
    """Seconds per batch and of waiting, of each cell, by round: (rounds, 2)."""
    rounds = [json.loads(line) for line in lines]
    return {cell: np.array([found[cell] for found in rounds]) for cell in rounds[0]}


def unsure(by_round: Times) -> float:
    """By how much the median over rounds is unsure (95 %)."""
    picks = np.random.default_rng(0).integers(len(by_round), size=(RESAMPLES, len(by_round)))
    return float(1.96 * np.median(by_round[picks], axis=1).std())


def json_of(command: list[str]) -> dict[str, Any]:
    return json_and_messages_of(command)[0]


def json_and_messages_of(command: list[str]) -> tuple[dict[str, Any], list[str]]:
    """What a command prints, and the lines that it says beside it."""
    ran = _run(command)
    return json.loads(ran.stdout), ran.stderr.splitlines()


def output_of(command: list[str]) -> str:
    return _run(command).stdout


def _run(command: list[str]) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(command, check=True, capture_output=True, text=True, stdin=subprocess.DEVNULL)


@contextmanager
def _waiting(command: list[str]) -> "Iterator[subprocess.Popen[str]]":
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.send_signal(signal.SIGCONT)
