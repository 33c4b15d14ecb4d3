"""Activations that are not kept: modules are called again in the backward pass, in each of torch's two ways."""

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint


class Net(nn.Module):
    def __init__(self, use_reentrant: bool) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(32, 32), nn.Tanh()) for _ in range(8))
        self.use_reentrant = use_reentrant

    def forward(self, batch: Tensor) -> Tensor:
        for block in self.blocks:
            batch = checkpoint(block, batch, use_reentrant=self.use_reentrant)
        return batch


torch.manual_seed(0)
for use_reentrant in (False, True):
    model = Net(use_reentrant)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(30):
        loss = model(torch.randn(8, 32, requires_grad=True)).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(loss.item(), sum(each.double().abs().sum().item() for each in model.parameters()))
