"""Does what recorders trip over; the argument says what, in one word or several."""

import os
import resource
import sys

import torch
from torch import nn

NAMES = ["line\nbreak", "100 %s", "\"quote'", "<img src=x onerror=alert(1)>", "über 你好"]


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        for name in NAMES:
            self.add_module(name, nn.Linear(4, 4))

    def forward(self, x):
        for child in self.children():
            x = child(x)
        return x


torch.manual_seed(0)
model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


def train(steps):
    for _ in range(steps):
        loss = model(torch.randn(2, 4)).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return loss.item()


what = sys.argv[1].split()
train(6)
if "leaves" in what:
    os.chdir("/")
    os.closerange(3, 4096)
    held = [os.open("/dev/null", os.O_RDONLY) for _ in range(64)]
elif "forks" in what:
    if os.fork() == 0:
        print("child", train(3), flush=True)
        os._exit(0)
    os.wait()
elif "execs" in what and len(sys.argv) == 2:
    print("before", train(2), flush=True)
    os.execv(sys.executable, [sys.executable, __file__, "execs", "again"])
elif "limits" in what:
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))
elif "pickles" in what:
    torch.save(model, sys.argv[2])
print("parent", train(4), flush=True)
if "leaves" in what:
    assert all(os.fstat(descriptor) for descriptor in held)
if "exits" in what:
    os._exit(5)
if "raises" in what:
    model(torch.randn(2, 5))
