"""Whether noise has the dose that was asked for, ends when it is to, and is judged and blamed right.

    python benchmarks/noise.py [--json] [--only doses edges killed plantings mixes study] [--budget 80]

`doses`: each kind at three levels within this machine's reach, against a measurement that knows nothing of it: the
CPU time of its processes by the kernel, the sectors of the disk, the bytes of the interface, the files that the kernel
says were made (inotify); of copies, how often a mark that is put into the memory of their process is overwritten, times
the size of what is copied, read and written, as STREAM counts; of memory held, what the kernel calls resident.
`edges`: how long it takes from the order until there is noise, and until there is none, s. `killed`: how many of twenty
supervisors left something running. `plantings`: a program on one CPU and noise beside it, whose phase and resource have
to be blamed, with `--budget` seconds each; and noise that has to do nothing; where root, also two ranks on emulated
hosts (network namespaces, a link limited by `tc tbf`) and noise on their link. `mixes`: two kinds at once,
predicted from each by itself, and measured. `study`: the default study of samples/lstm_lm.py.
"""

import argparse
import json
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from _noise_doses import CPUS, doses
from _side_by_side import TRACEKIT, progress

from tracekit.noise.generators import Generators
from tracekit.noise.reach import reach
from tracekit.noise.spec import KINDS, dose_text, parse_all

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "tests"))
from network_hosts import NetworkHost, network_hosts  # noqa: E402

PROGRAM = [sys.executable, str(ROOT / "tests" / "integration" / "programs" / "beside_noise.py")]
SAMPLE = [sys.executable, str(ROOT / "samples" / "lstm_lm.py")]
LINK_MBIT = 500


def edges() -> dict[str, dict[str, float]]:
    """From an order until it shows, s, the longest of ten."""
    found = {}
    with tempfile.TemporaryDirectory(dir=Path.cwd()) as folder:
        for spec in parse_all(["cpu=0.3", "memory=500MB/s", "cache=500MB/s", f"disk=20MB/s@{folder}",
                               f"metadata=3000/s@{folder}", "network=400Mb/s"]):  # fmt: skip
            noise = Generators([spec])
            on, off = [], []
            for _ in range(10):
                time.sleep(0.2)
                before = noise.done()[spec.label]
                noise.set([spec.label])
                ordered = time.monotonic()
                while noise.done()[spec.label] == before:
                    time.sleep(0.0005)
                on.append(time.monotonic() - ordered)
                time.sleep(0.3)
                noise.set([])
                ordered = last = time.monotonic()
                done = noise.work()
                while time.monotonic() - last < 0.1:
                    if (now := noise.work()) != done:
                        done, last = now, time.monotonic()
                    time.sleep(0.0005)
                off.append(last - ordered)
            noise.close()
            found[spec.kind.name] = {"on": max(on), "off": max(off)}
            progress(f"{spec.label}: on within {max(on) * 1e3:.1f} ms, off within {max(off) * 1e3:.1f} ms")
    return found


def killed() -> int:
    """How many of twenty supervisors that were killed left a process or a file."""
    left = 0
    with tempfile.TemporaryDirectory(dir=Path.cwd()) as folder:
        specs = ["cpu=0.2", "memory=100MB/s", f"disk=5MB/s@{folder}", f"metadata=300/s@{folder}", "network=50Mb/s"]
        for number in range(20):
            run = f"{folder}/run"
            words = [*TRACEKIT, "record", "-q", "--force", "-o", run]
            words += [word for spec in specs for word in ("--noise", spec)]
            supervisor = subprocess.Popen([*words, "--", "sleep", "60"], process_group=0)
            time.sleep(3 + 0.05 * number)
            children = psutil.Process(supervisor.pid).children(recursive=True)
            noises = [child for child in children if "tracekit.noise.generator" in child.cmdline()]
            supervisor.send_signal(signal.SIGKILL)
            supervisor.wait()
            _, there = psutil.wait_procs(noises, timeout=2)
            alive = [child for child in there if runs(child)]
            files = [each for each in Path(folder).iterdir() if each.name.startswith("tracekit-noise-")]
            left += bool(alive) or bool(files) or len(noises) != len(specs)
            progress(f"{number}: {len(noises)} noises, {len(alive)} alive afterwards, {len(files)} files")
            for child in children:
                if child not in noises:
                    with suppress(psutil.NoSuchProcess):
                        child.kill()
    return left


