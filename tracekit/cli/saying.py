"""What commands say beside their output."""

import sys


def say(line: str) -> None:
    """A line on stderr, marked as ours, with what a terminal would obey made visible."""
    from tracekit.analysis.words import visible

    print(f"tracekit: {visible(line)}", file=sys.stderr, flush=True)
