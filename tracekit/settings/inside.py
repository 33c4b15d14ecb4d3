"""How settings are applied inside a process of the program, right after torch has been imported."""

from types import ModuleType
from typing import Any


def apply(torch: ModuleType, settings: dict[str, Any]) -> None:
    """Set what the settings name. A program that sets the same itself, later, has the last word."""
    if "threads.intra_op" in settings:
        torch.set_num_threads(settings["threads.intra_op"])
    if "threads.inter_op" in settings:
        torch.set_num_interop_threads(settings["threads.inter_op"])
