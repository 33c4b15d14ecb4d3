"""Settings of loaders: what they do to programs that know nothing of them."""

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import psutil
import pytest
from image_loading import draw_images
from recording import TRACEKIT, plain, record, reported, tracekit

from tracekit.advice.loader_effects import effect_of
from tracekit.run.manifest import Loader
from tracekit.run.probes import load_sittings

ROOT = Path(__file__).parents[2]
IMAGES, SIZE = 96, 256

TWO_LOADERS = """
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset

class Numbers(Dataset):
    def __len__(self):
        return 10
    def __getitem__(self, index):
        return torch.tensor([index, torch.utils.data.get_worker_info() is None])

class Stream(IterableDataset):
    def __iter__(self):
        return iter(range(3))

def made(**given):
    return DataLoader(Numbers(), batch_size=2, shuffle=True, **given)

if __name__ == "__main__":
    torch.manual_seed(0)
    for epoch in range(2):
        train = made(num_workers=2, timeout=30, multiprocessing_context="fork")
        print("train", train.num_workers, train.prefetch_factor, [batch.tolist() for batch in train])
        valid = made()
        print("valid", valid.num_workers, valid.prefetch_factor, [batch.tolist() for batch in valid])
    stream = DataLoader(Stream(), num_workers=1)
    print("stream", stream.num_workers, stream.prefetch_factor, [int(item) for item in stream])
    print("afterwards", torch.rand(2).tolist())
"""


