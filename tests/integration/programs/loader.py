"""Training from a DataLoader; the arguments say how its workers start ("none": without workers), and for how many
epochs, if not for two."""

import hashlib
import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Points(Dataset):
    def __len__(self):
        return 48

    def __getitem__(self, index):
        x = torch.linspace(0, 1, 4) * index
        return x, x.sum() + torch.rand(())


def main():
    start, epochs = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 2
    torch.manual_seed(0)
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
    loader = DataLoader(
        Points(),
        batch_size=4,
        shuffle=True,
        num_workers=0 if start == "none" else 2,
        multiprocessing_context=None if start == "none" else start,
    )
    for _ in range(epochs):
        for x, y in loader:
            loss = nn.functional.mse_loss(model(x)[:, 0], y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    weights = b"".join(p.detach().numpy().tobytes() for p in model.parameters())
    print(loss.item(), hashlib.sha256(weights).hexdigest(), torch.rand(1).item())


if __name__ == "__main__":
    main()
