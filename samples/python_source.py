"""Real text that every machine has: the source of the standard library of the Python that runs this."""

import re
import sysconfig
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import islice
from pathlib import Path

UNKNOWN = "<unk>"
_WORD = re.compile(r"[^\W\d]\w*|\d+|\n|[^\w\s]")


def standard_library() -> Path:
    return Path(sysconfig.get_path("stdlib"))


def read_words(folder: Path, limit: int) -> list[str]:
    """The first `limit` names, numbers, signs and line ends of the sources in a folder, file by file in their order."""
    words: list[str] = []
    for file in sorted(folder.glob("*.py")):
        try:
            words += _WORD.findall(file.read_text(encoding="utf-8", errors="replace"))
        except OSError:
            continue  # a distribution may leave some of them out
        if len(words) >= limit:
            break
    return words[:limit]


class Vocabulary:
    """The most frequent words, numbered from 1; 0 stands for any other."""

    def __init__(self, words: Iterable[str], size: int) -> None:
        ranked = sorted(Counter(words).items(), key=lambda item: (-item[1], item[0]))
        self.words = [UNKNOWN, *(word for word, _ in islice(ranked, size - 1))]
        self._numbers = {word: number for number, word in enumerate(self.words)}

    def __len__(self) -> int:
        return len(self.words)

    def encode(self, words: Iterable[str]) -> list[int]:
        return [self._numbers.get(word, 0) for word in words]

    def decode(self, numbers: Sequence[int]) -> str:
        return " ".join("⏎" if self.words[number] == "\n" else self.words[number] for number in numbers)
