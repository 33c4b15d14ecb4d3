"""NVML, and the GPU counters that stand on it, with the driver's library played by functions."""

import ctypes
from collections.abc import Callable
from typing import Any

import pytest

from tracekit.collectors.counter_rows import counter_rows
from tracekit.collectors.gpus import Gpus
from tracekit.record.nvml import Nvml


class Driver(dict[str, Callable[..., int]]):
    """The functions of NVML for two GPUs; `refuse` names one that fails."""

    def __init__(self, refuse: str = "") -> None:
        # ctypes.byref gives a C pointer: `_obj` is what it points to.
        def count(result: Any) -> int:
            result._obj.value = 2
            return 0

        def handle(index: ctypes.c_uint, result: Any) -> int:
            result._obj.value = 100 + index.value
            return 0

        def name(device: ctypes.c_void_p, text: Any, size: ctypes.c_uint) -> int:
            text.value = f"GPU of {device.value}".encode()[: size.value]
            return 0

        def rates(device: Any, result: Any) -> int:
            result._obj.gpu = device.value - 60
            return 0

        def memory(device: ctypes.c_void_p, result: Any) -> int:
            result._obj.used = 5 << 30
            return 0

        super().__init__(
            nvmlInit_v2=lambda: 0,
            nvmlShutdown=lambda: 0,
            nvmlDeviceGetCount_v2=count,
            nvmlDeviceGetHandleByIndex_v2=handle,
            nvmlDeviceGetName=name,
            nvmlDeviceGetUtilizationRates=rates,
            nvmlDeviceGetMemoryInfo=memory,
        )
        if refuse:
            self[refuse] = lambda *arguments: 3


def test_gpus_by_the_management_library() -> None:
    nvml = Nvml(Driver())
    assert [nvml.name(index) for index in range(len(nvml))] == ["GPU of 100", "GPU of 101"]
    assert nvml.utilisation_percent(1) == 41
    assert nvml.memory_bytes(0) == 5 << 30


def test_a_driver_that_refuses_is_an_os_error() -> None:
    with pytest.raises(OSError, match=r"nvmlInit_v2 failed with code 3"):
        Nvml(Driver(refuse="nvmlInit_v2"))


def test_every_quantity_of_every_gpu_is_a_level_of_the_machine() -> None:
    gpus = Gpus(Driver())
    readings = [(time, reader, reader.read()) for time in (0, 10) for reader in gpus.readers]
    rows = counter_rows(readings)
    values = {rows.names[name]: int(value) for name, value in zip(rows.counter, rows.value, strict=True)}
    assert values == {
        "gpu.0.utilisation_percent": 40,
        "gpu.0.memory_bytes": 5 << 30,
        "gpu.1.utilisation_percent": 41,
        "gpu.1.memory_bytes": 5 << 30,
    }
    assert set(rows.process.tolist()) == {-1}
    assert gpus.rung.available
    gpus.close()


def test_a_quantity_that_a_gpu_does_not_tell_is_said_and_the_others_read() -> None:
    gpus = Gpus(Driver(refuse="nvmlDeviceGetUtilizationRates"))
    assert len(gpus.readers) == 2
    assert "gpu.0.utilisation_percent" in gpus.rung.why


def test_a_driver_that_fails_is_a_closed_rung() -> None:
    gpus = Gpus(Driver(refuse="nvmlInit_v2"))
    assert gpus.readers == []
    assert not gpus.rung.available
    gpus.close()
