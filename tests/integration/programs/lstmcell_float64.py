"""An LSTMCell in a Python loop, in float64."""

import hashlib

import torch
from torch import nn


class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.cell = nn.LSTMCell(6, 10)
        self.head = nn.Linear(10, 2)

    def forward(self, x):
        h = c = torch.zeros(x.shape[1], 10, dtype=x.dtype)
        for t in range(x.shape[0]):
            h, c = self.cell(x[t], (h, c))
        return self.head(h)


torch.manual_seed(0)
model = Tagger().double()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(10):
    x = torch.randn(5, 4, 6, dtype=torch.float64)
    loss = model(x).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
weights = b"".join(p.detach().numpy().tobytes() for p in model.parameters())
print(loss.item(), hashlib.sha256(weights).hexdigest())
