"""Energy of a GPU's work, as NVML counts it for the whole card, idle power included."""

from __future__ import annotations

from collections.abc import Callable

import torch

LEAST_S = 1.0
"""NVML counts energy in steps of some 20 ms: long enough for many of them."""


class NoEnergyError(Exception):
    """Why energy cannot be measured here."""


def joules(action: Callable[[], object], device: torch.device) -> float:
    """Joules until the action and all work that it has launched is done, which should take `LEAST_S`. Raises
    `NoEnergyError`.
    """
    if device.type != "cuda":
        raise NoEnergyError("no GPU")
    try:
        import pynvml
    except ImportError:
        raise NoEnergyError("the package nvidia-ml-py (pynvml) is not installed") from None
    try:
        pynvml.nvmlInit()
        handle = pynvml.nvmlDeviceGetHandleByUUID(f"GPU-{torch.cuda.get_device_properties(device).uuid}")
        torch.cuda.synchronize(device)
        before = pynvml.nvmlDeviceGetTotalEnergyConsumption(handle)
        action()
        torch.cuda.synchronize(device)
        return float(pynvml.nvmlDeviceGetTotalEnergyConsumption(handle) - before) / 1e3
    except pynvml.NVMLError as error:
        raise NoEnergyError(f"NVML: {error}") from None
