"""Short training steps, with a validation, also of another module, in their midst and a forked child that trains on."""

import os

import torch
from torch import nn


class Probe(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.mean()


torch.manual_seed(0)
torch.set_num_threads(1)
model = nn.Sequential(nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 1))
probe, criterion = Probe().eval(), nn.MSELoss()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)


def train(steps: int) -> None:
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.ones(4, 16)).sum().backward()
        optimizer.step()


train(600)
model.eval()
for _ in range(200):
    probe(torch.ones(3))
    criterion(model(torch.ones(4, 16)), torch.ones(4, 1))  # which is in training mode, as a loss always is
model.train()
train(600)
child = os.fork()
train(100)
if child:
    os.waitpid(child, 0)
    print(float(model[2].bias))
else:
    os._exit(0)
