"""A GPU's driver played by Python: it writes down what is started."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from weft.backends.triton import build as triton_build
from weft.backends.triton import calls as gpu
from weft.backends.triton import load as triton_load
from weft.backends.triton.backend import TritonBackend
from weft.backends.triton.build import Binary, GpuTarget, Job
from weft.backends.triton.load import Loaded
from weft.options import Options
from weft.plan.kernel import Kernel
from weft.runtime import launch
from weft.runtime.counters import counters
from weft.runtime.resource_usage import ResourceUsage

STREAM, UNITS, PER_UNIT = 77, 3, 2
H100 = GpuTarget(90)


class Driver:
    """What a GPU is asked to do. started: name, grid, stream and arguments of each start."""

    def __init__(self) -> None:
        self.started: list[tuple[str, tuple[int, int, int], int, tuple[int, ...]]] = []
        self.jobs: list[Job] = []
        self.told: list[Any] = []
        self.capturing = False
        self.arguments = 0
        self.error: Exception | None = None

    def binaries(self, job: Job, options: Options) -> dict[str, Binary]:
        self.jobs.append(job)
        entries = [found.entry for found in triton_build._functions(job.kernel)]
        return {entry: Binary(entry, "{}", b"", ResourceUsage(32, 0, 0, 0)) for entry in entries}

    def load(self, binary: Binary, kernel: Kernel) -> Loaded:
        compiled = SimpleNamespace(launch_metadata=lambda grid, stream, *arguments: (binary.entry, grid))

        def run(x: int, y: int, z: int, stream: int, function: int, packed: Any, *rest: Any) -> None:
            if self.error is not None:
                raise self.error
            told, enter, leave, *arguments = rest
            assert (function, packed) == (5, ("packed",))
            if enter is not None:
                enter(told)
            self.started.append((binary.entry, (x, y, z), stream, tuple(arguments)))
            if leave is not None:
                leave(told)

        cooperative = kernel.schedule.finish == "same"
        return Loaded(compiled, run, 5, ("packed",), PER_UNIT, 64, 2048, cooperative, self.arguments)


@pytest.fixture(autouse=True, name="driver")
def played_driver(monkeypatch: pytest.MonkeyPatch) -> Driver:
    played = Driver()
    monkeypatch.setattr(launch, "_KERNELS", {})
    monkeypatch.setattr(launch, "FOUND_BY_TEXT", [])
    monkeypatch.setattr(TritonBackend, "device", "cpu")
    monkeypatch.setattr(triton_build, "binaries", played.binaries)
    monkeypatch.setattr(triton_build, "all_binaries", lambda jobs, o: [played.binaries(job, o) for job in jobs])
    monkeypatch.setattr(triton_load, "load", played.load)
    monkeypatch.setattr(gpu, "target_of", lambda _: H100)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: None)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: played.capturing)
    properties = SimpleNamespace(multi_processor_count=UNITS)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: properties)
    monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", lambda _: STREAM, raising=False)
    counters.reset()
    return played
