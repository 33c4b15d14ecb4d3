"""GPU load and memory by NVML, where there is an NVIDIA driver."""

import os
from functools import partial

from tracekit.record.nvml import Library, Nvml
from tracekit.record.rungs import Rung

from .readings import Columns, Reader, one_integer

_DRIVER = "/proc/driver/nvidia/version"
_NAME = "GPU load and memory (NVML)"


class Gpus:
    """A reader for each quantity of each GPU that answers."""

    def __init__(self, library: Library | None = None) -> None:
        self.readers: list[Reader] = []
        self._nvml: Nvml | None = None
        try:
            self._nvml = Nvml(library)
        except OSError as error:
            has_driver = os.path.exists(_DRIVER)
            why = str(error) if has_driver else "no NVIDIA driver on this machine"
            remedy = "install the driver's libnvidia-ml.so.1, or give the container its `utility` capability"
            self.rung = Rung(_NAME, False, why, remedy if has_driver else "", expected=has_driver)
            return
        refused = self._add_readers(self._nvml)
        why = "; ".join(refused)
        self.rung = Rung(_NAME, bool(self.readers), why or f"{len(self._nvml)} GPUs", expected=len(self._nvml) > 0)

    def close(self) -> None:
        if self._nvml is not None:
            self._nvml.close()

    def _add_readers(self, nvml: Nvml) -> list[str]:
        """Try every quantity once and keep what answers; returns the refusals (a GPU split by MIG tells no load)."""
        refused = []
        quantities = {"utilisation_percent": nvml.utilisation_percent, "memory_bytes": nvml.memory_bytes}
        for gpu in range(len(nvml)):
            for quantity, ask in quantities.items():
                name = f"gpu.{gpu}.{quantity}"
                read = partial(ask, gpu)
                try:
                    read()
                    self.readers.append(Reader(Columns("NVML", (name,), one_integer), -1, 0, read))
                except OSError as error:
                    refused.append(f"{name}: {error}")
        return refused
