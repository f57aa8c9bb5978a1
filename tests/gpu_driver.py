"""A GPU's driver played by Python: it writes down what is started."""

from __future__ import annotations

from inspect import signature
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from weft.backends.binary import Binary, Job
from weft.backends.listed import backend_of
from weft.backends.resource_usage import ResourceUsage
from weft.backends.triton.backend import TritonBackend
from weft.options import Options
from weft.runtime import calibration, launch
from weft.runtime.counters import counters
from weft.runtime.gpu import builds, calls, driver, function
from weft.target import Target

STREAM, UNITS, PER_UNIT = 77, 3, 2
START = driver.start
H100 = 90


class Driver:
    """What a GPU is asked to do. started: name, grid, stream and words of each start, and whether it is cooperative.
    clusters: of each start; most_clusters: that the GPU holds."""

    def __init__(self) -> None:
        self.started: list[tuple[str, tuple[int, int], int, tuple[int, ...], bool]] = []
        self.clusters: list[int] = []
        self.most_clusters = 3
        self.jobs: list[Job] = []
        self.loaded: list[str] = []
        self.capturing = False
        self.error: Exception | None = None

    def binaries(self, job: Job, options: Options) -> dict[str, Binary]:
        self.jobs.append(job)
        entries = [launch.entry for launch in backend_of(job.kernel).abi(job.kernel).launches]
        return {entry: Binary(entry, b"", 2048, ResourceUsage(32, 0, 0, 0)) for entry in entries}

    def load_function(self, content: bytes, entry: str, shared_bytes: int, device: int, cluster: int = 1) -> int:
        """A function is the number of its name among those that were loaded, from 1 on."""
        self.loaded.append(entry)
        return len(self.loaded)

    def start(self, *given: Any) -> None:
        """As ``weft.runtime.gpu.driver.start``."""
        if self.error is not None:
            raise self.error
        called = signature(START).bind(*given).arguments
        assert called["shared_bytes"] == 2048
        entry, words = self.loaded[called["function"] - 1], tuple(called["words"])
        self.started.append((entry, called["grid"], called["stream"], words, called["cooperative"]))
        self.clusters.append(called["cluster"])


@pytest.fixture(autouse=True, name="driver")
def played_driver(monkeypatch: pytest.MonkeyPatch) -> Driver:
    played = Driver()
    monkeypatch.setattr(launch, "_KERNELS", {})
    monkeypatch.setattr(launch, "FOUND_BY_TEXT", [])
    monkeypatch.setattr(TritonBackend, "device", "cpu")
    monkeypatch.setattr(builds, "binaries", played.binaries)
    monkeypatch.setattr(builds, "all_binaries", lambda jobs, o: [played.binaries(job, o) for job in jobs])
    monkeypatch.setattr(driver, "load_function", played.load_function)
    monkeypatch.setattr(driver, "start", played.start)
    monkeypatch.setattr(driver, "programs_per_unit", lambda *_: PER_UNIT)
    monkeypatch.setattr(driver, "max_clusters", lambda *_: played.most_clusters)
    monkeypatch.setattr(driver, "ensure_context", lambda _: None)
    monkeypatch.setattr(calibration, "as_known", lambda *_: Target.named("h200"))
    for module in (calls, function):
        monkeypatch.setattr(module, "architecture_of", lambda _: H100)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: None)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: played.capturing)
    properties = SimpleNamespace(multi_processor_count=UNITS)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: properties)
    monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", lambda _: STREAM, raising=False)
    counters.reset()
    return played
