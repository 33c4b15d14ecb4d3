"""Recorded words on a terminal: names and commands are what the program made them, and may hold anything."""

import shlex
from collections.abc import Iterable


def visible(text: str) -> str:
    """The text with what would not print (control characters, line ends, bidirectional marks) written as escapes."""
    return "".join(letter if letter.isprintable() else _escaped(letter) for letter in text)


def _escaped(letter: str) -> str:
    return letter.encode("unicode_escape", "surrogatepass").decode()


def shortened(text: str, width: int) -> str:
    """The visible text in at most so many characters, the middle left out: names differ at their ends."""
    text = visible(text)
    if len(text) <= width:
        return text
    head = (width - 1) // 2
    return text[:head] + "…" + text[len(text) - (width - 1 - head) :]


def counted(count: int, what: str) -> str:
    """So many of something."""
    return f"{count} {what}" if count == 1 else f"{count} {what}s"


def numbers(values: Iterable[float]) -> str:
    """Numbers in their order, as short as they are known."""
    return ", ".join(f"{each:g}" for each in values)


def shell_line(words: Iterable[str]) -> str:
    """A command as one would type it in bash or zsh, on one line whatever its words hold."""
    return " ".join(_shell_word(word) for word in words)


def _shell_word(word: str) -> str:
    if word.isprintable():
        return shlex.quote(word)
    escaped = word.replace("\\", "\\\\").replace("'", "\\'")
    return "$'" + "".join(letter if letter.isprintable() else _shell_escape(letter) for letter in escaped) + "'"


def _shell_escape(letter: str) -> str:
    return "".join(f"\\x{byte:02x}" for byte in letter.encode("utf-8", "surrogateescape"))


def in_words(workers: int, prefetch: int) -> str:
    """Settings of a loader as a sentence has them."""
    if not workers:
        return "no workers"
    batches = "1 batch" if prefetch == 1 else f"{prefetch} batches"
    return f"{'1 worker' if workers == 1 else f'{workers} workers'} of {batches} ahead"
