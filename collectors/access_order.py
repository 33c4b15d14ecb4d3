"""Access order: which samples a loader will ask for, known beforehand where torch's own samplers decide it.

Copies of a sampler run beside the program's, on copies of its random generators, and every index that the program's
sampler gives out is compared with theirs. The program's own samplers and generators are left as they are. No data set
is asked for its length that would not have been: the copies learn what the program's sampler was told.
"""

import weakref
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import chain, filterfalse, islice
from threading import RLock
from typing import Any

from .loaders import sampler_of
from .sampler_twins import NOTHING, Length, Twin, are_of_torch, decides_at_once
from .tracebacks import comes_from_a_signal_handler

# How far ahead the order is known: when the run begins, when an epoch begins, or not.
RUN, EPOCH, NONE = "run", "epoch", "none"
# So many batches wait to be compared at most, besides those that are asked for ahead.
_MOST_WAITING = 2048
# Of a sampler that decides on all of its order at once so many batches of an epoch are compared; and in short steps, in
# which each costs some microseconds, only the first ones once so many epochs were: the copies tell them apart from any
# other order as well. Then one epoch in so many is, where the next ones can be known without: a copy takes 0.3 ms.
_MOST_COMPARED, _FIRST_COMPARED, _WHOLE_EPOCHS, _EPOCHS_APART = 10_000, 8, 3, 8
# So many indices of one loader wait to be compared, about: they take 40 bytes each, and as much when they are.
_MOST_INDICES = 200_000
_ITERABLE = 1  # of torch's `_DatasetKind`


