"""What is seen of data loaders, with real workers."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from recording import PROGRAMS, TRACEKIT, comparable, plain, record, reported

from tracekit.advice import analyze
from tracekit.analysis.batches import made_batches
from tracekit.analysis.loading import loader_costs
from tracekit.analysis.steps import find_steps
from tracekit.run.reader import open_run

PROGRAM = """
import sys, time, torch

class Uneven(torch.utils.data.Dataset):
    def __len__(self):
        return 24
    def __getitem__(self, index):
        if index // 2 == 2:  # a batch that takes longer than all others together
            time.sleep(0.5)
        return torch.full((3,), float(index // 2))

if __name__ == "__main__":
    for workers, in_order in ((0, True), (1, True), (2, True), (3, True), (2, False)):
        loader = torch.utils.data.DataLoader(Uneven(), batch_size=2, num_workers=workers, in_order=in_order)
        print(*(int(batch[0, 0]) for batch in loader))
"""


def test_each_batch_names_the_worker_that_made_it(tmp_path: Path) -> None:
    """Torch hands batches to the workers in turn, here the data say which batch it is."""
    (tmp_path / "program.py").write_text(PROGRAM)
    done = record([sys.executable, str(tmp_path / "program.py")], tmp_path / "run")
    batches = done.run.table("batches").sort_values(["epoch", "index"])
    made = [[int(word) for word in line.split()] for line in done.out.splitlines()]
    by_worker = [part["worker"].tolist() for _, part in batches.groupby("epoch")]
    for workers, numbers, found in zip((0, 1, 2, 3), made, by_worker, strict=False):
        assert numbers == list(range(12))
        assert found == [number % workers if workers else -1 for number in numbers]
    took = batches["duration_ns"] >= batches["taking_ns"]
    assert took.all() and (batches["taking_ns"][batches["worker"] < 0] == -1).all()
    # Known of all that the program took when it wanted them: of one worker's each, of more workers' the slow one.
    assert (batches["taking_ns"][batches["epoch"] == 1] > 0).all()
    assert (batches["taking_ns"][(batches["index"] == 2) & batches["epoch"].isin((2, 3))] > 0).all()
    # Not of those that had come while the program waited for the slow one.
    assert (batches["taking_ns"][(batches["index"] == 3) & batches["epoch"].isin((2, 3))] == -1).all()
    # In any order: the worker that is held up has none of the last ones.
    assert made[4] != sorted(made[4]) and len(by_worker) == 5
    assert by_worker[4][:2] == [number % 2 for number in made[4][:2]] and set(by_worker[4]) == {0, 1}


TEAMWORK = """
import hashlib, sys, torch

class Half(torch.utils.data.Dataset):  # half of its time torch computes, the other half only Python does
    def __len__(self):
        return 400
    def __getitem__(self, index):
        torch.ones(1_000_000).exp_().sum()
        hashlib.sha256(bytes(1_000_000))
        return index

torch.set_num_threads(int(sys.argv[1]))
for epoch in range(2):
    for _ in torch.utils.data.DataLoader(Half(), batch_size=8):
        pass
"""


@pytest.mark.long
@pytest.mark.alone
def test_torch_may_need_longer_in_a_worker_than_with_the_threads_of_the_program(tmp_path: Path) -> None:
    """GIVEN samples for which torch computes some of the time WHEN it has two threads THEN one, as a worker has it, may
    take longer, but not twice as long for all; with one thread nothing changes."""
    (tmp_path / "program.py").write_text(TEAMWORK)
    for threads in (1, 2):
        done = record([sys.executable, str(tmp_path / "program.py"), str(threads)], tmp_path / f"run{threads}")
        (costs,) = loader_costs(done.run, find_steps(done.run))
        assert costs.alone == 1 if threads == 1 else 1.1 < costs.alone < 1.95


FAILS = """
import torch

class Fails(torch.utils.data.Dataset):
    def __len__(self):
        return 8
    def __getitem__(self, index):
        if index == 5:
            raise ValueError("no five")
        return torch.zeros(2)

if __name__ == "__main__":
    for _ in torch.utils.data.DataLoader(Fails(), num_workers=1):
        pass
"""


WITH_BLAS = """
import sys, numpy as np, torch
from torch.utils.data import DataLoader, Dataset
class Products(Dataset):
    def __len__(self): return 96
    def __getitem__(self, index):
        matrix = np.random.default_rng(index).random((400, 400))
        for _ in range(4): matrix = matrix @ matrix / 400
        return torch.tensor(matrix[0, 0])
torch.set_num_threads(1)
for batch in DataLoader(Products(), 8, num_workers=int(sys.argv[1])):
    pass
"""


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="a team needs CPUs")
@pytest.mark.long
@pytest.mark.parametrize("workers", [0, 1])
def test_threads_of_libraries_are_seen_in_whoever_makes_batches(workers: int, tmp_path: Path) -> None:
    """GIVEN samples that NumPy multiplies with two threads THEN on two CPUs more workers are not advised; with one
    there is no team."""
    seen = {}
    for threads in (1, 2):
        folder = tmp_path / f"run{threads}"
        command = ["env", f"OPENBLAS_NUM_THREADS={threads}", sys.executable, "-c", WITH_BLAS, str(workers)]
        done = record(command, folder, "--overhead", "50")
        assert done.code == 0, done.err
        (costs,) = loader_costs(done.run, find_steps(done.run))
        seen[threads] = costs.maker_cpus
        if threads == costs.cpus == 2:
            told = reported(done.run)
            assert not [each for each in told["settings"] if each["name"].endswith("num_workers")]
    assert seen[1] < 1.3 < seen[2]


SHORT_EPOCHS = """
from torch.utils.data import DataLoader
for epoch in range(30):
    for batch in DataLoader(range(2048), 512, num_workers=1):
        pass
"""


def test_workers_of_short_epochs_are_looked_at_no_more_than_recording_may_cost(tmp_path: Path) -> None:
    """GIVEN 30 workers, each of which lives for some ms WHEN all are recorded THEN the first ones are looked at
    closely, and of the rest few."""
    done = record([sys.executable, "-c", SHORT_EPOCHS], tmp_path / "run")
    assert done.code == 0, done.err
    looked_at = done.run.table("samples")["process"].nunique()
    assert done.run.table("fetches")["process"].nunique() == 30 and 4 <= looked_at <= 15


@pytest.mark.parametrize("workers", [pytest.param(0, marks=pytest.mark.long), 2])
def test_what_workers_and_samplers_fork_is_no_worker(workers: int, tmp_path: Path) -> None:
    """GIVEN a sampler and a sample that each fork a helper, and samples read past `open` WHEN recorded THEN the program
    prints the same, just the workers are called so, and that their reads are missing is said."""
    command = [sys.executable, str(PROGRAMS / "forking_loaders.py"), str(workers)]
    without, done = plain(command), record(command, tmp_path / "run", "--overhead", "50")
    assert (done.code, done.out, done.err) == (0, without.stdout, without.stderr)
    roles = done.run.table("processes")["role"].value_counts().to_dict()
    assert roles == {"main": 1, "helper": 5} | {f"loader worker {each}": 2 for each in range(workers)}
    assert [note.what for note in done.run.missing if "native code" in note.why]


@pytest.mark.long
def test_what_fails_in_a_worker_is_worded_as_without_us(tmp_path: Path) -> None:
    """Torch words it in the worker, with the traceback there; its own lines in the program vary with who is first."""
    (tmp_path / "program.py").write_text(FAILS)
    command = [sys.executable, str(tmp_path / "program.py")]
    without, recorded = plain(command), record(command, tmp_path / "run")
    inside = "Original Traceback"
    assert recorded.code == without.returncode == 1
    assert recorded.err.partition(inside)[2] == without.stderr.partition(inside)[2]
    assert "no five" in recorded.err and "tracekit" not in recorded.err.partition(inside)[2]


SLEEPS = """
import sys, time, torch
from torch.utils.data import DataLoader, Dataset

class Sleeps(Dataset):
    def __len__(self):
        return 12
    def __getitem__(self, index):
        if index % 3 == 0:
            time.sleep(0.03)
        else:
            end = time.thread_time() + 0.03
            while time.thread_time() < end:
                pass
        return torch.zeros(5)

if __name__ == "__main__":
    workers, persistent, method = int(sys.argv[1]), sys.argv[2] == "persistent", sys.argv[3]
    def made():
        return DataLoader(
            Sleeps(), batch_size=3, num_workers=workers, persistent_workers=persistent,
            multiprocessing_context=method if workers else None,
        )
    loader = made()
    for epoch in range(2):
        for batch in loader:
            pass
"""


@pytest.mark.parametrize(
    ("workers", "persistent", "method"),
    [
        pytest.param(0, "", "fork", marks=pytest.mark.long),
        (2, "", "fork"),
        pytest.param(2, "persistent", "fork", marks=pytest.mark.long),
        pytest.param(2, "", "spawn", marks=pytest.mark.long),
        pytest.param(2, "persistent", "forkserver", marks=pytest.mark.long),
    ],
)
def test_what_a_batch_costs_is_known_where_it_is_made(
    workers: int, persistent: str, method: str, tmp_path: Path
) -> None:
    """A third of the samples sleep for 30 ms, the others compute for as long."""
    (tmp_path / "program.py").write_text(SLEEPS)
    done = record(
        [sys.executable, str(tmp_path / "program.py"), str(workers), persistent, method], tmp_path / "run",
        "--overhead", "10",
    )  # fmt: skip
    assert done.code == 0, done.err
    run = done.run
    batches, samples = run.table("batches"), run.table("samples")
    made = made_batches(run, 0)
    assert len(batches) == len(made) == 8 and (batches["bytes"] == 3 * 5 * 4).all()
    assert (made["samples"] == 3).all() and made["maker"].nunique() == max(1, workers * (1 if persistent else 2))
    assert made["cpu_ns"].between(55e6, 80e6).all()
    assert (made["made_ns"] <= made["received_ns"]).all() and (made["made_ns"] >= made["made_start_ns"] + 85e6).all()
    assert set(samples["index"]) == set(range(12))
    sleeping = samples["index"] % 3 == 0
    assert samples["cpu_ns"][sleeping].median() < 10e6 and samples["cpu_ns"][~sleeping].median() > 25e6
    assert (samples["duration_ns"] > 25e6).all()
    loader = run.manifest.loaders["loader"]
    assert (loader.num_workers, loader.batch_size, loader.persistent_workers) == (workers, 3, bool(persistent))
    assert loader.place == "program.py:20" and (loader.start_method == method or not workers)
    assert loader.sampler == "SequentialSampler" and not loader.iterable
    told = [each.evidence["start_method"] for each in analyze(run).findings if each.id == "loading.start_method"]
    assert told == ([] if method == "fork" else [method])


def test_loaders_that_go_wrong_go_wrong_as_without_us(tmp_path: Path) -> None:
    """GIVEN workers that are killed or raise, loaders that are left, lie or never end THEN the program sees the same,
    what the killed worker had recorded is kept, and the run can be analyzed."""
    command = [sys.executable, str(PROGRAMS / "hostile_loaders.py")]
    without, done = plain(command), record(command, tmp_path / "run")
    assert (done.code, done.out) == (without.returncode, without.stdout) and done.code == 0
    assert not [note for note in done.run.missing if "switched itself off" in note.why]
    # Of the first two workers, one made samples 2 3 and no other, the other one 0 1, and 4 5, if there was time.
    first = done.run.sql(
        "SELECT processes.worker, count(*) AS made FROM fetches JOIN processes USING (process) "
        "WHERE process IN (SELECT process FROM processes WHERE worker >= 0 ORDER BY start_ns LIMIT 2) "
        "GROUP BY ALL ORDER BY worker"
    )
    assert dict(first.itertuples(index=False))[1] == 1
    assert "loaders" in reported(done.run)


def test_who_looks_closely_sees_what_is_there_without_us(tmp_path: Path) -> None:
    """GIVEN programs with their own `open`, samplers that own files, wrapped clients, warnings that name a line WHEN
    recorded THEN they print the same, and no collector has given up."""
    command = [sys.executable, str(PROGRAMS / "touchy_loaders.py")]
    without, done = plain(command), record(command, tmp_path / "run")
    assert (done.code, done.out, comparable(done.err)) == (0, without.stdout, comparable(without.stderr))
    assert without.stderr.count("touchy_loaders.py") >= 1
    assert not [note for note in done.run.missing if "switched itself off" in note.why]


SMALL = 'mount -t tmpfs -o size=256k none /dev/shm && exec "$@"'
WITHOUT_SHARED_MEMORY = ["unshare", "--mount", "sh", "-c", SMALL, "sh"]
MUCH_TO_SHARE = """
import sys, torch
class Large(torch.utils.data.Dataset):
    def __len__(self): return 4
    def __getitem__(self, index): return torch.full((1 << 18,), float(index))
if __name__ == "__main__":
    loader = torch.utils.data.DataLoader(Large(), batch_size=1, num_workers=int(sys.argv[1]))
    try:
        print([batch.sum().item() for batch in loader])
    except RuntimeError as error:
        print(type(error).__name__)
"""


@pytest.mark.skipif(
    subprocess.run([*WITHOUT_SHARED_MEMORY, "true"], capture_output=True, check=False).returncode != 0,
    reason="this machine lets nobody mount anything over /dev/shm",
)
@pytest.mark.parametrize("workers", [pytest.param(0, marks=pytest.mark.long), 1])
def test_without_shared_memory_a_loader_does_as_without_us(workers: int, tmp_path: Path) -> None:
    """GIVEN a /dev/shm that holds no batch WHEN recorded THEN what works without workers works, workers fail as ever,
    and none is recommended."""
    (tmp_path / "program.py").write_text(MUCH_TO_SHARE)
    program = [sys.executable, str(tmp_path / "program.py"), str(workers)]
    without = plain([*WITHOUT_SHARED_MEMORY, *program])
    done = plain([*WITHOUT_SHARED_MEMORY, *TRACEKIT, "record", "-q", "-o", str(tmp_path / "run"), "--", *program])
    assert (done.returncode, done.stdout) == (without.returncode, without.stdout)
    assert ("RuntimeError" in done.stdout) == (workers > 0)
    found = reported(open_run(tmp_path / "run"))
    assert not [each for each in found["settings"] if each["name"].endswith("num_workers")]
    assert {each["num_workers"] for loader in found["loaders"] for each in loader["forecasts"]} <= {0, workers}


NESTED = """
import time
from torch.utils.data import DataLoader

class Outer:
    def __len__(self):
        return 16
    def __getitem__(self, index):
        time.sleep(0.02)
        return sum(batch.sum() for batch in DataLoader(range(4), 2)) + index

if __name__ == "__main__":
    for workers in (0, 2):
        for batch in DataLoader(Outer(), 2, num_workers=workers):
            pass
"""


def test_what_a_loader_inside_a_data_set_takes_belongs_to_the_sample(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(NESTED)
    done = record([sys.executable, str(tmp_path / "program.py")], tmp_path / "run", "--overhead", "10")
    assert done.code == 0, done.err
    made = made_batches(done.run, 0)
    outer = made[made["loader"] == "loader"]
    assert len(outer) == 16 and ((outer["made_ns"] - outer["made_start_ns"]) >= 40e6).all()


SEVERAL = """
from torch.utils.data import DataLoader, IterableDataset

class Stream(IterableDataset):
    def __iter__(self):
        return iter(range(8))

for epoch in range(2):
    loaders = {name: DataLoader(range(size), 4, shuffle=name == "train") for name, size in (("train", 16), ("val", 8))}
    for name in loaders:
        for batch in loaders[name]:
            pass
for epoch in range(2):
    for batch in DataLoader(Stream(), 4, pin_memory=0):
        pass
"""


def test_loaders_that_one_line_makes_are_told_apart_and_one_odd_fact_costs_no_other(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(SEVERAL)
    done = record([sys.executable, str(tmp_path / "program.py")], tmp_path / "run")
    assert done.code == 0, done.err
    loaders = done.run.manifest.loaders
    assert {name: each.sampler for name, each in loaders.items()} == {
        "loader": "RandomSampler", "loader#2": "SequentialSampler", "loader#3": "_InfiniteConstantSampler",
    }  # fmt: skip
    assert [each.made for each in loaders.values()] == [2, 2, 2]
    assert loaders["loader#3"].iterable and loaders["loader#3"].pin_memory is False


def test_of_a_huge_batch_some_samples_are_timed(tmp_path: Path) -> None:
    program = (
        "from torch.utils.data import DataLoader\n"
        "for batch in DataLoader(range(50_000), 50_000): print(len(batch), int(batch.sum()))"
    )
    done = record([sys.executable, "-c", program], tmp_path / "run")
    assert (done.code, done.out) == (0, "50000 1249975000\n")
    assert 1000 <= len(done.run.table("samples")) < 10_000
    assert (done.run.table("fetches")["samples"] == 50_000).all()


ODD_KINDS = """
import queue, sys, threading, time, torch
from torch.utils.data import DataLoader, random_split

class Slow:
    def __len__(self):
        return 32
    def __getitem__(self, index):
        time.sleep(0.002)
        return torch.zeros(4)

class Outer(Slow):
    def __getitem__(self, index):
        return sum(DataLoader(Slow(), 4, num_workers=1))[0]

def batches(kind):
    if kind == "pairs":
        loader = DataLoader(Slow(), 4, num_workers=2)
        yield from (one + other for one, other in zip(loader, loader))
    elif kind == "nested":
        yield from DataLoader(Outer(), 4, sampler=range(24))
    elif kind == "subset":
        yield from DataLoader(random_split(Slow(), [24, 8])[0], 4)
    else:
        for number in range(2):
            workers, shuffle = number if kind == "workers" else 0, kind == "phases" and not number
            yield from DataLoader(Slow(), 4, num_workers=workers, shuffle=shuffle)

def ahead(batches):
    ready = queue.Queue(4)
    threading.Thread(target=lambda: [ready.put(each) for each in [*batches, None]]).start()
    return iter(ready.get, None)

if __name__ == "__main__":
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    kind = sys.argv[1]
    if kind == "subset":
        torch.set_default_device("cpu")  # a mode, which sees what is done with tensors
    for batch in ahead(batches(kind)) if kind == "aside" else batches(kind):
        model(batch).sum().backward()
        optimizer.step()
"""


@pytest.mark.parametrize(
    ("kind", "why"),
    [
        pytest.param("workers", "was made with other settings or samplers", marks=pytest.mark.long),
        pytest.param("phases", "was made with other settings or samplers", marks=pytest.mark.long),
        pytest.param("pairs", "Several iterators of loader were in use at once", marks=pytest.mark.long),
        ("aside", "thread of its own"),
    ],
)
def test_loaders_that_no_model_is_about_are_left_out_and_that_is_said(kind: str, why: str, tmp_path: Path) -> None:
    """GIVEN a loader that is made anew with other workers, or another sampler, or has two iterators at once, or that
    another thread reads ahead THEN nothing is told of its waiting, nor recommended for it."""
    (tmp_path / "program.py").write_text(ODD_KINDS)
    done = record([sys.executable, str(tmp_path / "program.py"), kind], tmp_path / "run")
    assert done.code == 0, done.err
    assert done.run.manifest.loaders["loader"].varied == (kind in ("workers", "phases"))
    found = reported(done.run)
    assert why in found["advice"] and not found["loaders"]
    assert not [each for each in found["settings"] if each["name"].startswith("loader.")]


@pytest.mark.long
def test_what_no_worker_can_do_is_advised_to_none(tmp_path: Path) -> None:
    """GIVEN a loader without workers whose data set has a loader with some inside THEN none are advised: those of a
    worker would be none."""
    (tmp_path / "program.py").write_text(ODD_KINDS)
    done = record([sys.executable, str(tmp_path / "program.py"), "nested"], tmp_path / "run")
    assert done.code == 0, done.err
    loaders = done.run.manifest.loaders
    (outer,) = {name for name, each in loaders.items() if each.starts_processes}
    found = reported(done.run)
    assert f"{outer} is to have no workers: its data set starts processes" in found["advice"]
    assert not any(each["name"].startswith(f"loader.{outer}.") for each in found["settings"])


def test_samples_of_a_subset_are_told_apart(tmp_path: Path) -> None:
    """GIVEN a part of a data set, which torch asks for all samples of a batch at once THEN each is timed."""
    (tmp_path / "program.py").write_text(ODD_KINDS)
    done = record([sys.executable, str(tmp_path / "program.py"), "subset"], tmp_path / "run")
    assert done.code == 0, done.err
    samples = done.run.sql("SELECT duration_ns FROM samples")
    assert len(samples) >= 4 and (samples["duration_ns"] >= 2_000_000).all()
    assert done.run.manifest.loaders["loader"].storages == 1


SHORT = """
import os, threading, torch
from itertools import islice
from torch.utils.data import DataLoader

numbers = torch.utils.data.TensorDataset(torch.arange(6000.0))

def take(batches, count, seen):
    for _ in islice(batches, count):
        seen.append(threading.get_native_id())

whole, left_early, one, other, shared = (DataLoader(numbers, 2) for _ in range(5))
for _ in whole:
    pass
for _ in range(2):
    for _ in islice(left_early, 1000):
        pass
for _ in zip(one, other):
    pass
batches, seen = iter(shared), []
take(batches, 1000, seen)
if (child := os.fork()) == 0:
    os._exit(0)  # which leaves what its parent has not written yet to its parent
os.waitpid(child, 0)
for _ in range(5):
    aside = threading.Thread(target=take, args=(batches, 200, seen))
    aside.start()
    aside.join()
    take(batches, 200, seen)
print(*seen)
"""


def test_each_of_the_shortest_batches_is_there_once(tmp_path: Path) -> None:
    """Whoever asks for it, whatever other loader is asked in between, and when the program has enough of it."""
    (tmp_path / "program.py").write_text(SHORT)
    done = record([sys.executable, str(tmp_path / "program.py")], tmp_path / "run")
    assert done.code == 0, done.err
    batches = done.run.table("batches").sort_values(["loader", "epoch", "index"])
    assert batches["process"].nunique() == 1
    counts = {"loader#2": [1000, 1000], **{name: [3000] for name in ("loader", "loader#3", "loader#4", "loader#5")}}
    for (loader, epoch), part in batches.groupby(["loader", "epoch"]):
        assert part["index"].tolist() == list(range(counts[loader][epoch])), (loader, epoch)
        start, end = part["start_ns"].to_numpy(), (part["start_ns"] + part["duration_ns"]).to_numpy()
        assert (end >= start).all() and (start[1:] >= end[:-1]).all()
    assert len(batches) == sum(map(sum, counts.values()))
    # Few are looked at. That somebody else asks for one is known from the next of these on.
    sizes = batches["bytes"][batches["loader"] == "loader"]
    assert set(sizes) == {-1, 8} and (sizes == 8).mean() < 0.1
    told = batches["thread"][batches["loader"] == "loader#5"].to_numpy()
    asked = [int(word) for word in done.out.split()]
    assert (told[1128:] == asked[1128:]).all() and (told[:1000] == asked[0]).all()


KILLED = """
import os, signal, time, torch

class Slow(torch.utils.data.Dataset):
    def __len__(self):
        return 4000
    def __getitem__(self, index):
        time.sleep(0.001)
        return index

for number, _ in enumerate(torch.utils.data.DataLoader(Slow(), 1)):
    if number == 1500:
        os.kill(os.getpid(), signal.SIGKILL)
"""


def test_of_short_batches_a_kill_loses_the_last_ones(tmp_path: Path) -> None:
    """Those of 50 ms, of which there are no more than 50 of 1 ms, and half a percent of the steps."""
    (tmp_path / "program.py").write_text(KILLED)
    done = record([sys.executable, str(tmp_path / "program.py")], tmp_path / "run")
    assert done.code == -9 or done.code == 137
    indices = sorted(done.run.table("batches")["index"])
    assert indices == list(range(len(indices))) and 1501 - 50 - 8 - 2 <= len(indices) <= 1501
