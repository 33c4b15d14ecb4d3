"""Trains a small network with an LSTM on a GPU: prints a digest of losses and weights.

Its argument says how the workers are started that make its batches; or it is `ranks`: then the main process makes them,
for DistributedDataParallel over NCCL.
"""

import hashlib
import os
import sys

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

STEPS, BATCH, EPOCHS = 60, 32, 2


class Images(Dataset[tuple[Tensor, int]]):
    def __len__(self) -> int:
        return STEPS * BATCH // EPOCHS

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return torch.rand(3, 32, 32, generator=torch.Generator().manual_seed(index)), index % 10


class Network(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(nn.Conv2d(3, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2))
        self.rnn = nn.LSTM(16 * 16, 64, batch_first=True)
        self.head = nn.Linear(64, 10)

    def forward(self, images: Tensor) -> Tensor:
        rows = self.features(images).permute(0, 2, 1, 3).flatten(2)
        scores: Tensor = self.head(self.rnn(rows)[0][:, -1])
        return scores


def main(how: str) -> None:
    torch.manual_seed(0)
    torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark = True, False
    model: nn.Module = Network().cuda()
    workers = {"num_workers": 2, "multiprocessing_context": how, "pin_memory": True}
    if how == "ranks":
        dist.init_process_group("nccl")
        model, workers = DistributedDataParallel(model, device_ids=[0], bucket_cap_mb=0.1), {}
    loader: DataLoader[tuple[Tensor, int]] = DataLoader(Images(), BATCH, shuffle=True, **workers)  # type: ignore[arg-type]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    losses = []
    for _ in range(EPOCHS):
        for images, labels in loader:
            loss = nn.functional.cross_entropy(model(images.cuda(non_blocking=True)), labels.cuda(non_blocking=True))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    digest = hashlib.sha256(repr(losses).encode())
    for parameter in model.parameters():
        digest.update(parameter.detach().cpu().numpy().tobytes())
    print(digest.hexdigest())
    if how == "ranks":
        dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1])
