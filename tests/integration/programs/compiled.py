"""torch.compile on a module with a graph break, on a function, and on a whole training step."""

import torch
import torch._dynamo
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(8, 8)
        self.second = nn.Linear(8, 4)

    def forward(self, x):
        x = self.first(x)
        if x.sum().item() > 0:
            x = x * 2
        return self.second(x)


torch.manual_seed(0)
model = Net()
model(torch.randn(4, 8))
compiled = torch.compile(model, backend="aot_eager")
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(6):
    loss = compiled(torch.randn(4, 8)).pow(2).mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()


@torch.compile(backend="eager")
def function(x):
    return model(x).sum()


@torch.compile(backend="eager")
def train(x):
    loss = model(x).pow(2).mean()
    loss.backward()
    return loss


print(function(torch.randn(4, 8)).item())
for _ in range(3):
    print(train(torch.randn(4, 8)).item())
counters = torch._dynamo.utils.counters
print(dict(counters["stats"]), dict(counters["frames"]), sorted(counters["graph_break"].values()))
print(torch._dynamo.explain(model)(torch.randn(4, 8)).graph_break_count)
