"""Timing on a GPU. Its level-two cache holds tens of megabytes and keeps what ran before, so every timing begins with
a flush: a buffer of 256 MiB is written, and the device is waited for.

The figure is the sum of the durations of a call's device kernels, as torch.profiler has them: neither the host nor the
gaps between kernels count. Beside it stands the time of the same call replayed as a CUDA graph, gaps included.
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import torch

from weft.runtime.timing import FLUSH_BYTES, Candidate, Sample, kernels_of

WARM_UP_CALLS = 3
CLOCKS = ("clocks.sm", "clocks.mem")


class CudaDevice:
    """What timing needs of a GPU by NVIDIA; times are in microseconds."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._buffer = torch.empty(FLUSH_BYTES, dtype=torch.uint8, device=device)

    def flush(self) -> None:
        """Write the buffer."""
        self._buffer.zero_()

    def synchronise(self) -> None:
        torch.cuda.synchronize(self.device)

    def kernel_durations_us(self, run: Callable[[], Any]) -> list[float]:
        """Of each kernel that ``run`` launches."""
        return [duration_us for _, duration_us in kernels_of(run, self.device)]

    def capture(self, run: Callable[[], Any]) -> Callable[[], None]:
        """What replays ``run`` as a CUDA graph."""
        stream = torch.cuda.Stream(self.device)
        stream.wait_stream(torch.cuda.current_stream(self.device))
        with torch.cuda.stream(stream):  # what a first call on a stream allocates is not captured
            run()
        torch.cuda.current_stream(self.device).wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            run()
        return graph.replay

    def elapsed_us(self, run: Callable[[], Any]) -> float:
        """Between an event before and one behind."""
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        run()
        end.record()
        self.synchronise()
        return 1e3 * begin.elapsed_time(end)


class DeviceClock:
    """Samples of kernel durations and of replayed graphs. uncaptured: why a candidate has no graph, by name."""

    def __init__(self, device: CudaDevice) -> None:
        self.device = device
        self.uncaptured: dict[str, str] = {}
        self._replays: dict[str, Callable[[], None]] = {}

    def warm_up(self, candidate: Candidate) -> None:
        """Compile, start the profiler once, and capture."""
        for _ in range(WARM_UP_CALLS):
            candidate.prepare()
            candidate.run()
        self.device.synchronise()
        self.device.kernel_durations_us(candidate.run)
        try:
            self._replays[candidate.name] = self.device.capture(candidate.run)
        except Exception as error:  # what cannot be captured is still timed
            self.uncaptured[candidate.name] = " ".join(str(error).split("\n")[0].split())

    def sample(self, candidate: Candidate) -> Sample:
        """Raises RuntimeError if the profiler saw no kernel."""
        candidate.prepare()
        self._flushed()
        durations = self.device.kernel_durations_us(candidate.run)
        if not durations:
            raise RuntimeError(f"the profiler saw no kernel of {candidate.name}")
        graph_seconds = None
        if (replay := self._replays.get(candidate.name)) is not None:
            self._flushed()
            graph_seconds = 1e-6 * self.device.elapsed_us(replay)
        return Sample(1e-6 * sum(durations), graph_seconds, len(durations))

    def _flushed(self) -> None:
        self.device.flush()
        self.device.synchronise()


def driver_version(run: Callable[..., Any] = subprocess.run) -> str | None:
    """NVIDIA's, as nvidia-smi has it; None where it does not say."""
    command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    with suppress(OSError, subprocess.SubprocessError, IndexError):
        return run(command, capture_output=True, text=True, check=True, timeout=10).stdout.splitlines()[0].strip()
    return None


def clocks_mhz(uuid: str | None = None, run: Callable[..., Any] = subprocess.run) -> dict[str, int] | None:
    """Clocks of the multiprocessors and of the memory now, as nvidia-smi has them; None where it does not say."""
    command = ["nvidia-smi", f"--query-gpu={','.join(CLOCKS)}", "--format=csv,noheader,nounits"]
    with suppress(OSError, subprocess.SubprocessError, ValueError):
        found = run(
            command + ([f"--id={uuid}"] if uuid else []), capture_output=True, text=True, check=True, timeout=10
        )
        sm, memory = (int(part) for part in found.stdout.splitlines()[0].split(","))
        return {"sm_mhz": sm, "memory_mhz": memory}
    return None
