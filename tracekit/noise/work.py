"""What a process of noise does, whatever its kind."""

from abc import ABC, abstractmethod


class Work(ABC):
    """Something to do, in amounts: ns of CPU time, bytes or operations."""

    @abstractmethod
    def do(self, amount: float) -> float:
        """Do about so much, or less where it would take long; what was done. Of what is held: hold so much from now on;
        what is held."""

    def rest(self) -> None:  # noqa: B027 most do nothing between two amounts
        """Nothing is to be done for a while: stop what goes on between two amounts too."""

    def close(self) -> None:  # noqa: B027 most make nothing that stays
        """Remove what it made."""
