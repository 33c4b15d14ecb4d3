"""Programs that do what a thread plan does not expect: they end as without it, with the same output."""

import os
import sys
from pathlib import Path

import pytest
from recording import ENVIRONMENT, TRACEKIT, run, tracekit

from tracekit.run.reader import open_run
from tracekit.settings.inside import is_refusal

pytestmark = pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="one CPU: there is no count to choose")

PLAN = """
[threads]
intra_op = {common}
[threads.layers]
"rnn.layer0" = 1
head = {head}
[threads.backward]
head = 1
"""
MODEL = """
import torch
from torch import nn
class Model(nn.Module):
    def __init__(self, head, rnn=None):
        super().__init__()
        self.rnn, self.head = rnn, head
    def forward(self, x):
        return self.head(x if self.rnn is None else self.rnn(x)[0])
"""
PROGRAMS = {
    # A team of two of the parent's is gone in the child: OpenMP would wait for it forever.
    "a forked loader worker runs the model": """
from torch.utils.data import DataLoader, Dataset
model, x = Model(nn.Linear(512, 512)), torch.ones(600, 512)
(torch.ones(4000000) + 1).exp()
class Data(Dataset):
    def __len__(self): return 4
    def __getitem__(self, index):
        with torch.no_grad(): return model(x).sum() + model(torch.ones(4000, 512)).sum()
model(x).sum().backward()
print(len([batch for batch in DataLoader(Data(), num_workers=1)]))
""",
    "an RNN calls another one first": """
class Outer(nn.LSTM):
    def __init__(self):
        super().__init__(8, 8, 2)
        self.other = nn.LSTM(8, 8, 4)
    def forward(self, x): return super().forward(self.other(x)[0])
model = Model(nn.Linear(8, 2), Outer())
for _ in range(3): model(torch.ones(3, 2, 8)).sum().backward()
print("ok")
""",
    "a result whose node cannot be read": """
class Head(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(4))
    def forward(self, x):
        base = torch.zeros(4)
        with torch.no_grad(): view = base[:2]
        base.mul_(self.weight)
        return view
Model(Head())(torch.ones(2, 8))
class Loop(nn.Module):
    def forward(self, x):
        result = [1]
        result.append(result)
        return result
Model(Loop())(torch.ones(2, 8))
print("ok")
""",
    "a layer sets the count itself": """
class Head(nn.Module):
    def forward(self, x):
        torch.set_num_threads(1)
        return x
Model(Head())(torch.ones(2))
print(torch.get_num_threads(), torch._C.get_num_threads())
""",
    "the count is set between forward and backward": """
seen, model = [], Model(nn.Linear(8, 8), nn.LSTM(8, 8))
y = model(torch.ones(3, 2, 8))
torch.set_num_threads(2)
y.grad_fn.register_hook(lambda *args: seen.append(torch._C.get_num_threads()))
y.sum().backward()
print(seen, torch._C.get_num_threads())
""",
}

# What programs do that know nothing of plans; the others are odd.
LIKELY = ("a forked loader worker runs the model", "the count is set between forward and backward")


@pytest.mark.parametrize("head", [pytest.param(1, marks=pytest.mark.long), 2])
@pytest.mark.parametrize(
    "what", [pytest.param(each, marks=[pytest.mark.long] * (each not in LIKELY)) for each in PROGRAMS]
)
def test_a_plan_leaves_the_program_as_it_is(what: str, head: int, tmp_path: Path) -> None:
    (tmp_path / "plan.toml").write_text(PLAN.format(common=3 - head, head=head))
    program = [sys.executable, "-c", MODEL + PROGRAMS[what]]

    without = run(*program)
    applied = tracekit("apply", str(tmp_path / "plan.toml"), "--", *program)

    assert (applied.returncode, applied.stdout) == (without.returncode, without.stdout), applied.stderr


