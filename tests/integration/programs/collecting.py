"""A loop that collects its garbage every tenth step, with workers that do so as they begin."""

import gc

import torch
from torch.utils.data import DataLoader


def collect(worker):
    gc.collect()


def main():
    torch.manual_seed(0)
    kept = [[index] for index in range(300_000)]
    parameter = torch.nn.Parameter(torch.zeros(4))
    optimizer = torch.optim.SGD([parameter], lr=0.1)
    for step, _ in enumerate(DataLoader(torch.arange(160.0), batch_size=4, num_workers=2, worker_init_fn=collect)):
        parameter.sum().backward()
        optimizer.step()
        if step % 10 == 9:
            gc.collect()
    print(len(kept), parameter.sum().item())


if __name__ == "__main__":
    main()
