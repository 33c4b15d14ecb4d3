"""Inference through LSTM layers of very different width: an ordinary program, nothing in it knows of tracekit.

Narrow layers, one wide layer, narrow layers again. A narrow layer has too little work for many threads, the wide one
has plenty: no single number of threads suits them all.

    python samples/lstm_widths.py
    python samples/lstm_widths.py --widths 16,16,16,512,16,16,16 --batch 4
"""

import argparse
import time
from itertools import pairwise

import torch
from torch import Tensor, nn

NARROW, WIDE = [16] * 9, [448]


class WidthStack(nn.Module):
    """One-layer LSTMs, each as wide as asked, one after the other."""

    def __init__(self, features: int, widths: list[int]) -> None:
        super().__init__()
        pairs = pairwise([features, *widths])
        self.layers = nn.ModuleList(nn.LSTM(before, width, batch_first=True) for before, width in pairs)

    def forward(self, sequence: Tensor) -> Tensor:
        """Features [batch, length, features] to the last layer's outputs [batch, length, width]."""
        for layer in self.layers:
            sequence, _ = layer(sequence)
        return sequence


def parse_widths(text: str) -> list[int]:
    widths = [int(width) for width in text.split(",")]
    if min(widths) < 1:
        raise ValueError("a layer is at least 1 wide")
    return widths


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--widths", type=parse_widths, default=NARROW + WIDE + NARROW, help="such as 16,16,512,16,16")
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--warm-up", type=int, default=10, help="steps that are not timed")
    parser.add_argument("--batch", type=int, default=2)
    parser.add_argument("--length", type=int, default=48, help="of the sequences")
    parser.add_argument("--features", type=int, default=16, help="of the input")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()

    torch.manual_seed(options.seed)
    model = WidthStack(options.features, options.widths).eval()
    sequences = torch.randn(8, options.batch, options.length, options.features)
    checksum = torch.zeros((), dtype=torch.float64)
    elapsed = 0.0
    with torch.inference_mode():
        for step in range(options.warm_up + options.steps):
            start = time.perf_counter()
            output = model(sequences[step % len(sequences)])
            if step >= options.warm_up:
                elapsed += time.perf_counter() - start
            checksum += output.double().sum()
    print(f"checksum {checksum.item():.12e}")
    print(f"{1e3 * elapsed / options.steps:.3f} ms/step, {torch.get_num_threads()} threads")


if __name__ == "__main__":
    main()