@pytest.mark.long
def test_nested_tensors_do_not_end_an_exploration(tmp_path: Path) -> None:
    program = """
import torch
from torch import nn
torch.manual_seed(0)
model = nn.TransformerEncoder(nn.TransformerEncoderLayer(32, 4, 64, batch_first=True, dropout=0.0), 2)
optimizer = torch.optim.SGD(model.parameters(), 1e-3)
mask = torch.zeros(8, 10, dtype=torch.bool)
mask[:, 8:] = True
for step in range(120):
    model.train()
    model(torch.ones(8, 10, 32)).sum().backward()
    optimizer.step()
    if step % 20 == 19:
        model.eval()
        with torch.no_grad(): model(torch.ones(8, 10, 32), src_key_padding_mask=mask)
print(torch.get_num_threads())
"""
    explored = tracekit(
        "record", "-q", "--explore", "threads", "-o", str(tmp_path / "run"), "--", sys.executable, "-c", program
    )
    assert (explored.returncode, explored.stdout) == (0, "2\n")
    analyzed = tracekit("analyze", "--json", str(tmp_path / "run"))
    assert "switched itself off" not in analyzed.stdout


@pytest.mark.long
def test_a_forked_child_has_the_program_s_own_count(tmp_path: Path) -> None:
    """GIVEN an exploration WHEN the program forks at any time THEN the child runs on, with the count it would have."""
    program = """
import os, signal, torch
from torch import nn
torch.set_num_threads(1)
model = nn.Sequential(nn.Linear(64, 128), nn.Linear(128, 4))
optimizer = torch.optim.SGD(model.parameters(), 1e-3)
codes = set()
for step in range(150):
    model(torch.ones(128, 64)).sum().backward()
    optimizer.step()
    if step % 13 == 12:
        pid = os.fork()
        if pid == 0:
            signal.alarm(20)
            with torch.no_grad(): model(torch.ones(4000, 64))
            (torch.ones(2000000) + 1).exp().sum()
            os._exit(torch._C.get_num_threads())
        codes.add(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
print(codes)
"""
    explored = tracekit(
        "record", "-q", "--explore", "threads", "-o", str(tmp_path / "run"), "--", sys.executable, "-c", program
    )
    assert (explored.returncode, explored.stdout) == (0, "{1}\n")


def test_a_forked_child_of_a_program_with_one_thread_does_not_wait_for_the_threads_that_it_was_given(
    tmp_path: Path,
) -> None:
    """GIVEN a program with one thread, as torchrun's ranks, that is given two WHEN it forks THEN its child runs on."""
    program = """
import os, signal, torch
def compute():
    (torch.ones(2_000_000) + 1).exp().sum()
compute()
pid = os.fork()
if pid == 0:
    signal.alarm(20)
    compute()
    os._exit(torch._C.get_num_threads())
print(torch._C.get_num_threads(), os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
"""
    (tmp_path / "settings.toml").write_text("[threads]\nintra_op = 2\n")
    command = [*TRACEKIT, "apply", str(tmp_path / "settings.toml"), "--", sys.executable, "-c", program]
    done = run(*command, environment=ENVIRONMENT)
    assert (done.returncode, done.stdout) == (0, "2 1\n"), done.stderr
    assert "not applied: threads.intra_op in what the program forks" in done.stderr


def test_a_count_that_a_helper_takes_for_itself_is_not_that_of_what_is_forked(tmp_path: Path) -> None:
    """GIVEN a program with two threads, of which a thread takes one for itself, as the one that pins memory does."""
    program = """
import os, threading, torch
helper = threading.Thread(target=torch.set_num_threads, args=(1,))
helper.start()
helper.join()
pid = os.fork()
if pid == 0:
    os._exit(torch._C.get_num_threads())
print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
"""
    (tmp_path / "settings.toml").write_text("[threads]\nintra_op = 2\n")
    command = [*TRACEKIT, "apply", str(tmp_path / "settings.toml"), "--", sys.executable, "-c", program]
    done = run(*command, environment=ENVIRONMENT | {"OMP_NUM_THREADS": "2"})
    assert (done.returncode, done.stdout) == (0, "2\n"), done.stderr


