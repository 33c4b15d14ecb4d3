"""Trains until it is killed; says on stdout which step it has finished."""

import sys

import torch
from torch import nn

torch.manual_seed(0)
model = nn.LSTM(8, 16, num_layers=2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(10_000_000):
    loss = model(torch.randn(5, 4, 8))[0].pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 50 == 49:
        print(step + 1)
        sys.stdout.flush()
