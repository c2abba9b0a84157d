# SPDX-License-Identifier: Apache-2.0
"""Timing of calls on the GPU, and its clock and power meanwhile."""

from __future__ import annotations

import threading
import time

SAMPLE_S = 0.004
# A turn's first part is left out of clock and power: the call before still shows in them.
SETTLE = 0.25
# The queue is held back for what the host needs to fill it, events included, and at most so long.
HOLD_FACTOR, MAX_HOLD_S = 1.5, 0.2


def synchronize() -> None:
    """Waits for the GPU; raises what an earlier kernel left behind."""
    import torch

    torch.cuda.synchronize()


def release() -> None:
    """Gives unused memory back, so that the next problem finds it in one piece."""
    import torch

    torch.cuda.empty_cache()


class Sensors:
    """Samples SM clock (MHz) and power (W) through NVML, in a thread of its own. Without NVML
    there are no samples, and `reason` says why."""

    def __init__(self):
        self.reason, self._samples, self._stop = "", [], threading.Event()
        try:
            import pynvml
            import torch

            pynvml.nvmlInit()
            uuid = str(torch.cuda.get_device_properties(torch.cuda.current_device()).uuid)
            self._nvml = pynvml
            self._gpu = pynvml.nvmlDeviceGetHandleByUUID(
                uuid if uuid.startswith("GPU-") else f"GPU-{uuid}"
            )
            self._power_w()
        except Exception as e:  # no NVML library, no package, no permission
            self.reason = f"{type(e).__name__}: {e}"
            return
        self._thread = threading.Thread(target=self._sample, daemon=True)
        self._thread.start()

    def driver(self) -> str | None:
        if self.reason:
            return None
        text = self._nvml.nvmlSystemGetDriverVersion()
        return text.decode() if isinstance(text, bytes) else text

    def _power_w(self) -> float:
        # The plain reading of newer chips is a mean over a second; the field is not.
        field = getattr(self._nvml, "NVML_FI_DEV_POWER_INSTANT", None)
        if field is not None:
            value = self._nvml.nvmlDeviceGetFieldValues(self._gpu, [field])[0]
            if value.nvmlReturn == self._nvml.NVML_SUCCESS:
                return value.value.uiVal / 1000
        return self._nvml.nvmlDeviceGetPowerUsage(self._gpu) / 1000

    def _sample(self):
        while not self._stop.is_set():
            clock = self._nvml.nvmlDeviceGetClockInfo(self._gpu, self._nvml.NVML_CLOCK_SM)
            self._samples.append((time.monotonic(), float(clock), self._power_w()))
            time.sleep(SAMPLE_S)

    def between(self, start: float, end: float) -> tuple[list[float], list[float]]:
        """(clocks, powers) sampled in that time; forgets all samples."""
        taken, self._samples = self._samples, []
        inside = [s for s in taken if start <= s[0] <= end]
        return [c for _, c, _ in inside], [p for _, _, p in inside]

    def close(self):
        if not self.reason:
            self._stop.set()
            self._thread.join()


class NoSensors:
    """In place of Sensors where turns are too short for it."""

    def between(self, start: float, end: float) -> tuple[list[float], list[float]]:
        return [], []


def one_call_s(cell, least_s: float = 0.02) -> tuple[float, float]:
    """(GPU, host) seconds of one call of a cell that ran before, from a few calls of a short one."""
    import torch

    def timed(count: int):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda.synchronize()
        begun = time.monotonic()
        start.record()
        for _ in range(count):
            if cell.before:
                cell.before()
            cell.call()
        end.record()
        host = time.monotonic() - begun
        torch.cuda.synchronize()
        return start.elapsed_time(end) / 1000 / count, host / count

    gpu, host = timed(1)
    if gpu < least_s:
        gpu, host = timed(min(50, max(2, int(least_s / gpu))))
    return gpu, host


class Timer:
    """A turn of a cell for measure.run. Times are the device's: the queue is held back until the
    host has filled it, so that short calls do not wait for Python between them."""

    def __init__(self, sensors: Sensors, host_s: dict[str, float]):
        import torch

        self.torch, self.sensors, self.host_s = torch, sensors, host_s
        self.events = []
        props = torch.cuda.get_device_properties(torch.cuda.current_device())
        self.hz = getattr(props, "clock_rate", 2_000_000) * 1000

    def _hold(self, seconds: float):
        self.torch.cuda._sleep(int(min(seconds, MAX_HOLD_S) * self.hz))

    def __call__(self, cell, lead: int, timed: int):
        torch = self.torch
        while len(self.events) < timed:
            self.events.append([torch.cuda.Event(enable_timing=True) for _ in range(2)])
        torch.cuda.synchronize()
        begun = time.monotonic()
        self._hold(HOLD_FACTOR * self.host_s[cell.name] * (lead + timed))
        for _ in range(lead):
            if cell.before:
                cell.before()
            cell.call()
        for start, end in self.events[:timed]:
            if cell.before:
                cell.before()
            start.record()
            cell.call()
            end.record()
        torch.cuda.synchronize()
        ended = time.monotonic()
        clock, power = self.sensors.between(begun + SETTLE * (ended - begun), ended)
        return [s.elapsed_time(e) for s, e in self.events[:timed]], clock, power
