"""NVIDIA's management library by ctypes: the names, load and memory of the GPUs, without CUDA and without torch.

https://docs.nvidia.com/deploy/nvml-api/ : every function returns 0 for success.
"""

import ctypes
from collections.abc import Callable
from typing import Protocol

_NAME_BYTES = 96  # NVML_DEVICE_NAME_V2_BUFFER_SIZE


class Library(Protocol):
    """The functions of NVML by name; ctypes.CDLL is one."""

    def __getitem__(self, name: str) -> Callable[..., int]: ...


class _Utilisation(ctypes.Structure):
    _fields_ = [("gpu", ctypes.c_uint), ("memory", ctypes.c_uint)]


class _Memory(ctypes.Structure):
    _fields_ = [("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong)]


class Nvml:
    """The GPUs that the driver shows. Raises OSError when there is no driver, or when it refuses."""

    def __init__(self, library: Library | None = None) -> None:
        self._library: Library = ctypes.CDLL("libnvidia-ml.so.1") if library is None else library
        self._call("nvmlInit_v2")
        count = ctypes.c_uint()
        self._call("nvmlDeviceGetCount_v2", ctypes.byref(count))
        self._devices = [self._device(index) for index in range(count.value)]

    def _device(self, index: int) -> ctypes.c_void_p:
        device = ctypes.c_void_p()
        self._call("nvmlDeviceGetHandleByIndex_v2", ctypes.c_uint(index), ctypes.byref(device))
        return device

    def __len__(self) -> int:
        return len(self._devices)

    def name(self, index: int) -> str:
        """The product name, such as `NVIDIA H200`."""
        text = ctypes.create_string_buffer(_NAME_BYTES)
        self._call("nvmlDeviceGetName", self._devices[index], text, ctypes.c_uint(_NAME_BYTES))
        return text.value.decode("utf-8", "replace")

    def utilisation_percent(self, index: int) -> int:
        """The share of the driver's last sampling period in which a kernel ran."""
        rates = _Utilisation()
        self._call("nvmlDeviceGetUtilizationRates", self._devices[index], ctypes.byref(rates))
        return rates.gpu

    def memory_bytes(self, index: int) -> int:
        """The memory in use by anyone."""
        memory = _Memory()
        self._call("nvmlDeviceGetMemoryInfo", self._devices[index], ctypes.byref(memory))
        return memory.used

    def close(self) -> None:
        self._call("nvmlShutdown")

    def _call(self, function: str, *arguments: object) -> None:
        try:
            code = self._library[function](*arguments)
        except AttributeError as error:
            raise OSError(f"NVML has no {function}") from error
        if code:
            raise OSError(f"NVML {function} failed with code {code}")