def runs(process: psutil.Process) -> bool:
    """Whether it does: one that has ended stays in the list until the first process of the machine takes note."""
    with suppress(psutil.NoSuchProcess):
        return bool(process.status() != psutil.STATUS_ZOMBIE)
    return False


def study(noises: list[str], command: list[str], budget_s: float, folder: str, on: list[str]) -> dict[str, Any]:
    """A study of noises beside a command, `on` a host."""
    flags = [word for noise in noises for word in ("--noise", noise)]
    words = [*on, *TRACEKIT, "study", "noise", *flags, "--budget", f"{budget_s:.0f}s", "--json", "-o", folder]
    done = subprocess.run([*words, "--", *command], capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(done.stderr)
    return dict(json.loads(done.stdout))


@contextmanager
def two_hosts() -> Iterator[list[NetworkHost]]:
    """Two emulated hosts with a slow link; none where that is not allowed."""
    with ExitStack() as stack:
        hosts: list[NetworkHost] = []
        try:
            hosts = stack.enter_context(network_hosts(2))
        except (OSError, subprocess.CalledProcessError) as error:
            progress(f"no noise on networks: {error}")
        for host in hosts:
            host.limited_to(LINK_MBIT)
        yield hosts


def on_both(hosts: list[NetworkHost]) -> list[str]:
    """A rank on each host and a CPU of its own, started on the first."""
    ranks = []
    for number, (host, cpu) in enumerate(zip(hosts, (CPUS[0], CPUS[-1]), strict=True)):
        words = ["taskset", "-c", str(cpu), sys.executable, "-m", "torch.distributed.run", "--nnodes", "2"]
        words += ["--nproc-per-node", "1", "--node-rank", str(number), "--master-addr", hosts[0].address]
        words += ["--master-port", "29571", *PROGRAM[1:], "--steps", "600", "--width", "256"]
        ranks.append(shlex.join(["env", f"GLOO_SOCKET_IFNAME={host.interface}", *words]))
    other = shlex.join(hosts[1].on_it(["sh", "-c", ranks[1]]))
    return ["sh", "-c", f"{other} > /dev/null 2>&1 & {ranks[0]}; code=$?; wait; exit $code"]


def plantings(budget_s: float) -> list[dict[str, Any]]:
    """Noise of which the harm is known, and whether the verdict, the phase and the resource are right."""
    first, last = CPUS[0], CPUS[-1]
    pinned = ["taskset", "-c", str(first), *PROGRAM]
    found = []
    with tempfile.TemporaryDirectory(dir=Path.cwd()) as folder, two_hosts() as hosts:
        moved = reach("memory", f"@{last}")
        copies, half = (dose_text(KINDS["memory"], share * moved) for share in (1, 0.6))
        computing = {"forward", "backward", "optimizer", "other"}
        busy = [*pinned, "--steps", "6000"]
        streaming = [*pinned, "--steps", "200", "--streams", "48"]
        reading = [*pinned, "--steps", "3000", "--batch", "2", "--width", "64", "--read", folder]
        cases = [
            ("nothing", f"metadata=30/s@{folder}@{last}", busy, set[str](), ""),
            ("other CPU", f"cpu=0.5@{last}", busy, set[str](), ""),
            ("same CPU", f"cpu=0.5@{first}", busy, computing, "cpu"),
            ("same CPU, little", f"cpu=0.15@{first}", busy, computing, "cpu"),
            ("same CPU, busy", f"busy=0.3@{first}", busy, computing, "cpu"),
            ("memory", f"memory={copies}@{last}", streaming, computing, "memory"),
            ("memory, less", f"memory={half}@{last}", streaming, computing, "memory"),
            ("disk", f"disk=1GB/s@{folder}@{last}", reading, {"loading"}, "disk"),
            ("disk, less", f"disk=600MB/s@{folder}@{last}", reading, {"loading"}, "disk"),
        ]
        if hosts:
            noise = f"network={0.6 * LINK_MBIT:.0f}Mb/s@{hosts[0].interface}@{hosts[1].address}"
            cases.append(("network", noise, on_both(hosts), {"communication"}, "network"))
        for name, noise, command, phases, resource in cases:
            on = hosts[0].on_it([]) if name == "network" else []
            with tempfile.TemporaryDirectory() as scratch:
                told = study([noise], command, budget_s, f"{scratch}/study", on)
            (effect,) = told["noise"]
            blamed = [(each["phase"], each["resource"], round(each["share"], 2)) for each in effect["blame"][:3]]
            most = effect["blame"][0] if effect["blame"] else {"phase": "", "resource": ""}
            right = most["phase"] in phases and most["resource"] == resource if phases else effect["verdict"] == "safe"
            found.append({"planted": name, "noise": noise, "verdict": effect["verdict"], "blamed": blamed,
                          "slowdown": effect["slowdown"], "right": right, "floor": told["floor"]})  # fmt: skip
            progress(f"{name}: {found[-1]}")
    return found


def mixes(budget_s: float) -> list[dict[str, Any]]:
    """Two kinds at once beside a program on one CPU: the slowdown that was predicted, and the one that was seen."""
    found = []
    first, last = CPUS[0], CPUS[-1]
    memory = dose_text(KINDS["memory"], reach("memory", f"@{last}") / 2)
    pairs = [
        (f"memory={memory}@{last}", f"busy=0.2@{first}"),
        (f"memory={memory}@{last}", "network=400Mb/s"),
        (f"busy=0.2@{first}", "network=400Mb/s"),
    ]
    command = ["taskset", "-c", str(first), *PROGRAM, "--steps", "600", "--streams", "32"]
    for pair in pairs:
        with tempfile.TemporaryDirectory() as scratch:
            run = f"{scratch}/run"
            words = [word for noise in pair for word in ("--noise", noise)]
            one, other = pair
            pattern = " ".join(f"off:400ms {each}:400ms" for each in (one, "+".join(pair), other))
            effects: dict[str, list[float]] = {}
            deadline = time.monotonic() + budget_s
            while time.monotonic() < deadline:
                subprocess.run([*TRACEKIT, "record", "-q", "--force", "-o", run, *words, "--pattern", pattern,
                                "--profile", "off", "--", *command], check=True, capture_output=True)  # fmt: skip
                told = subprocess.run([*TRACEKIT, "analyze", "--json", run], check=True, capture_output=True, text=True)
                for effect in json.loads(told.stdout)["noise"]:
                    effects.setdefault(effect["noise"], []).append(effect["slowdown"]["expected"])
        slow = {name: float(np.median(each)) for name, each in effects.items()}
        mixed = next(name for name in slow if " + " in name)
        predicted = np.prod([1 + slow[part] for part in mixed.split(" + ")]) - 1
        found.append({"mix": mixed, "predicted": float(predicted), "measured": slow[mixed], "alone": slow})
        progress(f"{mixed}: predicted {predicted:+.1%}, measured {slow[mixed]:+.1%}")
    return found


def default_study() -> dict[str, Any]:
    """The default study of the sample: how long it takes, and what it says."""
    with tempfile.TemporaryDirectory() as scratch:
        began = time.monotonic()
        words = [*TRACEKIT, "study", "noise", "--json", "-o", f"{scratch}/study", "--", *SAMPLE]
        done = subprocess.run(words, capture_output=True, text=True)
        if done.returncode:
            raise SystemExit(done.stderr)
        told = json.loads(done.stdout)
    verdicts = {each["noise"]: each["verdict"] for each in told["noise"]}
    kinds = sorted({noise.partition("=")[0] for noise in verdicts})
    return {"seconds": time.monotonic() - began, "verdicts": verdicts, "kinds": kinds, "advice": told["advice"]}


PARTS: dict[str, Callable[[float], Any]] = {
    "doses": lambda budget_s: doses(),
    "edges": lambda budget_s: edges(),
    "killed": lambda budget_s: {"left_something_of_20": killed()},
    "plantings": plantings,
    "mixes": mixes,
    "study": lambda budget_s: default_study(),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--only", nargs="+", choices=list(PARTS), default=list(PARTS))
    parser.add_argument("--budget", type=float, default=80.0, help="seconds for each planting and mix")
    options = parser.parse_args()
    found = {name: PARTS[name](options.budget) for name in options.only}
    print(json.dumps(found, indent=2) if options.json else found)


if __name__ == "__main__":
    main()