@pytest.fixture(scope="module")
def two_loaders(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The program, and what it prints without settings."""
    program = tmp_path_factory.mktemp("two") / "program.py"
    program.write_text(TWO_LOADERS)
    return program, plain([sys.executable, str(program)]).stdout


def under(settings: str, program: Path, run: Path) -> tuple[str, list[str]]:
    """What the program prints under the settings, and what the run says it misses of them."""
    file = program.with_suffix(".toml")
    file.write_text(settings)
    done = record([sys.executable, str(program)], run, "--settings", str(file))
    assert done.code == 0, done.err
    return done.out, [note.what for note in done.run.missing if " of " in note.what and "counters" not in note.what]


def test_loaders_are_told_apart_by_their_place_and_keep_their_batches(
    two_loaders: tuple[Path, str], tmp_path: Path
) -> None:
    program, without = two_loaders
    same, missing = under('[loader."loader"]\nprefetch_factor = 5\n', program, tmp_path / "first")
    assert same == without.replace("train 2 2", "train 2 5") and not missing

    other, missing = under(
        '[loader.loader]\nnum_workers = 0\n[loader."loader#2"]\nnum_workers = 1\nprefetch_factor = 3\n'
        '[loader."loader#3"]\nnum_workers = 2\nprefetch_factor = 4\n[loader.train]\nnum_workers = 1\n',
        program, tmp_path / "second",
    )  # fmt: skip
    lines = other.splitlines()
    assert [line.split(" [")[0] for line in lines[:-2]] == ["train 0 None", "valid 1 3"] * 2
    assert lines[-2] == "stream 1 4 [0, 1, 2]"  # shared out otherwise, it would give each number twice
    assert sorted(missing) == ["num_workers of loader#3", "settings of train"]
    # Nothing here draws random numbers in a data set, so that the order and what follows stay as they are.
    expected = without.replace("train 2 2", "train 0 None").replace("valid 0 None", "valid 1 3")
    by_whom = str.maketrans({"0": "w", "1": "w"})
    assert [line.split(" [")[1].translate(by_whom) for line in lines] == [
        line.split(" [")[1].translate(by_whom) for line in expected.splitlines()
    ]


@pytest.fixture(scope="module")
def slow_images(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[str]]:
    """The sample, without workers, with its images on emulated slow storage."""
    folder = tmp_path_factory.mktemp("images")
    draw_images(folder, IMAGES, SIZE)
    words = [sys.executable, str(ROOT / "tests" / "slow_storage.py"), str(folder), "--latency", "0.01"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        url = server.stdout.readline().strip()
        sample = [sys.executable, str(ROOT / "samples" / "image_loading.py"), "--folder", str(folder)]
        yield [*sample, "--images", str(IMAGES), "--store", url]
        server.terminate()


def said_to_wait_for_storage(report: dict[str, Any]) -> None:
    split = next(each["evidence"] for each in report["findings"] if each["id"] == "loading.split")
    assert split["loader"] == "loader" and split["storage"] > 0.5 and split["wait"] > 0.7
    for each in report["settings"]:  # none, where one reader's run promises nothing for certain
        assert each["basis"] == "model" and each["current"] in (0, None) and each["gain"]["low"] > 0


@pytest.mark.alone
def test_a_program_that_waits_for_storage_is_told_so_by_one_run(slow_images: list[str], tmp_path: Path) -> None:
    """GIVEN a program without workers, and storage that answers late THEN one run tells that it waits for storage, what
    its batches take as it is, and that workers are expected to be faster."""
    done = record([*slow_images, "--epochs", "1"], tmp_path / "run")
    assert done.code == 0, done.err
    report = reported(done.run)
    said_to_wait_for_storage(report)
    (loader,) = report["loaders"]
    own, *others = sorted(loader["forecasts"], key=lambda each: (each["num_workers"], each["prefetch_factor"] or 0))
    assert own["num_workers"] == 0 and {each["num_workers"] for each in others} >= {1, 2, 4}
    assert own["low_ms"] == own["expected_ms"] == own["high_ms"]  # as it was measured
    assert all(each["expected_ms"] < own["expected_ms"] for each in others if each["num_workers"] in (2, 4))


@pytest.mark.long
@pytest.mark.alone
def test_a_study_measures_what_one_run_had_predicted(slow_images: list[str], tmp_path: Path) -> None:
    """Time for more than a round or two is not given here: nothing is recommended yet."""
    sample = [*slow_images, "--epochs", "1"]
    for budget in ("50s", "150s"):  # the second where the machine is so slow that no round fits into the first
        done = tracekit("study", "loading", "--budget", budget, "--json", "-o", str(tmp_path / budget), "--", *sample)
        assert done.returncode == 0, done.stderr
        study = json.loads(done.stdout)
        if times := {name: min(blocks) for name, blocks in study["blocks_ms"].items() if blocks}:
            break
    assert study["by_loop"] and "one after the other" in study["interleaved"]

    report = json.loads(tracekit("analyze", "--json", study["explored"]).stdout)
    said_to_wait_for_storage(report)
    forecasts = {
        f"{each['num_workers']} workers x {each['prefetch_factor']}": each for each in report["loaders"][0]["forecasts"]
    }
    tried = times.keys() & forecasts.keys()
    assert tried
    for name in tried:  # a fifth for what the machine does meanwhile and what the model misses
        assert 0.8 * forecasts[name]["low_ms"] < times[name] < 1.2 * forecasts[name]["high_ms"], name


@pytest.mark.long
@pytest.mark.alone
def test_a_probe_sees_what_one_reader_cannot_know(slow_images: list[str], tmp_path: Path) -> None:
    """GIVEN a run without workers, over storage that answers any number of readers late but at once THEN its probe has
    seen many readers, and workers are recommended by it."""
    assert record([*slow_images, "--epochs", "2"], tmp_path / "run").code == 0
    done = tracekit("analyze", "--probe", "--json", str(tmp_path / "run"))
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    (loader,) = report["loaders"]
    assert loader["probed"] and loader["readers"] >= 4
    workers = next(each for each in report["settings"] if each["name"] == "loader.loader.num_workers")
    assert workers["basis"] == "probe" and workers["recommended"] > 0 and workers["gain"]["low"] > 0
    assert workers["effect"] == "order"  # the sample draws its crops with the program's generator
    assert json.loads(tracekit("analyze", "--json", str(tmp_path / "run")).stdout)["settings"] == report["settings"]


def test_a_run_without_a_loader_has_nothing_to_probe(tmp_path: Path) -> None:
    record([sys.executable, "-c", "pass"], tmp_path / "other")
    refused = tracekit("analyze", "--probe", str(tmp_path / "other"))
    assert refused.returncode == 2 and "nothing to probe" in refused.stderr and not (tmp_path / "other/probe").exists()


BURSTS = """
import time
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

began = time.perf_counter()

class Stream(IterableDataset):
    def __iter__(self):
        for number in range(get_worker_info().id, 1600, 2):
            if number // 2 % 40 == 0:  # before every tenth batch of a worker
                time.sleep(0.06)
            yield number

numbers = []
for batch in DataLoader(Stream(), 4, num_workers=2):
    numbers += batch.tolist()
    time.sleep(0.005)
print(time.perf_counter() - began, file=open(__file__ + ".seconds", "a"))
print(numbers)
"""


@pytest.mark.long
@pytest.mark.alone
def test_an_iterable_that_comes_in_bursts_is_read_further_ahead_by_the_workers_it_has(tmp_path: Path) -> None:
    """GIVEN workers that pause for 60 ms, all at once, after what lasts the program 100 ms WHEN they are four batches
    ahead, which last it 20 ms, THEN more batches ahead are recommended, not other workers, the order stays, and what is
    measured to be gained lies in the range that was told."""
    program = tmp_path / "program.py"
    program.write_text(BURSTS)
    done = record([sys.executable, str(program)], tmp_path / "run")
    assert done.code == 0, done.err
    report = json.loads(tracekit("analyze", "--json", str(tmp_path / "run")).stdout)
    (setting,) = report["settings"]
    assert setting["name"] == "loader.loader.prefetch_factor" and setting["recommended"] >= 4, setting
    assert setting["effect"] == "identical"
    assert "their number stays" in setting["why"]
    (memory,) = (each for each in report["findings"] if each["id"] == "loading.memory")
    assert memory["evidence"]["worker_bytes"] > 1 << 20 and memory["evidence"]["ahead_bytes"] == 6 * 4 * 8
    applied = [*TRACEKIT, "apply", str(tmp_path / "run"), "--", sys.executable, str(program)]
    for command in 2 * [[sys.executable, str(program)], applied]:
        again = plain(command)
        assert again.returncode == 0 and again.stdout == done.out, again.stderr
    _, *seconds = map(float, (tmp_path / "program.py.seconds").read_text().split())
    gained = 1 - sum(seconds[1::2]) / sum(seconds[::2])
    assert gained > 0.1 and setting["gain"]["low"] <= gained <= setting["gain"]["high"], (gained, setting)


ALONE = """
import fcntl, os, pathlib, sys, time
from torch.utils.data import DataLoader

lock = open(pathlib.Path(__file__).with_suffix(".lock"), "w")
try:
    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
except OSError:
    sys.exit("another one is running")

class Samples:
    def __len__(self):
        return 100
    def __getitem__(self, index):
        time.sleep(0.005)
        return index

print(os.getpid(), file=open(pathlib.Path(__file__).with_suffix(".pids"), "a"))
for _ in range(int(sys.argv[1])):
    for _ in DataLoader(Samples(), 4):
        pass
"""


@pytest.mark.long
@pytest.mark.parametrize(
    ("epochs", "why", "sittings"),
    [
        ("14", "another one is running", [1]),
        ("4", "would end before it had turns", [3, 4, 5]),
    ],
)
def test_a_program_that_cannot_run_beside_itself_is_probed_alone(
    epochs: str, why: str, sittings: list[int], tmp_path: Path
) -> None:
    """GIVEN a program that refuses to run twice at once THEN its probe says so and runs it alone with other settings,
    or where it soon ends, again and again, and leaves no process behind."""
    program = tmp_path / "alone.py"
    program.write_text(ALONE)
    assert record([sys.executable, str(program), epochs], tmp_path / "run").code == 0
    done = tracekit("analyze", "--probe", "--json", str(tmp_path / "run"))
    assert done.returncode == 0, done.stderr
    assert "side by side" in done.stderr and why in done.stderr
    (loader,) = json.loads(done.stdout)["loaders"]
    assert loader["probed"]
    assert len(load_sittings(tmp_path / "run")) in sittings
    assert not any(psutil.pid_exists(int(pid)) for pid in program.with_suffix(".pids").read_text().split())


EFFECTS = Path(__file__).parent / "programs" / "loader_effects.py"
# The loaders of the program, in its order.
ORDERS = {name: f"loader#{number + 1}" if number else "loader" for number, name in enumerate(
    ("default", "generator", "sharded", "left early", "in batches", "told late")
)}  # fmt: skip


@cache
def given_without_settings(workers: int) -> list[dict[str, list[float]]]:
    return [json.loads(line) for line in plain([sys.executable, str(EFFECTS), str(workers)]).stdout.splitlines()]


@pytest.fixture(scope="module")
def recorded_facts(tmp_path_factory: pytest.TempPathFactory) -> Callable[[int], dict[str, Loader]]:
    """What a recording tells of each loader, by their number of workers."""

    @cache
    def facts(workers: int) -> dict[str, Loader]:
        done = record([sys.executable, str(EFFECTS), str(workers)], tmp_path_factory.mktemp("effects") / "run")
        assert done.code == 0, done.err
        return {name: done.run.manifest.loaders[loader] for name, loader in ORDERS.items()}

    return facts


def given_by_loaders(workers: int, settings: str, tmp_path: Path) -> list[dict[str, list[float]]]:
    """What each loader of the program gives with the settings applied to all of them."""
    file = tmp_path / "settings.toml"
    file.write_text("\n".join(f'[loader."{name}"]\n{settings}' for name in ORDERS.values()))
    done = tracekit("apply", str(file), "--", sys.executable, str(EFFECTS), str(workers))
    assert done.returncode == 0 and "not applied" not in done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.parametrize("workers", [0, 2])
def test_what_labels_hang_on_is_recorded(workers: int, recorded_facts: Callable[[int], dict[str, Loader]]) -> None:
    facts = recorded_facts(workers)
    told = {name: (each.predictability, each.draws_from, each.sampler) for name, each in facts.items()}
    assert told == {
        "default": ("epoch", "program", "RandomSampler"),
        "generator": ("run", "generator", "RandomSampler"),
        "sharded": ("run", "nothing", "DistributedSampler"),
        "left early": ("epoch", "generator", "RandomSampler"),
        "in batches": ("epoch", "program", "RandomSampler"),
        "told late": ("run", "nothing", "DistributedSampler"),
    }
    assert [name for name, each in facts.items() if each.told_late] == ["told late"]
    assert [name for name, each in facts.items() if each.has_generator] == ["generator", "left early"]


@pytest.mark.parametrize(
    ("workers", "settings", "order_changes"),
    [
        pytest.param(2, "num_workers = 3", ["left early"], marks=pytest.mark.long),
        # Samples draw the program's random numbers, which the default order hangs on, or a worker's.
        (0, "num_workers = 2", ["default", "in batches", "told late"]),
        pytest.param(2, "num_workers = 0", ["default", "in batches", "told late"], marks=pytest.mark.long),
        pytest.param(2, "prefetch_factor = 5", ["left early"], marks=pytest.mark.long),
        pytest.param(2, "pin_memory = true", [], marks=pytest.mark.long),
        (2, "persistent_workers = true", ["default", "generator", "left early", "in batches"]),
    ],
)
def test_settings_change_what_their_labels_say(
    workers: int,
    settings: str,
    order_changes: list[str],
    recorded_facts: Callable[[int], dict[str, Loader]],
    tmp_path: Path,
) -> None:
    """GIVEN loaders of data sets that draw random numbers THEN a setting labelled identical changes nothing, one
    labelled augmentation what is drawn and no order, and one labelled order the order of some loader: of one that is
    left early it may."""
    now = dict(zip(ORDERS, given_by_loaders(workers, settings, tmp_path), strict=True))
    without = dict(zip(ORDERS, given_without_settings(workers), strict=True))
    changed = [name for name in ORDERS if without[name]["order"] != now[name]["order"]]
    assert changed == order_changes
    key, _, text = settings.partition(" = ")
    value = int(text) if text.isdecimal() else text == "true"
    for name, facts in recorded_facts(workers).items():
        label = effect_of(facts, (), key, value)
        if name in changed:
            assert label == "order", name
        elif name != "left early" or label != "order":
            assert label == ("identical" if without[name] == now[name] else "augmentation"), name


DRAWING = """
import random
import torch
from torch.utils.data import DataLoader, Dataset

class Drawn(Dataset):
    def __len__(self):
        return 8
    def __getitem__(self, index):
        return torch.tensor([float(index), float(torch.rand(())), random.random()])

if __name__ == "__main__":
    torch.manual_seed(0)
    print([batch.tolist() for batch in DataLoader(Drawn(), 2, shuffle=True, num_workers=2)], torch.rand(2).tolist())
"""


BESIDE = """
import sys
import torch
from torch.utils.data import DataLoader

if __name__ == "__main__":
    torch.manual_seed(1)
    train = DataLoader(range(24), 4, shuffle=True, num_workers=2)
    valid = DataLoader(range(8), 4, num_workers=2)
    for epoch in range(3):
        print([batch.tolist() for batch in train])
        list(valid)
"""


@pytest.mark.long
def test_workers_that_are_started_otherwise_draw_the_same(tmp_path: Path) -> None:
    """GIVEN samples that draw random numbers in forked workers THEN those of spawned ones draw the same."""
    program, settings = tmp_path / "program.py", tmp_path / "settings.toml"
    program.write_text(DRAWING)
    settings.write_text('[loader.loader]\nmultiprocessing_context = "spawn"\n')
    command = [sys.executable, str(program)]
    done = record(command, tmp_path / "run", "--settings", str(settings))
    assert done.out == plain(command).stdout and done.code == 0
    assert done.run.manifest.loaders["loader"].start_method == "spawn"
    assert effect_of(Loader(num_workers=2), (), "multiprocessing_context", "spawn") == "identical"


@pytest.mark.long
def test_a_setting_that_changes_the_order_of_another_loader_is_labelled_so(tmp_path: Path) -> None:
    """GIVEN a loader that draws seeds for its workers from the generator that another one shuffles with THEN workers
    that persist change the other one's order."""
    program, settings = tmp_path / "program.py", tmp_path / "settings.toml"
    program.write_text(BESIDE)
    settings.write_text('[loader."loader#2"]\npersistent_workers = true\n')
    done = record([sys.executable, str(program)], tmp_path / "run")
    applied = tracekit("apply", str(settings), "--", sys.executable, str(program))
    assert done.out.splitlines()[0] == applied.stdout.splitlines()[0] and done.out != applied.stdout

    train, valid = (done.run.manifest.loaders[name] for name in ("loader", "loader#2"))
    assert effect_of(valid, (train,), "persistent_workers", True) == "order"
    assert effect_of(valid, (), "persistent_workers", True) == "augmentation"


@pytest.mark.long
def test_in_any_order_is_labelled_as_a_change_of_order(tmp_path: Path) -> None:
    """GIVEN workers that overtake each other THEN the same samples come, each epoch, in an order of their own."""
    now = given_by_loaders(2, "in_order = false", tmp_path)
    for name, before, after in zip(ORDERS, given_without_settings(2), now, strict=True):
        assert name == "left early" or sorted(before["order"]) == sorted(after["order"])
    assert effect_of(Loader(num_workers=2, predictability="run"), (), "in_order", False) == "order"


def test_settings_of_a_loader_made_elsewhere_are_not_applied(two_loaders: tuple[Path, str], tmp_path: Path) -> None:
    program, without = two_loaders
    line = 1 + TWO_LOADERS.splitlines().index("    return DataLoader(Numbers(), batch_size=2, shuffle=True, **given)")
    settings = '[loader.loader]\nnum_workers = 0\nplace = "program.py:{}"\n'
    elsewhere, missing = under(settings.format(line + 1), program, tmp_path / "first")
    assert elsewhere == without and missing == ["settings of loader"]
    there, missing = under(settings.format(line), program, tmp_path / "second")
    assert there != without and "train 0 None" in there and not missing


HELPER = """
import sys
from torch.utils.data import DataLoader

def made(size):
    return DataLoader(range(size))

if len(sys.argv) > 1:
    list(made(4))
for epoch in range(2):
    train = made(8)
    valid = made(8)
    print(train.num_workers, valid.num_workers, len(list(train)))
"""


@pytest.mark.parametrize("more", [pytest.param([], marks=pytest.mark.long), ["more"]])
def test_settings_are_for_the_loader_of_that_origin_whatever_its_name(more: list[str], tmp_path: Path) -> None:
    """GIVEN a function that makes all loaders, anew for each epoch, and a process that makes one which others do not
    THEN the settings find the loader that they were found for, in all epochs, and no other."""
    program, settings = tmp_path / "program.py", tmp_path / "settings.toml"
    program.write_text(HELPER)
    command = [sys.executable, str(program)]
    facts = record(command, tmp_path / "run").run.manifest.loaders
    assert facts.keys() == {"loader", "loader#2"} and [each.made for each in facts.values()] == [2, 2]

    text = '[loader.loader]\nnum_workers = 1\nplace = "program.py:6"\n'
    settings.write_text(text)
    assert tracekit("apply", str(settings), "--", *command).stdout == "1 0 8\n" * 2
    settings.write_text(text + f'origin = "{facts["loader"].origin}"\n')
    applied = tracekit("apply", str(settings), "--", *command, *more)
    assert applied.stdout == "1 0 8\n" * 2 and "not applied" not in applied.stderr


@pytest.mark.long
def test_settings_that_no_loader_takes_are_named_and_not_experimented_with(tmp_path: Path) -> None:
    """GIVEN settings of a loader that is made elsewhere, or not at all WHEN it is about whether they make the program
    faster THEN that is not answered, as it never ran with them."""
    program, settings = tmp_path / "program.py", tmp_path / "settings.toml"
    program.write_text(TWO_LOADERS)
    command = [sys.executable, str(program)]
    settings.write_text('[loader.loader]\nnum_workers = 0\nplace = "program.py:1"\n[loader.train]\nnum_workers = 1\n')
    applied = tracekit("apply", str(settings), "--", *command)
    assert applied.returncode == 0, applied.stderr
    assert all(f"not applied: settings of {loader}" in applied.stderr for loader in ("loader", "train"))
    verified = tracekit("verify", "--budget", "90s", "-o", str(tmp_path / "verified"), str(settings), "--", *command)
    assert verified.returncode == 2, verified.stderr
    for why in ("the program made none at program.py:1", "settings of train: the program made no such loader"):
        assert why in verified.stderr, verified.stderr
