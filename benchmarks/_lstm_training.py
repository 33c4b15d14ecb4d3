"""The program that the recording benchmarks measure: an LSTM language model on random words. Knows nothing of tracekit.

With --profiler it runs torch.profiler around every step, for comparison. Prints one JSON object about its own steps.
"""

import argparse
import contextlib
import json
import time

import torch
from torch import nn


class LanguageModel(nn.Module):
    """Embedding, two LSTM layers, decoder."""

    def __init__(self, words: int, width: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(words, width)
        self.rnn = nn.LSTM(width, width, num_layers=2, dropout=0.1)
        self.dropout = nn.Dropout(0.1)
        self.decoder = nn.Linear(width, words)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.decoder(self.dropout(self.rnn(self.embedding(x))[0]))


def profile_every_step() -> torch.profiler.profile:
    """torch.profiler on every step, one step at a time so that its memory stays bounded."""
    every_step = torch.profiler.schedule(wait=0, warmup=0, active=1, repeat=0)
    return torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], schedule=every_step)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--length", type=int, default=16)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--words", type=int, default=500)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--seconds", type=float, help="stop after this time instead")
    parser.add_argument("--profiler", action="store_true")
    options = parser.parse_args()

    torch.manual_seed(0)
    model = LanguageModel(options.words, options.width)
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    words = torch.randint(0, options.words, (options.length + 1, options.batch))
    times: list[float] = []
    profiler = profile_every_step() if options.profiler else None
    began = time.perf_counter()
    with profiler or contextlib.nullcontext():
        while time.perf_counter() - began < options.seconds if options.seconds else len(times) < options.steps:
            start = time.perf_counter()
            loss = criterion(model(words[:-1]).flatten(0, 1), words[1:].flatten())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            times.append(time.perf_counter() - start)
            if profiler:
                profiler.step()
    steady = sorted(times[10:])
    loop = sum(times[10:])
    print(
        json.dumps(
            {"steps": len(times), "median_ms": 1e3 * steady[len(steady) // 2], "mean_ms": 1e3 * loop / len(steady)}
        )
    )


if __name__ == "__main__":
    main()
