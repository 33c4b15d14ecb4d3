"""What a process of noise does, whatever its kind."""


class Work:
    """Something to do, in amounts: ns of CPU time, bytes or operations."""

    def do(self, amount: float) -> float:
        """Do about so much, or less where it would take long; what was done. Of what is held: hold so much from now on;
        what is held."""
        raise NotImplementedError

    def rest(self) -> None:
        """Nothing is to be done for a while: stop what goes on between two amounts too."""

    def close(self) -> None:
        """Remove what it made."""
