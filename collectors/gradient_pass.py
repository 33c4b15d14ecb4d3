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
    """The buckets of one model in the backward pass that is under way, and how many the one before had. `sent` bytes of
    its gradients are under way, of `whole`, -1 where that is not known. `sort` is that of the last bucket that was
    looked at; `looks`: the pass before looked for unused parameters, as this one `has_looked`.
    """

    seen: int = 0
    before: int = -1
    sent: int = 0
    whole: int = -1
    sort: Sort | None = None
    looks: bool = False
    has_looked: bool = False

    def ended(self) -> bool:
        """A run of the engine has ended. Whether the pass has: else another run is to bring the other gradients."""
        if self.seen and self.sent >= self.whole:
            self.begin_anew()
        return not self.seen

    def called(self) -> None:
        """The model is called: whatever it has sent was a pass, of gradients that are not as long as its parameters."""
        if self.sent:
            self.whole = -1
            self.begin_anew()

    def begin_anew(self) -> None:
        self.before, self.seen, self.sent = self.seen, 0, 0
        self.looks, self.has_looked = self.has_looked, False
