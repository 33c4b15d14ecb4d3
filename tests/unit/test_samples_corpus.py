"""The samples' corpus: real, the same every time, and there even when some sources are not."""

from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st
from python_source import UNKNOWN, Vocabulary, read_words, standard_library


def test_words_are_names_numbers_signs_and_line_ends(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("def f(x1):\n    return x1 + 20\n")
    assert read_words(tmp_path, 100) == ["def", "f", "(", "x1", ")", ":", "\n", "return", "x1", "+", "20", "\n"]


def test_files_come_in_the_order_of_their_names_up_to_the_limit(tmp_path: Path) -> None:
    for name in ["b", "a", "c"]:
        (tmp_path / f"{name}.py").write_text(f"{name} {name}")
    assert read_words(tmp_path, 3) == ["a", "a", "b"]


def test_what_cannot_be_read_is_passed_over(tmp_path: Path) -> None:
    (tmp_path / "broken.py").symlink_to(tmp_path / "nowhere")
    (tmp_path / "folder.py").mkdir()
    (tmp_path / "latin.py").write_bytes(b"caf\xe9")
    assert read_words(tmp_path, 10)[0] == "caf"
    assert read_words(tmp_path / "missing", 10) == []


def test_the_standard_library_is_enough_for_the_defaults_of_the_sample() -> None:
    assert len(read_words(standard_library(), 20_000)) == 20_000


def test_frequent_words_are_known_and_ties_are_broken_by_spelling() -> None:
    vocabulary = Vocabulary(["b", "a", "c", "c", "d"], size=4)
    assert vocabulary.words == [UNKNOWN, "c", "a", "b"]
    assert vocabulary.encode(["a", "d", "never seen"]) == [2, 0, 0]


@given(st.lists(st.text(), max_size=30), st.integers(min_value=1, max_value=40))
def test_every_word_gets_a_number_of_the_vocabulary(words: list[str], size: int) -> None:
    vocabulary = Vocabulary(words, size)
    assert len(vocabulary) <= size
    assert all(number in range(len(vocabulary)) for number in vocabulary.encode(words))


def test_line_ends_are_visible_in_the_text() -> None:
    vocabulary = Vocabulary(["def", "\n"], size=3)
    assert vocabulary.decode(vocabulary.encode(["def", "\n"])) == "def ⏎"
