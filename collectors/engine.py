"""Torch's autograd engine: whether it is running."""

import sys
from types import FrameType


def is_in_backward(frame: FrameType | None) -> bool:
    """Whether a frame was called by a run of the engine, of this thread, or is one."""
    module = sys.modules.get("torch.autograd.graph")
    code = getattr(getattr(module, "_engine_run_backward", None), "__code__", None)
    while frame is not None:
        if frame.f_code is code:
            return True
        frame = frame.f_back
    return False
