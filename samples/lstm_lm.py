"""A word-level LSTM language model of Python source: an ordinary training program, nothing in it knows of tracekit.

Its corpus is the source of the standard library of the Python that runs it: real text, nothing to download.

    python samples/lstm_lm.py                                        train for 400 steps
    python samples/lstm_lm.py --weights lm.pt                        train, then keep the weights
    python samples/lstm_lm.py --mode generate --weights lm.pt        write text with them
"""

import argparse
import math
from itertools import islice
from pathlib import Path

import torch
from python_source import Vocabulary, read_words, standard_library
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset


class Excerpts(Dataset[tuple[Tensor, Tensor]]):
    """Excerpts of `length` words, each with the words that follow every one of them."""

    def __init__(self, text: Tensor, length: int) -> None:
        self.text = text
        self.length = length

    def __len__(self) -> int:
        return (len(self.text) - 1) // self.length

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        start = index * self.length
        excerpt = self.text[start : start + self.length + 1]
        return excerpt[:-1], excerpt[1:]


State = tuple[Tensor, Tensor]


class LanguageModel(nn.Module):
    """Embedding, LSTM layers and a decoder that shares the embedding's weights."""

    def __init__(self, vocabulary: int, width: int, layers: int, dropout: float) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.dropout = nn.Dropout(dropout)
        self.rnn = nn.LSTM(width, width, num_layers=layers, dropout=dropout, batch_first=True)
        self.decoder = nn.Linear(width, vocabulary)
        nn.init.uniform_(self.embedding.weight, -0.1, 0.1)
        self.decoder.weight = self.embedding.weight

    def forward(self, words: Tensor, state: State | None = None) -> tuple[Tensor, State]:
        """Scores [batch, length, vocabulary] of the words that come next, and the state after the last word."""
        output, state = self.rnn(self.dropout(self.embedding(words)), state)
        return self.decoder(self.dropout(output)), state


def train(model: LanguageModel, text: Tensor, options: argparse.Namespace) -> None:
    excerpts = DataLoader(
        Excerpts(text, options.length),
        batch_size=options.batch,
        shuffle=True,
        drop_last=True,
        num_workers=options.workers,
        generator=torch.Generator().manual_seed(options.seed),
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=options.lr)
    criterion = nn.CrossEntropyLoss()
    model.train()
    done, losses = 0, 0.0
    while done < options.steps:
        for words, following in islice(excerpts, options.steps - done):
            optimizer.zero_grad()
            scores, _ = model(words)
            loss = criterion(scores.flatten(0, 1), following.flatten())
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            done += 1
            losses += loss.item()
            if done % options.report == 0:
                print(f"step {done:5d}  perplexity {math.exp(losses / options.report):9.2f}", flush=True)
                losses = 0.0


@torch.inference_mode()
def generate(model: LanguageModel, start: int, count: int, seed: int) -> list[int]:
    """`count` words, each drawn from what the model expects after those before it."""
    model.eval()
    dice = torch.Generator().manual_seed(seed)
    word, state, words = torch.tensor([[start]]), None, []
    for _ in range(count):
        scores, state = model(word, state)
        word = torch.multinomial(scores[0].softmax(-1), 1, generator=dice)
        words.append(int(word))
    return words


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mode", choices=["train", "generate"], default="train")
    parser.add_argument("--steps", type=int, default=400, help="training steps, or words to generate")
    parser.add_argument("--weights", type=Path, help="file that training writes and generation reads")
    parser.add_argument("--workers", type=int, default=2, help="loader workers")
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--length", type=int, default=32, help="words in an excerpt")
    parser.add_argument("--width", type=int, default=128, help="of the embedding and of each LSTM layer")
    parser.add_argument("--layers", type=int, default=2, help="LSTM layers")
    parser.add_argument("--dropout", type=float, default=0.2)
    parser.add_argument("--lr", type=float, default=3e-3)
    parser.add_argument("--vocabulary", type=int, default=2000, help="words that the model knows")
    parser.add_argument("--corpus-words", type=int, default=400_000)
    parser.add_argument("--report", type=int, default=50, help="steps between two lines of output")
    parser.add_argument("--seed", type=int, default=1)
    return parser.parse_args()


def main() -> None:
    options = parse_options()
    torch.manual_seed(options.seed)
    words = read_words(standard_library(), options.corpus_words)
    if len(words) <= options.length * options.batch:
        raise SystemExit(f"{standard_library()} holds too little Python source to learn from: {len(words)} words")
    vocabulary = Vocabulary(words, options.vocabulary)
    print(f"corpus: {len(words)} words; the model knows {len(vocabulary)} different ones", flush=True)

    model = LanguageModel(len(vocabulary), options.width, options.layers, options.dropout)
    if options.mode == "train":
        train(model, torch.tensor(vocabulary.encode(words)), options)
        if options.weights:
            torch.save(model.state_dict(), options.weights)
    elif options.weights:
        model.load_state_dict(torch.load(options.weights))
    [start] = vocabulary.encode(["def"])
    written = generate(model, start, 24 if options.mode == "train" else options.steps, options.seed)
    print(vocabulary.decode([start, *written]))


if __name__ == "__main__":
    main()
