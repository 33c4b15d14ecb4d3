"""Compacts the parts of one host: `python -m tracekit.record.compact RUN HOST SCRATCH`.

A process of its own: sorting takes memory, which the supervisor must not keep, and may be killed for it without loss.
"""

import sys
from pathlib import Path

from tracekit.run.writer import PartWriter


def main() -> None:
    run, host, scratch = sys.argv[1:]
    PartWriter(Path(run), host).compact(Path(scratch))


if __name__ == "__main__":
    main()
