"""The groups of ranks: what they are called, and the number of each collective that one does together."""

from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import Any

WORLD, NO_SEQUENCE = "world", -1
# As many collectives in a row must have been seen before some may go past us: what a program does that we do not see it
# has then done.
_SEEN_ENOUGH = 64
_NEVER_ENOUGH = -1 << 62


@dataclass
class Numbers:
    """The `next` number of a group. `count` says how many collectives its backend has begun; `counted` is what it said
    when `next` was true. So many `in_a_row` were seen, each of them; `is_seen` says whether the buckets that begin now
    are. While they are not, whatever is counted has a number: what only some ranks of a group take part in, and nobody
    sees (`isend`), would set their numbers apart, if a program does it now and then alone.
    """

    next: int = 0
    count: Callable[[], int] | None = None
    counted: int = 0
    in_a_row: int = 0
    is_seen: bool = True

    def catch_up(self) -> int:
        """The next number, now."""
        if self.count is not None:
            counted = self.count()
            if counted != self.counted:
                if self.is_seen:  # they have no numbers, on no rank
                    # What comes again when so many were seen may come while some ranks do not look.
                    self.in_a_row = 0 if self.in_a_row < _SEEN_ENOUGH else _NEVER_ENOUGH
                else:
                    self.next += counted - self.counted
                self.counted = counted
        return self.next

    def begun(self) -> int:
        """The number of the last one that has begun, now. For another thread: it changes nothing."""
        count = self.count
        return self.next - 1 + (0 if count is None else count() - self.counted)

    def turn(self, is_seen: bool) -> None:
        """From here on buckets are seen, or are not any more."""
        self.catch_up()
        self.is_seen = is_seen


class Groups:
    """The groups of ranks by name.

    The ranks of a group do everything in one order: so what is seen by all of them can be counted. Where a rank lets
    some go past, which others may see, the group's backend has counted those for it (`is_seen`).
    """

    def __init__(self, module: ModuleType) -> None:
        self._module = module
        self._numbers: dict[str, Numbers] = {}
        self._made = 0  # how often the program has made its groups

    def start_anew(self) -> None:
        """The program makes its groups, perhaps again: torch then gives them the names of the former ones."""
        self._made += 1
        self._numbers.clear()

    def name(self, group: Any) -> str:
        """What it is called on all of its ranks; "" where this rank is not in it."""
        again = f" #{self._made}" if self._made > 1 else ""
        if group is None or group is self._module.GroupMember.WORLD:
            return WORLD + again
        name = getattr(group, "group_name", "")
        return f"{name}{again}" if name else ""

    def puts_off(self, group: Any) -> bool:
        """Whether what is begun in it is gathered, to be sent together."""
        world = getattr(self._module, "_world", None)
        put_off = getattr(world, "pg_coalesce_state", None)
        return bool(put_off) and (group or self._module.GroupMember.WORLD) in put_off  # type: ignore[operator]

    def begin(self, name: str, counted: int = 0) -> int:
        """The number of the collective that is about to begin, the same on all ranks of the group. Its backend will
        have `counted` so many then; where that is not known, `begun` is to be called."""
        if not name:
            return NO_SEQUENCE
        numbers = self._of(name)
        number = numbers.catch_up()
        numbers.next = number + 1
        numbers.counted += counted
        numbers.in_a_row += 1
        return number

    def begin_apart(self, name: str) -> int:
        """Something is about to begin that not all ranks of the group take part in: it has no number."""
        if name in self._numbers:
            self._numbers[name].catch_up()
        return NO_SEQUENCE

    def begun(self, name: str) -> None:
        """What was seen has begun: whatever the backend of its group has counted meanwhile was that."""
        numbers = self._numbers.get(name)
        if numbers is not None and numbers.count is not None:
            numbers.counted = numbers.count()

    def count_by(self, name: str, count: Callable[[], int]) -> None:
        """The backend of a group counts what it begins."""
        numbers = self._of(name)
        if numbers.count is None:
            numbers.count, numbers.counted = count, count()

    def numbers_for_unseen(self, name: str) -> Numbers | None:
        """Those of a group, some of whose collectives may go past us. None, and they may not, where nobody counts them,
        or where lately some were counted that we have not seen: not all ranks may take part in those."""
        numbers = self._of(name)
        numbers.catch_up()
        return numbers if numbers.count is not None and numbers.in_a_row >= _SEEN_ENOUGH else None

    def stop_counting(self, group: Any = None) -> None:
        """The program lets go of a group, or of all: so do we of what counts for it."""
        name = self.name(group)
        for each, numbers in self._numbers.items():
            if each == name or name.startswith(WORLD):
                numbers.count = None

    def _of(self, name: str) -> Numbers:
        return self._numbers.setdefault(name, Numbers())
