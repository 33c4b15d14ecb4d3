"""LBFGS: the optimizer calls a closure with forward and backward several times a step."""

import hashlib

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Linear(8, 1)
x = torch.randn(64, 8)
y = x.sin().sum(1, keepdim=True)
optimizer = torch.optim.LBFGS(model.parameters(), max_iter=5)


def closure():
    optimizer.zero_grad()
    loss = nn.functional.mse_loss(model(x), y)
    loss.backward()
    return loss


for _ in range(7):
    loss = optimizer.step(closure)
weights = b"".join(p.detach().numpy().tobytes() for p in model.parameters())
print(loss.item(), hashlib.sha256(weights).hexdigest())
