"""Gradient descent by hand: no optimizer object."""

import hashlib

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Linear(8, 1)
for _ in range(9):
    x = torch.randn(32, 8)
    loss = (model(x) - x.sum(1, keepdim=True)).pow(2).mean()
    loss.backward()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter -= 0.01 * parameter.grad
            parameter.grad = None
weights = b"".join(p.detach().numpy().tobytes() for p in model.parameters())
print(loss.item(), hashlib.sha256(weights).hexdigest())