def explored(program: str, tmp_path: Path) -> str:
    """What a program prints while it is explored."""
    done = tracekit(
        "record", "-q", "--explore", "threads", "-o", str(tmp_path / "run"), "--", sys.executable, "-c", program
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.long
def test_other_threads_keep_their_counts_when_the_program_is_explored(tmp_path: Path) -> None:
    """GIVEN threads that call modules of their own while blocks of other counts are in force THEN these are not left
    with the counts of the blocks."""
    program = """
import threading, time, torch
from torch import nn
stop, told, begun = threading.Event(), {}, threading.Barrier(7)
def background(number):
    torch.ones(10**6).exp()  # from now on it has a count
    begun.wait()
    module = nn.Linear(8, 8)
    time.sleep(0.3)
    while not stop.is_set():
        with torch.no_grad(): module(torch.ones(2, 8))
        time.sleep(0.02 + 0.013 * number)
    told[number] = torch._C.get_num_threads()
torch.set_num_threads(2)
threads = [threading.Thread(target=background, args=(number,)) for number in range(6)]
for each in threads: each.start()
begun.wait()
model = nn.Sequential(nn.Linear(256, 256), nn.Linear(256, 4))
optimizer = torch.optim.SGD(model.parameters(), 1e-3)
for _ in range(1500):
    optimizer.zero_grad()
    model(torch.ones(256, 256)).sum().backward()
    optimizer.step()
stop.set()
for each in threads: each.join()
print(sorted(told.values()))
"""
    assert explored(program, tmp_path) == "[2, 2, 2, 2, 2, 2]\n"


def test_a_model_that_runs_on_a_thread_of_its_own_is_told_how_to_be_explored(tmp_path: Path) -> None:
    program = """
import threading, torch
model = torch.nn.Linear(8, 8)
def serve():
    with torch.no_grad():
        for _ in range(200): model(torch.ones(2, 8))
served = threading.Thread(target=serve)
served.start()
served.join()
"""
    explored(program, tmp_path)
    (why,) = [each.why for each in open_run(tmp_path / "run").missing if each.what.startswith("an exploration")]
    assert "other threads" in why and "tracekit.step()" in why


def test_a_layer_is_told_the_program_s_count_while_it_is_explored(tmp_path: Path) -> None:
    """Also where a plan that is tried gives it another one."""
    program = """
import time, torch
from torch import nn
told = set()
class Waits(nn.Module):
    def __init__(self, ms):
        super().__init__()
        self.ms = ms
    def forward(self, x):
        told.add(torch.get_num_threads())
        end = time.perf_counter() + self.ms.get(torch._C.get_num_threads(), 4) / 1e3
        while time.perf_counter() < end: pass
        return x
torch.set_num_threads(2)
model = nn.Sequential(Waits({1: 1, 2: 3}), Waits({1: 3, 2: 1}))
with torch.no_grad():
    for _ in range(600): model(torch.ones(2, 3))
print(told)
"""
    assert explored(program, tmp_path) == "{2}\n"
    assert "plan 0" in set(open_run(tmp_path / "run").table("spans")["name"])


@pytest.mark.long
def test_a_helper_with_a_count_of_its_own_does_not_end_the_plan(tmp_path: Path) -> None:
    """GIVEN a program that starts another Python which sets its own thread count THEN the settings count as applied,
    and it is said of how many processes that is not so."""
    program = tmp_path / "program.py"
    program.write_text("""
import subprocess, sys, torch
subprocess.run([sys.executable, "-c", "import torch; torch.set_num_threads(1)"], check=True)
model = torch.nn.Linear(8, 8)
with torch.no_grad():
    for _ in range(50): model(torch.ones(2, 8))
print(torch.get_num_threads())
""")
    (tmp_path / "two.toml").write_text("[threads]\nintra_op = 2\n")
    command = ["--", sys.executable, str(program)]

    applied = tracekit("apply", str(tmp_path / "two.toml"), *command)
    recorded = tracekit("record", "-q", "-o", str(tmp_path / "run"), "--settings", str(tmp_path / "two.toml"), *command)

    assert (applied.stdout, recorded.stdout) == ("2\n", "2\n"), recorded.stderr
    assert "in 1 of 2 processes: the program itself called torch.set_num_threads(1)" in applied.stderr
    (note,) = [each for each in open_run(tmp_path / "run").missing if "set_num_threads" in each.why]
    assert " in process " in note.what and not is_refusal(note.what)


@pytest.mark.parametrize("own", ["set_num_threads", "OMP_NUM_THREADS"])
def test_settings_were_not_in_force_where_a_fork_trains_with_the_one_thread_of_its_parent(
    own: str, tmp_path: Path
) -> None:
    """GIVEN a program with one thread, by a call or from outside, that trains in a fork."""
    program = """
import torch, multiprocessing
def train():
    model = torch.nn.Linear(8, 8)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(50):
        model(torch.ones(2, 8)).sum().backward()
        optimizer.step()
if __own__:
    torch.set_num_threads(1)
process = multiprocessing.get_context("fork").Process(target=train)
process.start()
process.join()
"""
    (tmp_path / "two.toml").write_text("[threads]\nintra_op = 2\n")
    program = program.replace("__own__", str(own == "set_num_threads"))
    words = ["record", "-q", "-o", str(tmp_path / "run"), "--settings", str(tmp_path / "two.toml"), "--"]
    one = {"OMP_NUM_THREADS": "1" if own == "OMP_NUM_THREADS" else "2"}
    recorded = run(*TRACEKIT, *words, sys.executable, "-c", program, environment=ENVIRONMENT | one)
    assert recorded.returncode == 0, recorded.stderr
    assert any(is_refusal(note.what) for note in open_run(tmp_path / "run").missing)


@pytest.mark.long
def test_layers_have_the_same_names_with_and_without_a_recording(tmp_path: Path) -> None:
    """GIVEN modules that are not registered in the one which calls them THEN a plan that was recorded holds for them
    when it is applied."""
    program = """
import torch
from torch import nn
class Shows(nn.Module):
    def forward(self, x):
        print(torch._C.get_num_threads())
        return x
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = [nn.Sequential(Shows())]
    def forward(self, x): return self.blocks[0](x)
Net()(torch.ones(2))
"""
    (tmp_path / "plan.toml").write_text("[threads]\nintra_op = 2\n[threads.layers]\nShows = 1\n")
    command = ["--", sys.executable, "-c", program]
    applied = tracekit("apply", str(tmp_path / "plan.toml"), *command)
    recorded = tracekit("record", "-q", "-o", str(tmp_path / "r"), "--settings", str(tmp_path / "plan.toml"), *command)
    assert (applied.stdout, recorded.stdout) == ("1\n", "1\n")
    assert applied.stderr == ""


@pytest.mark.parametrize(
    "mode", ["inference_mode", *(pytest.param(each, marks=pytest.mark.long) for each in ("no_grad", "enable_grad"))]
)
def test_a_program_is_explored_in_any_mode_of_gradients(mode: str, tmp_path: Path) -> None:
    program = f"""
import torch
torch.set_num_threads(2)
model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Linear(64, 4))
with torch.{mode}():
    for _ in range(300): model(torch.ones(64, 64))
print(torch.get_num_threads())
"""
    assert explored(program, tmp_path) == "2\n"
    run = open_run(tmp_path / "run")
    assert "block" in set(run.table("spans")["kind"])
    assert not any("switched itself off" in note.why for note in run.missing)


@pytest.mark.long
@pytest.mark.alone
def test_features_that_are_kept_do_not_gather_hooks(tmp_path: Path) -> None:
    """GIVEN one input for all calls of a layer WHEN its backward has a count of its own, or is recorded THEN a pass
    takes no longer after ten thousand others."""
    program = """
import time, torch
from torch import nn
class Head(nn.Linear): pass
encoder, head = nn.Linear(8, 8), Head(8, 1)
features = encoder(torch.ones(2, 8))
def passes(count):
    began = time.perf_counter()
    for _ in range(count): head(features).sum().backward(retain_graph=True)
    return time.perf_counter() - began
passes(100)
first = min(passes(100) for _ in range(5))
passes(10_000)
print(min(passes(100) for _ in range(5)) < 3 * first)
"""
    (tmp_path / "plan.toml").write_text("[threads]\nintra_op = 2\n[threads.backward]\nHead = 1\n")
    applied = tracekit("apply", str(tmp_path / "plan.toml"), "--", sys.executable, "-c", program)
    recorded = tracekit("record", "-q", "-o", str(tmp_path / "run"), "--", sys.executable, "-c", program)
    assert (applied.stdout, recorded.stdout) == ("True\n", "True\n"), applied.stderr + recorded.stderr


@pytest.mark.parametrize("text", ["x = " + "[" * 3000, ".".join("a" * 3000) + " = 1", "[threads.layers]\na = -1\n"])
def test_hostile_settings_end_with_a_line(text: str, tmp_path: Path) -> None:
    (tmp_path / "plan.toml").write_text(text)
    applied = tracekit("apply", str(tmp_path / "plan.toml"), "--", "true")
    assert applied.returncode == 2
    assert len(applied.stderr.splitlines()) == 1, applied.stderr[:500]
