"""What programs do with torch that a recorder may trip over; each prints what it got."""

import sys
import time
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

print(torch.__version__)

from statistics import running_mean  # type: ignore[attr-defined]  # noqa: E402


class Checkpointed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(64, 64), nn.Tanh()) for _ in range(8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=True)  # type: ignore[no-untyped-call]
        return x


def train(steps: int) -> None:
    model = Checkpointed()
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    for _ in range(steps):
        optimizer.zero_grad()
        loss = model(torch.ones(256, 64, requires_grad=True)).square().mean()
        loss.backward()
        optimizer.step()
    print(loss.item())


def evaluate(seconds: float) -> None:
    """Longer than any window of the profiler is to be; as many steps went before it that one is open."""
    model, until = nn.Linear(8, 8).eval(), time.monotonic() + seconds
    with torch.no_grad():
        while time.monotonic() < until:
            model(torch.ones(4, 8))
            time.sleep(0.001)


def sample(passes: int) -> None:
    position = torch.zeros(4, requires_grad=True)
    for _ in range(passes):
        (gradient,) = torch.autograd.grad((position**2).sum() + position.sum(), position)
        position = (position - 0.1 * gradient).detach().requires_grad_()
    print(position)


def find_nan() -> None:
    class Root(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.sqrt()

    with torch.autograd.set_detect_anomaly(True):
        try:
            (Root()(torch.zeros(2, requires_grad=True)) * 0).sum().backward()
        except RuntimeError as error:
            print(error)


def trace(steps: int) -> None:
    model = nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    kind: Any = torch.autograd.profiler.emit_itt
    for batch in torch.utils.data.DataLoader(torch.ones(4 * steps, 4), 4):  # type: ignore[arg-type]
        with kind():
            model(batch).sum().backward()
            optimizer.step()


torch.manual_seed(0)
torch.set_num_threads(1)
print(running_mean(torch.arange(4.0)))
train(7)
evaluate(2.0)
train(40)
sample(5000)
find_nan()
trace(40)
print("statistics" in sys.modules)
