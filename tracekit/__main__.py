"""`python -m tracekit` is `tracekit`."""

from tracekit.cli.main import entry

if __name__ == "__main__":
    entry()
