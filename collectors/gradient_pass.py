"""A backward pass of one model, as far as its buckets tell."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Sort:
    """What is sent: of which group and dtype, how many bytes, and where."""

    group: str
    words: int
    size: int
    on_device: bool


@dataclass(eq=False)
class Pass:
    """The buckets of one model in the backward pass that is under way, and how many the one before had. `sort` is that
    of the last one that was looked at; `looks`: the one before looked for unused parameters, as this one `has_looked`.
    """

    seen: int = 0
    before: int = -1
    sort: Sort | None = None
    looks: bool = False
    has_looked: bool = False
