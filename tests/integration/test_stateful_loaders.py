"""Loaders of torchdata, which are torch's with a state to be saved: copies of most of its code."""

import sys
from pathlib import Path

import pytest
from recording import plain, record, tracekit

from tracekit.analysis.batches import made_batches
from tracekit.analysis.loading import loader_costs
from tracekit.analysis.steps import find_steps

PROGRAM = """
import sys
import torch
from torchdata.stateful_dataloader import StatefulDataLoader

class Numbers(torch.utils.data.Dataset):
    def __len__(self):
        return 48
    def __getitem__(self, index):
        return torch.tensor([index, int(torch.randint(100, ()))])

def made(workers):
    return StatefulDataLoader(
        Numbers(), 4, shuffle=True, num_workers=workers, multiprocessing_context=sys.argv[1] if workers else None
    )

if __name__ == "__main__":
    torch.manual_seed(0)
    for workers in (0, 2):
        loader = made(workers)
        for epoch in range(2):
            print(workers, "of", loader.prefetch_factor, "ahead", [batch.tolist() for batch in loader])
    begun = iter(loader)
    first = [next(begun).tolist() for _ in range(5)]
    again = made(2)
    again.load_state_dict(loader.state_dict())
    print(first, [batch.tolist() for batch in again])
"""


@pytest.mark.long
@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_loaders_with_a_state_are_seen_as_those_of_torch(method: str, tmp_path: Path) -> None:
    """GIVEN loaders with a state, of which one goes on where another one was left, WHEN recorded THEN the program
    prints the same, and who made each batch, and where the loaders are made, is known."""
    program, settings = tmp_path / "program.py", tmp_path / "settings.toml"
    program.write_text(PROGRAM)
    command = [sys.executable, str(program), method]
    without, done = plain(command), record(command, tmp_path / "run", "--overhead", "50")
    assert (done.code, done.out, done.err) == (0, without.stdout, without.stderr)
    run = done.run
    assert not [note for note in run.missing if "switched itself off" in note.why]
    made = made_batches(run, 0)
    assert (made["maker"] >= 0).all()
    numbers = {loader: part.groupby(["epoch", "worker"]).size().to_dict() for loader, part in made.groupby("loader")}
    assert numbers == {
        "loader": {
            (0, -1): 12, (1, -1): 12, (2, 0): 6, (2, 1): 6, (3, 0): 6, (3, 1): 6, (4, 0): 3, (4, 1): 2,
        },
        "loader#2": {(0, 0): 3, (0, 1): 4},
    }  # fmt: skip
    loader = run.manifest.loaders["loader"]
    assert loader.place == "program.py:13" and loader.made == 2 and loader.varied and loader.stateful
    assert loader_costs(run, find_steps(run))[0].start > 0

    settings.write_text("[loader.loader]\nprefetch_factor = 3\n")
    applied = tracekit("apply", str(settings), "--", *command)
    assert (applied.returncode, applied.stdout) == (0, without.stdout.replace("of 2 ahead", "of 3 ahead"))
    assert applied.stderr.count("it has no workers, which prefetch_factor would be of") == 1
