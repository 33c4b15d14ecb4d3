"""Called like a module of Python's own, and imported by nobody but the program."""

import torch

print("statistics of the program")


def running_mean(values: torch.Tensor) -> torch.Tensor:
    return values.cumsum(0) / torch.arange(1, len(values) + 1)
