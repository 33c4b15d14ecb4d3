"""The colours of the dashboard, each with one meaning everywhere. Readable on light and on dark paper."""

from collections.abc import Sequence

# The phases of a step; told apart also with the common kinds of colour blindness, lightness rising and falling in turn.
PHASE_COLORS = {
    "loading wait": "#e8913a",
    "forward": "#3d82d8",
    "backward": "#7a5cc9",
    "optimizer": "#2e9e78",
    "communication": "#d1517c",
    "other": "#a3abb5",
}

# What a rank was late by.
LATE_COLORS = PHASE_COLORS | {"loading": PHASE_COLORS["loading wait"], "GC": "#8a6d3b", "noise": "#59636f"}

# Of loading: what is known of those who made the batches, and the rest.
LOADING_COLORS = {
    "loading": PHASE_COLORS["loading wait"],
    "loading, computing": "#f4c58e",
    "loading, blocked": "#ad5f14",
}

# What else the timeline shows; quieter, so that the phases stand out.
COLORS = PHASE_COLORS | {
    "step": "#8592a3",
    "range": "#b59a5b",
    "operator": "#6f93b5",
    "runtime": "#9db0a5",
    "kernel": "#2b9aa8",
    "copy": "#c98d6b",
}

# What each key is called in a legend.
LABELS = {key: key for key in COLORS} | {
    "step": "step",
    "range": "named range",
    "operator": "CPU operator",
    "runtime": "CUDA call",
    "kernel": "GPU kernel",
    "copy": "GPU copy",
}

ACCENT = COLORS["forward"]
MUTED = COLORS["other"]

# Lines of one figure that only have to be told apart.
LINES = ("#3d82d8", "#e8913a", "#2e9e78", "#d1517c", "#7a5cc9", "#2b9aa8", "#b08a5a", "#8592a3")

# From few threads to many: hue and lightness change together, so that the order shows without colours too.
_FEW_TO_MANY = ("#d09a2a", "#94a83a", "#4b9e6c", "#2f8a93", "#41689c", "#5d50a3", "#7d3f91")


def count_colors(counts: Sequence[int]) -> dict[int, str]:
    """A colour for each thread count, spread over the scale from few to many."""
    last = max(len(counts) - 1, 1)
    return {count: _FEW_TO_MANY[round(at * (len(_FEW_TO_MANY) - 1) / last)] for at, count in enumerate(sorted(counts))}
