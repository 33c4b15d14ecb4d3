"""tracekit: record an unmodified PyTorch program, explain its time, recommend values, apply and verify them."""

from tracekit.marks import span, step

__version__ = "0.1.0"
__all__ = ["__version__", "open_run", "span", "step"]


def __getattr__(name: str) -> object:
    # Reading needs pandas and pyarrow; marking a step inside a program must not import them.
    if name == "open_run":
        from tracekit.run.reader import open_run

        return open_run
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
