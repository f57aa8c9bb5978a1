"""Functions that are started in thread-block clusters: from Python and by the launcher, and all resident at once."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor

from weft.backends.abi import Launch
from weft.options import Options
from weft.runtime import launch, launcher
from weft.runtime.executable import Executable
from weft.runtime.gpu import driver
from weft.runtime.gpu.function import Call, Loaded, Start, architecture_of
from weft.runtime.gpu.workspace import Workspace

SOURCE = r"""
extern "C" __global__ void ranks(unsigned* seen) {
  unsigned rank, size;
  asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  asm("mov.u32 %0, %%cluster_nctarank;" : "=r"(size));
  if (threadIdx.x == 0) {
    seen[2 * blockIdx.x] = rank;
    seen[2 * blockIdx.x + 1] = size;
  }
}

// Whether each program sees all of them arrive, within some seconds.
extern "C" __global__ void meet(unsigned* met, unsigned* arrived) {
  extern __shared__ unsigned own[];
  if (threadIdx.x != 0) return;
  own[0] = gridDim.x;
  atomicAdd(arrived, 1);
  const long long begin = clock64();
  unsigned seen = 0;
  while ((seen = atomicAdd(arrived, 0)) < own[0] && clock64() - begin < 4000000000ll) {
  }
  met[blockIdx.x] = seen == own[0];
}
"""
CLUSTERS = [1, 2, 4, 8, 16]
THREADS, DIGEST = 128, "c105ed0123456789abcdef01"


@cache
def cubin(architecture: int) -> bytes:
    core = pytest.importorskip("cuda.core")
    options = core.ProgramOptions(std="c++17", arch=f"sm_{architecture}")
    return bytes(core.Program(SOURCE, "c++", options).compile("cubin").code)


def here() -> torch.device:
    return torch.device("cuda", torch.cuda.current_device())


def loaded(entry: str, cluster: int, shared_bytes: int = 0) -> Loaded:
    """Skips the test where the GPU has no such cluster."""
    device = here()
    if architecture_of(device) < 90:
        pytest.skip("the GPU has no clusters")
    torch.zeros(1, device=device)  # PyTorch's context
    function = driver.load_function(cubin(architecture_of(device)), entry, shared_bytes, device.index, cluster)
    if cluster == 1:
        units = torch.cuda.get_device_properties(device).multi_processor_count
        return Loaded(function, driver.programs_per_unit(function, THREADS, shared_bytes) * units, shared_bytes)
    clusters = driver.max_clusters(function, cluster, THREADS, shared_bytes)
    if clusters == 0:
        pytest.skip(f"the GPU has no cluster of {cluster} programs")
    return Loaded(function, clusters, shared_bytes)


def expected(programs: int, cluster: int) -> list[list[int]]:
    return [[program % cluster, cluster] for program in range(programs)]


@pytest.mark.parametrize("cooperative", [False, True])
@pytest.mark.parametrize("cluster", CLUSTERS)
def test_programs_know_their_place_in_a_cluster(cluster: int, cooperative: bool) -> None:
    found, programs = loaded("ranks", cluster), 3 * cluster
    seen = torch.full((programs, 2), -1, dtype=torch.int32, device="cuda")
    stream = torch.cuda.current_stream().cuda_stream
    driver.start(found.function, (programs, 1), THREADS, 0, stream, [seen.data_ptr()], cooperative, cluster)
    assert seen.tolist() == expected(programs, cluster)


@pytest.mark.parametrize("cooperative", [False, True])
@pytest.mark.parametrize("cluster", CLUSTERS)
def test_the_launcher_starts_the_same(cluster: int, cooperative: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first call is Python's, the second one is repeated in C++."""
    programs = 3 * cluster
    one = Launch("ranks", (programs, 1), THREADS, cooperative=cooperative, cluster=cluster)
    call = Call(here(), Workspace(0, (), None), (Start(one, loaded("ranks", cluster), (programs, 1)),), ())
    by_python: list[list[int]] = []

    def run(self: Executable, inputs: list[Tensor], outputs: list[Tensor], *_: Any) -> None:
        by_python.append([t.data_ptr() for t in outputs])
        call([t.data_ptr() for t in (*inputs, *outputs)])

    launcher.load(Options.read())
    assert launcher.is_loaded(), launcher.reason_against()
    monkeypatch.setattr(launch, "_KERNELS", {DIGEST: Executable.__new__(Executable)})
    monkeypatch.setattr(Executable, "__call__", run)
    answer = " ".join(map(str, ("cuda", 0, 0, *call.repeat([True]))))
    monkeypatch.setattr(Executable, "repeatable", lambda *_: answer)
    launcher.forget(DIGEST)
    for _ in range(2):
        seen = torch.full((programs, 2), -1, dtype=torch.int32, device="cuda")
        torch.ops.weft.launch(DIGEST, "ranks", [], [seen], [], "off")
        assert seen.tolist() == expected(programs, cluster)
    launcher.forget(DIGEST)
    assert len(by_python) == 1


@pytest.mark.parametrize("sm_margin", [0, 20])
@pytest.mark.parametrize("shared_bytes", [1024, 100 * 1024])
@pytest.mark.parametrize("cluster", CLUSTERS)
def test_as_many_as_are_resident_can_wait_for_each_other(cluster: int, shared_bytes: int, sm_margin: int) -> None:
    found = loaded("meet", cluster, shared_bytes)
    units = torch.cuda.get_device_properties(here()).multi_processor_count
    programs = Launch("meet", (1, 1), THREADS, cluster=cluster).resident(found.clusters, units, sm_margin)
    assert programs >= cluster
    assert programs % cluster == 0
    met, arrived = torch.zeros(programs, dtype=torch.int32, device="cuda"), torch.zeros(1, dtype=torch.int32).cuda()
    words = [met.data_ptr(), arrived.data_ptr()]
    stream = torch.cuda.current_stream().cuda_stream
    driver.start(found.function, (programs, 1), THREADS, shared_bytes, stream, words, True, cluster)
    assert met.sum().item() == programs