class AccessOrder:
    """The order of one loader. Its `facts` are its class, and of the indices that were `checked` those `predicted`.

    Two copies of the sampler run ahead. One is made when an epoch begins: what it gets right was known then. The other
    one was made when the first epoch began and goes on by itself: what it gets right was known for the whole run.

    `window_is_open` tells whether the profiler that runs is a window of ours, `is_short` whether the program's steps
    are so short that comparing counts.
    """

    def __init__(self, facts: dict[str, Any], window_is_open: Callable[[], bool], is_short: Callable[[], bool]) -> None:
        self._facts = facts
        self._window_is_open = window_is_open
        self._is_short = is_short
        self._twin: Twin | None = None  # the one that goes on; None once it was wrong
        self._epochs = self._complete = self._begun = 0  # epochs that were copied, complete, and all
        self._last: Epoch | None = None
        self._last_sampler = 0

    def can_be_known(self, iterator: Any) -> bool:
        """Whether the order of an epoch that is to begin may be predicted: torch's own samplers decide it."""
        if iterator._dataset_kind == _ITERABLE or not are_of_torch(iterator._index_sampler):
            self.is_not_known()
        return self._facts.get("predictability") != NONE

    def most_compared(self, index_sampler: Any) -> int | None:
        """How many batches of an epoch that is to begin are compared; None for all."""
        if not decides_at_once(index_sampler):
            return None
        return _FIRST_COMPARED if self._complete >= _WHOLE_EPOCHS and self._is_short() else _MOST_COMPARED

    def begin(self, epoch: "Epoch", iterator: Any, indices: Iterator[Any], generator: Any) -> None:
        """The epoch's iterator is about to ask for the first of the indices. `generator`: the loader's own, if any."""
        self.settle()
        if self._last is not None and self._last.expected and not self._last.is_complete:
            self._facts["left_early"] = True
        if self._last is not None and self._last.is_complete and not self._last.was_asked:
            self._facts["ends_unasked"] = True
        if self._last is not None and self._last_sampler == id(iterator._index_sampler):  # as long, as far as is known
            epoch.expected = self._last.expected
        self._last_sampler = id(iterator._index_sampler)
        if self.can_be_known(iterator) and not self._may_go_past(iterator):
            try:
                self._copy(epoch, iterator, indices, generator)
            except Exception as error:  # too many samples
                if comes_from_a_signal_handler(error):
                    raise
                self.is_not_known()
        self._last = epoch

    def _may_go_past(self, iterator: Any) -> bool:
        """Whether an epoch may begin without a copy of its sampler."""
        self._begun += 1
        is_compared_anyway = self._twin is not None or self._complete < _WHOLE_EPOCHS or not self._is_short()
        return not is_compared_anyway and self._begun % _EPOCHS_APART > 0 and decides_at_once(iterator._index_sampler)

    def completed(self) -> None:
        """The program has had all batches of an epoch."""
        self._complete += 1

    def settle(self) -> None:
        """Compare what has been given out and not been compared yet."""
        if self._last is not None:
            self._last.settle()

    def _copy(self, epoch: "Epoch", iterator: Any, indices: Iterator[Any], generator: Any) -> None:
        self._epochs += 1
        with self.unseen() as is_unseen:
            if not is_unseen:
                if "predictability" in self._facts:
                    self.is_not_foreseen()
                return
            sampler = iterator._index_sampler
            twin = Twin(sampler)
            if self._facts.setdefault("draws_from", twin.draws_from) != twin.draws_from:
                self._facts["varied"] = True  # not one kind of loader
            if self._epochs == 1:
                self._twin = None if twin.draws_from_default else Twin(sampler)
            elif self._twin is not None and not self._goes_on(self._twin, twin, iterator, generator):
                self._twin = None
            epoch.twin, epoch.length = twin, Length(sampler, indices)
            epoch.length.put_in()

    def _goes_on(self, foreseen: "Twin", now: "Twin", iterator: Any, generator: Any) -> bool:
        """Bring the copy that goes on to where the next epoch begins; False where that is not known."""
        last = self._last
        if last is None or not (last.is_complete or foreseen.draws_from == NOTHING):
            return False
        if last.is_complete and foreseen.draws_from != NOTHING:
            last.go_on_to_its_end()
        if not last.is_of(iterator):
            foreseen.draw_base_seed(generator)
        return foreseen.set_epoch_like(now)

    def run_ahead(self, epoch: "Epoch", twin: "Twin", length: int) -> None:
        """The program's sampler has begun, told that there are so many samples: so do the copies."""
        try:
            with self.unseen():
                epoch.known = twin.begin(length)
                epoch.expected = twin.batches
                if self._twin is not None:
                    epoch.foreseen = self._twin.begin(length)
        except Exception as error:  # too many samples
            if comes_from_a_signal_handler(error):
                raise
            self.is_not_known()
            return
        shown = self._epochs > 1 or twin.is_the_same_each_time
        self._tell(RUN if self._twin is not None and shown else EPOCH)

    @contextmanager
    def unseen(self) -> Iterator[bool]:
        """A block for operations of the copies, which a window of ours does not record. False: somebody else would see
        them, a profiler or a mode of the program's."""
        import torch

        is_profiled = torch._C._autograd._profiler_enabled()
        if is_profiled and self._window_is_open():
            torch._C._autograd._enable_record_function(False)
            try:
                yield not _modes()
            finally:
                torch._C._autograd._enable_record_function(True)
        else:
            yield not is_profiled and not _modes()

    def count(self, batches: list[Any], predicted: bool) -> None:
        indices = sum(len(batch) if type(batch) is list else batch is not None for batch in batches)
        self._facts["checked"] = self._facts.get("checked", 0) + indices
        self._facts["predicted"] = self._facts.get("predicted", 0) + indices * predicted

    def is_not_foreseen(self) -> None:
        self._twin = None
        self._tell(EPOCH)

    def is_not_known(self) -> None:
        self._twin = None
        self._tell(NONE)

    def is_told_late(self) -> None:
        self._facts["told_late"] = True

    def _tell(self, predictability: str) -> None:
        if self._facts.get("predictability") != NONE:  # for good
            self._facts["predictability"] = predictability


