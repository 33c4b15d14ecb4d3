"""How large a batch is, whatever it is made of."""

from collections import OrderedDict, UserDict, namedtuple
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from tracekit.collectors.batch_bytes import bytes_of, bytes_of_any, pieces_of

Pair = namedtuple("Pair", "image label")


@dataclass
class Batch:
    image: torch.Tensor
    names: list[str]


class Marked(torch.Tensor):
    """A class of a program's, which wants to see all that is asked of its tensors."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise AssertionError(func)


IMAGE = torch.zeros(10, dtype=torch.float32)
INSIDE = SimpleNamespace()
INSIDE.itself, INSIDE.image = INSIDE, IMAGE


@pytest.mark.parametrize(
    ("batch", "size"),
    [
        (IMAGE, 40),
        ([IMAGE, [IMAGE + 1, 7]], 80),
        ({"image": IMAGE, "label": torch.zeros(3, dtype=torch.int64)}, 64),
    ],
)
def test_of_what_torch_collates(batch: object, size: int) -> None:
    assert bytes_of(batch) == bytes_of_any(batch) == size


@pytest.mark.parametrize(
    ("batch", "size"),
    [
        (Pair(IMAGE, 3), 40),
        (OrderedDict(image=IMAGE), 40),
        (UserDict(image=IMAGE), 40),
        (Batch(IMAGE, ["a"]), 40),
        (SimpleNamespace(inside=SimpleNamespace(parts=[IMAGE], more={1: np.zeros(3)})), 64),
        ((tuple(torch.zeros(2) for _ in range(100)), list(range(100))), 800),
        (INSIDE, 40),
        ([IMAGE, IMAGE], 40),  # it is sent once
        (torch.zeros(10).as_subclass(Marked), 40),
        (torch.eye(3).to_sparse(), -1),
        (["a"] * 5000, 0),
        ([object()], -1),
        ([torch.zeros(1) for _ in range(5000)], -1),
    ],
)
def test_of_what_else_there_is(batch: object, size: int) -> None:
    """GIVEN what other functions than torch's make of samples THEN its size is found, or said to be unknown."""
    assert bytes_of(batch) in (-1, 80)
    with torch.device("cpu"):  # a mode, which wants to see all
        assert bytes_of_any(batch) == size


@pytest.mark.parametrize(("device", "is_on"), [("cpu", False), ("meta", True)])
def test_whether_a_batch_is_on_a_device(device: str, is_on: bool) -> None:
    assert pieces_of({"x": [torch.zeros(1, device=device)], "y": ("a", 1)}) == (1, 10, is_on)
    assert pieces_of("a") == (0, 1, False)
    assert pieces_of([b"x" * 1000] * 3 + [[1, 2.0, None]]) == (0, 3018, False)
    assert pieces_of({"text": ["ab"] * 10_000}) == (0, 20_000, False)


def test_tensors_that_share_their_memory_are_sent_as_one_piece() -> None:
    whole = torch.zeros(4)
    assert pieces_of({"rows": list(whole), "other": torch.zeros(2), "array": np.zeros(3)}) == (2, 24, False)
