"""The errors a user can meet; `tracekit.cli` prints them as one line and leaves with their exit code."""


class TracekitError(Exception):
    """Something the user can mend: the message says what is wrong, where, and what to do."""

    exit_code = 2


class RunError(TracekitError):
    """A run directory that cannot be read or written as asked."""
