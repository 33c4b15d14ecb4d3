"""The programs that the threads benchmark measures: small models of many shapes. Knows nothing of tracekit."""

import argparse
import time
from collections.abc import Callable
from itertools import pairwise

import torch
from torch import Tensor, nn


class Stack(nn.Module):
    """One-layer LSTMs of the given widths, one after the other."""

    def __init__(self, widths: list[int]) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.LSTM(before, width) for before, width in pairwise([widths[0], *widths]))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x, _ = layer(x)
        return x


class First(nn.Module):
    """The output of an RNN without its state."""

    def __init__(self, rnn: nn.RNNBase) -> None:
        super().__init__()
        self.rnn = rnn

    def forward(self, x: Tensor) -> Tensor:
        return self.rnn(x)[0]


class Cells(nn.Module):
    """Two LSTM cells in a loop over the steps of a sequence."""

    def __init__(self, narrow: int, wide: int) -> None:
        super().__init__()
        self.first, self.second = nn.LSTMCell(narrow, narrow), nn.LSTMCell(narrow, wide)

    def forward(self, x: Tensor) -> Tensor:
        state: tuple[Tensor, Tensor] | None = None
        other: tuple[Tensor, Tensor] | None = None
        for row in x:
            state = self.first(row, state)
            other = self.second(state[0], other)
        assert other is not None
        return other[0]


def mlp(*widths: int) -> nn.Sequential:
    return nn.Sequential(*(layer for pair in pairwise(widths) for layer in (nn.Linear(*pair), nn.ReLU())))


def transformer(width: int, layers: int) -> nn.Module:
    layer = nn.TransformerEncoderLayer(width, 4, 2 * width, dropout=0.0, batch_first=True)
    return nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)


def sequence(length: int, batch: int, width: int) -> Callable[[], Tensor]:
    return lambda: torch.randn(length, batch, width)


# name -> (model, input, training)
MODELS: dict[str, tuple[Callable[[], nn.Module], Callable[[], Tensor], bool]] = {
    "stack, one wide of 19": (lambda: Stack([48] * 9 + [640] + [48] * 9), sequence(24, 2, 48), False),
    "stack, one wide of 13": (lambda: Stack([32] * 6 + [512] + [32] * 6), sequence(24, 1, 32), False),
    "stack, wide ones dominate": (lambda: Stack([64, 512, 512, 64]), sequence(24, 4, 64), False),
    "stack, training": (lambda: Stack([48] * 5 + [512] + [48] * 5), sequence(16, 4, 48), True),
    "narrow stack": (lambda: Stack([32] * 8), sequence(24, 2, 32), False),
    "wide stack": (lambda: Stack([512] * 3), sequence(16, 4, 512), False),
    "bidirectional 2-layer LSTM, training": (
        lambda: First(nn.LSTM(128, 128, 2, bidirectional=True)),
        sequence(16, 8, 128),
        True,
    ),
    "bidirectional 3-layer LSTM": (lambda: First(nn.LSTM(64, 64, 3, bidirectional=True)), sequence(24, 4, 64), False),
    "LSTM cells, training": (lambda: Cells(64, 256), sequence(12, 4, 64), True),
    "2-layer GRU": (lambda: First(nn.GRU(128, 128, 2)), sequence(16, 8, 128), False),
    "MLP, training": (lambda: mlp(512, 2048, 2048, 512), lambda: torch.randn(64, 512), True),
    "small MLP, training": (lambda: mlp(64, 128, 128, 64), lambda: torch.randn(32, 64), True),
    "transformer, training": (lambda: transformer(64, 2), sequence(8, 32, 64), True),
    "transformer": (lambda: transformer(256, 2), sequence(4, 64, 256), False),
}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("name", choices=list(MODELS))
    parser.add_argument("--seconds", type=float, default=10.0)
    options = parser.parse_args()
    torch.manual_seed(0)
    make_model, make_input, training = MODELS[options.name]
    model, data = make_model().train(training), make_input()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001) if training else None
    began, steps = time.perf_counter(), 0
    with torch.set_grad_enabled(training):
        while time.perf_counter() - began < options.seconds:
            output = model(data)
            if optimizer is not None:
                optimizer.zero_grad()
                output.square().mean().backward()
                optimizer.step()
            steps += 1
    print(f"{steps} steps")


if __name__ == "__main__":
    main()
