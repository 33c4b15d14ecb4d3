"""The colours of the dashboard, each with one meaning everywhere. Readable on light and on dark paper."""

# The phases of a step; told apart also with the common kinds of colour blindness, lightness rising and falling in turn.
PHASE_COLORS = {
    "loading wait": "#e8913a",
    "forward": "#3d82d8",
    "backward": "#7a5cc9",
    "optimizer": "#2e9e78",
    "communication": "#d1517c",
    "other": "#a3abb5",
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
