"""Whether the rank and the phase that make the others wait are named: delays planted in data-parallel training.

    python benchmarks/delays.py [--json] [--clean 10]

A delay of a twentieth of a step and more is planted in each phase, of one rank or in turns, on 2 and on 4 ranks, as
sleeping and as computing; `right` where it is the first cause named. Runs without any delay are to name nobody;
`most_clean` is the largest share of a step by which a rank took longer than the others (lower bound) for a phase, by
being blocked and by computing, or in all phases alike, or was kept from its CPU for longer, which `NOTABLE` in
`tracekit/analysis/delays.py` must exceed; what is told of computing as undecided is listed as `undecided`.
"""

import argparse
import json
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from _side_by_side import TRACEKIT, progress

from tracekit.analysis import delays
from tracekit.analysis.clocks import aligned
from tracekit.analysis.meetings import find_meetings
from tracekit.run.reader import open_run

PROGRAM = str(Path(__file__).parent.parent / "tests" / "integration" / "programs" / "late_ranks.py")
STEPS, SHARE = 200, 0.06
PLANTED = ["loading", "forward", "backward", "optimizer", "communication"]


def torchrun(ranks: int, *flags: str) -> list[str]:
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
    return [*launcher, PROGRAM, "--steps", str(STEPS), *flags]


def step_ms(ranks: int) -> float:
    """The usual step without any delay."""
    return float(output_of(torchrun(ranks)).split()[-1])


def output_of(command: list[str]) -> str:
    """What it printed; where it fails that ends the benchmark, with what it said."""
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{shlex.join(command)}: exit code {done.returncode}\n{done.stderr}")
    return done.stdout


def recorded(ranks: int, folder: str, *flags: str) -> tuple[list[dict[str, Any]], dict[str, float]]:
    """The causes that are told, and by how much phases were longer at least, as shares of a step."""
    run = f"{folder}/run"
    output_of([*TRACEKIT, "record", "-q", "--force", "-o", run, "--", *torchrun(ranks, *flags)])
    report = json.loads(output_of([*TRACEKIT, "analyze", "--json", run]))
    causes = [each["evidence"] for each in report["findings"] if each["id"].startswith("delay.")]
    meetings, _ = aligned(next(find_meetings(open_run(run))))
    return causes, delays.most_by_chance(meetings, report["steps"]["median_ms"] * 1e6)


def parted(causes: list[dict[str, Any]]) -> dict[str, list[tuple[int, str]]]:
    """Rank and phase of the causes that are named, and of those that are undecided."""
    parts: dict[str, list[tuple[int, str]]] = {"named": [], "undecided": []}
    for each in causes:
        parts["undecided" if each["undecided"] else "named"].append((each["rank"], each["phase"]))
    return parts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--clean", type=int, default=10, help="runs without any delay, on 2 ranks and on 4")
    options = parser.parse_args()
    planted: list[dict[str, Any]] = []
    clean: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        for ranks in (2, 4):
            late_ms = SHARE * step_ms(ranks)
            for number, phase in enumerate(PLANTED):
                for late in (str(ranks - 1), "turns"):
                    busy = ["--busy"] * ((number + (late == "turns")) % 2)
                    flags = ["--phase", phase, "--late", late, "--ms", f"{late_ms:.3f}", *busy]
                    causes, _ = recorded(ranks, folder, *flags)
                    wanted = {ranks - 1} if late != "turns" else set(range(ranks))
                    told = parted(causes)
                    named = {rank for rank, named_phase in told["named"] if named_phase == phase}
                    right = bool(told["named"]) and told["named"][0][1] == phase and named == wanted
                    planted.append(
                        {"ranks": ranks, "phase": phase, "late": late, "busy": bool(busy), "right": right} | told
                    )
                    progress(f"{ranks} ranks, {phase} of {late}: {'right' if right else causes}")
            for _ in range(options.clean):
                causes, most = recorded(ranks, folder)
                clean.append({"ranks": ranks, **parted(causes), "most": most})
                progress(f"{ranks} ranks, clean: {clean[-1]}")
    found = {
        "planted": len(planted),
        "right": sum(each["right"] for each in planted),
        "clean": len(clean),
        "clean_named": sum(bool(each["named"]) for each in clean),
        "most_clean": {kind: max((each["most"][kind] for each in clean), default=None) for kind in delays.NOTABLE},
    }
    print(json.dumps({**found, "each": planted + clean}, indent=2) if options.json else found)


if __name__ == "__main__":
    main()