class Epoch:
    """One pass over a sampler, compared with what was predicted of it when it began and when the run began."""

    def __init__(self, order: AccessOrder, iterator: Any, generator: Any, ahead: int = 0) -> None:
        """`ahead`: so many batches are asked for before the program takes the first one."""
        self.is_complete = False  # the program has had all of its batches
        self.was_asked = False  # by the program, for one more than there are
        self.is_exhausted = ahead > 0  # so has the sampler been, then
        self.expected = 0  # how many batches there are, where that is known
        self.has_begun = False
        self.twin: Twin | None = None
        self.length: Length | None = None
        self.known: Iterator[Any] | None = None
        self.foreseen: Iterator[Any] | None = None
        self._order = order
        self._iterator = weakref.ref(iterator)  # which is to go, with its workers, when the program lets go of it
        self._generator = generator
        self._issued: deque[Any] = deque(maxlen=_MOST_WAITING + ahead)  # what is not compared yet
        self._foretold = 0  # batches that the copy which goes on was right about
        self._number = _number_of(iterator)  # that the sampler has been told so far

    def is_of(self, iterator: Any) -> bool:
        return self._iterator() is iterator

    def goes_on_with(self, before: object, after: Iterator[Any]) -> None:
        """Let the loader's iterator ask another one from now on, if it asks this one."""
        iterator = self._iterator()
        if iterator is not None and getattr(iterator, "_sampler_iter", None) is before:
            iterator._sampler_iter = after

    def watched(
        self, indices: Iterator[Any], are_batches: bool, most: int | None, spend: Callable[..., None]
    ) -> "Watched":
        """What a sampler gives out, noted on its way to the program: of an epoch so many batches at `most`. `spend`
        calls a function at our own expense.

        But for the first one it is noted by the interpreter itself: a function of ours, once a batch, finds nothing in
        the caches. Of the lists that torch makes for batches the program gets copies, to do with as it likes.
        """
        noted = filterfalse(self._issued.append, indices)  # `append` returns None
        rest: Iterator[Any] = map(list.copy, noted) if are_batches else noted
        if most is not None:
            # `islice` lets go of it when it fails, which another thread may be in; but nobody else is to hold on to it,
            # and so to the data set, when the program has let go of the iterator.
            iterator = self._iterator()
            if iterator is not None:
                iterator._tracekit_asked = rest
            return Watched(self, indices, chain(islice(rest, most), indices), spend)
        # Then None, and nothing more for the program. The copies are asked once more, too: some draw when they end.
        end = filter(self._issued.append, [None])
        return Watched(self, indices, chain(rest, end), spend)

    def begin(self, indices: Iterator[Any]) -> None:
        """The sampler is about to be asked for the first time."""
        self.has_begun = True
        self._order.begin(self, self._iterator(), indices, self._generator)

    def began(self) -> None:
        """It has been asked, and has been told how many samples there are."""
        if self.length is not None and self.twin is not None:
            self._order.run_ahead(self, self.twin, self.length.taken_back())
        self.length = self.twin = None

    def first_given(self) -> None:
        """The program has had the first batch: what it has told the sampler since it had the iterator comes too late
        where workers are handed indices at once."""
        iterator = self._iterator()
        if iterator is not None and _number_of(iterator) != self._number:
            self._order.is_told_late()

    def most_to_wait(self) -> int:
        """How many more batches may be given out before they are compared."""
        try:
            last = self._issued[-1]
        except IndexError:  # another thread may take the last one
            last = None
        return max(_MOST_INDICES // (len(last) if type(last) is list and last else 1), 1)

    def settle(self) -> None:
        """Compare what was given out since the last time; if somebody would see it, later, if that is not too late."""
        if not self.has_begun:  # somebody else has put another iterator over the sampler in the place of ours
            self._order.is_not_known()
        elif self.known is None:
            self._issued.clear()
        elif len(self._issued) == self._issued.maxlen:
            self.known = self.foreseen = None
            self._order.is_not_foreseen()
        elif self._issued:
            try:
                with self._order.unseen() as is_unseen:
                    if is_unseen:
                        self._compare()
            except Exception as error:  # what is asked for does not compare to a truth: arrays
                if comes_from_a_signal_handler(error):
                    raise
                self.known = self.foreseen = None
                self._order.is_not_known()

    def _compare(self) -> None:
        issued = [self._issued.popleft() for _ in range(len(self._issued))]
        assert self.known is not None
        if self.foreseen is not None:
            if _agreed(self.foreseen, issued) == len(issued):
                self._foretold += len(issued)
                self._order.count(issued, True)
                return
            self.foreseen = None
            self._order.is_not_foreseen()
            next(islice(self.known, self._foretold, self._foretold), None)  # the other copy has been idle
        agreed = _agreed(self.known, issued)
        self._order.count(issued[:agreed], True)
        if agreed < len(issued):
            self._order.count(issued[agreed : agreed + 1], False)
            self.known = None
            self._order.is_not_known()

    def all_given(self) -> None:
        """The program has had all of its batches, whether it asks for one more or not."""
        if not self.is_complete:
            self.is_complete = True
            self._order.completed()
        self.settle()
        if not self._issued:
            self.known = None  # which may be as large as the order

    def complete(self) -> None:
        """The program has asked for one more than there are."""
        self.was_asked = self.is_exhausted = True
        self.all_given()

    def go_on_to_its_end(self) -> None:
        """Bring the copy that goes on to where the program's sampler was left: some draw when they end."""
        left = None if self.is_exhausted else max(self.expected - self._foretold, 0)
        deque(islice(self.foreseen or (), left), maxlen=0)

    def failed(self) -> None:
        """The sampler raised an exception."""
        if self.length is not None:
            self.length.taken_back()
        self.length = self.twin = self.known = self.foreseen = None


class Watched:
    """An iterator over the indices of an epoch. Their order is predicted just before and after the first one is asked
    for; then the loader's iterator asks the rest itself."""

    def __init__(self, epoch: Epoch, indices: Iterator[Any], rest: Iterator[Any], spend: Callable[..., None]) -> None:
        self._epoch, self._indices, self._rest, self._spend = epoch, indices, rest, spend
        self._first: list[Any] = []  # taken, and not given yet
        self._has_begun = False
        self._lock = RLock()  # for another thread that asks meanwhile

    def __iter__(self) -> "Watched":
        return self

    def __next__(self) -> Any:
        with self._lock:
            if not self._has_begun:
                self._has_begun = True
                try:
                    self._spend(self._epoch.begin, self._indices)
                    self._first += islice(self._rest, 1)
                    self._spend(self._epoch.began)
                except BaseException:
                    self._epoch.failed()
                    raise
                self._epoch.goes_on_with(self, self._rest)
            if self._first:
                return self._first.pop()
        return next(self._rest)


def _number_of(iterator: Any) -> object:
    """The epoch that the program has told the sampler last; None for those that are told none."""
    number = getattr(sampler_of(iterator._index_sampler), "__dict__", {}).get("epoch")
    return number if type(number) is int else None  # a program's own may keep anything there


def _agreed(ahead: Iterator[Any], issued: list[Any]) -> int:
    """How many of the batches that were given out a copy gives out too, before it gives another."""
    expected = [*islice(ahead, len(issued))]
    expected += [None] * (len(issued) - len(expected))
    if expected == issued:
        return len(issued)
    return next(at for at, (mine, other) in enumerate(zip(expected, issued, strict=True)) if mine != other)


def _modes() -> int:
    """How many modes the program is in, which would see the operations of our copies."""
    import torch

    return int(torch._C._len_torch_function_stack() + torch._C._len_torch_dispatch_stack())
