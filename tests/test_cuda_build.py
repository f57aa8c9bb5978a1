"""Compiling CUDA C++ with NVRTC, without a GPU: binaries, what they use, their keys, and what is said of errors."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from importlib import import_module
from importlib.util import find_spec
from multiprocessing import get_context
from pathlib import Path

import pytest

from tests.cases import often
from weft.backends.binary import Binary, Job, Variant
from weft.backends.cpp.schedule import CppSchedule
from weft.backends.cuda import build
from weft.backends.cuda.usage import resource_usage
from weft.backends.resource_usage import ResourceUsage
from weft.backends.source import Source
from weft.errors import BuildError
from weft.ir.parser import parse
from weft.plan.kernel import Kernel

pytestmark = pytest.mark.skipif(build.missing() != "", reason=f"{build.missing()} is not installed")
H100, B200 = 90, 100
PROGRAM = parse(
    """program p(s0)
  dim m = s0
  dim n = 64
  input x: f32 [m:64, n:1]
  exp: f32{m, n} = exp(x)
  output y: f32 [m:64, n:1] = exp
end
"""
)
TEXT = """extern "C" __global__ void __launch_bounds__(64) weft_p(const float* x, float* y, int64_t s0) {
#if WEFT_ALIGNED_x
  y[threadIdx.x] = w::exp(x[threadIdx.x]);
#else
  y[threadIdx.x] = w::exp_rounded(x[threadIdx.x]);
#endif
}
extern "C" __global__ void __launch_bounds__(64) weft_p_finish(const float* x, float* y, int64_t s0) {
  __shared__ float kept[64];
  kept[threadIdx.x] = x[threadIdx.x];
  __syncthreads();
  y[threadIdx.x] = kept[63 - threadIdx.x];
}
"""
SPILLS = """extern "C" __global__ void __launch_bounds__(1024, 2) spills(const float* x, float* y) {
  float kept[80];
#pragma unroll
  for (int i = 0; i < 80; ++i) kept[i] = x[threadIdx.x + i * 1024];
  __syncthreads();
#pragma unroll
  for (int i = 0; i < 80; ++i) y[threadIdx.x + i * 1024] = kept[79 - i] * kept[i * 7 % 80];
}
extern "C" __global__ void keeps(const float* x, float* y) {
  __shared__ float kept[64];
  kept[threadIdx.x] = x[threadIdx.x];
  __syncthreads();
  y[threadIdx.x] = w::tan(kept[63 - threadIdx.x]);
}
extern "C" __global__ void plain(const float* x, float* y) { *y = *x; }
"""
SHARED = {"weft_p": 4096, "weft_p_finish": 0}


JOB = Job(
    Kernel(PROGRAM, CppSchedule("ONE_SHOT", ("m",), ("n",))),  # which schedule it is makes no difference
    Source("cuda", "p", TEXT),
    Variant((True, True), (False,)),
    H100,
)


@pytest.mark.parametrize("architecture", often((H100, B200, 80, 103, 120), (H100, B200)))
def test_both_functions_are_compiled_without_a_gpu(architecture: int) -> None:
    made = build.compile_functions(replace(JOB, architecture=architecture), SHARED)
    assert [binary.entry for binary in made] == [*SHARED]
    for binary in made:
        assert binary.content.startswith(b"\x7fELF")
        assert binary.shared_bytes == SHARED[binary.entry]
        assert 0 < binary.usage.registers <= 255
        assert binary.usage.spill_bytes == binary.usage.stack_bytes == 0
    assert [binary.usage.shared_bytes for binary in made] == [4096, 256]


def test_the_same_job_gives_the_same_bytes() -> None:
    """So that machines may compare and share artefacts."""
    assert build.compile_functions(JOB, SHARED) == build.compile_functions(JOB, SHARED)


def test_another_process_gives_the_same_bytes() -> None:
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        key, made = pool.submit(_made, JOB).result(120)
    assert key == build.key(JOB, SHARED)
    assert made == build.compile_functions(JOB, SHARED)


def _made(job: Job) -> tuple[str, list[Binary]]:
    return build.key(job, SHARED), build.compile_functions(job, SHARED)


def test_targets_have_the_instructions_of_their_architecture() -> None:
    names = ["sm_80", "sm_89", "sm_90a", "sm_100a", "sm_103a", "sm_120a"]
    assert [build.arch_of(architecture) for architecture in (80, 89, 90, 100, 103, 120)] == names


# variants and keys


def test_a_text_is_told_of_the_arguments_that_it_names() -> None:
    assert build.defines(JOB) == {"WEFT_ALIGNED_x": "1"}
    other = replace(JOB, variant=Variant((False, True), (True,)))
    assert build.defines(other) == {"WEFT_ALIGNED_x": "0"}
    first, second = (build.compile_functions(each, SHARED)[0].content for each in (JOB, other))
    assert first != second
    named = replace(other, source=Source("cuda", "p", "// WEFT_ALIGNED_y WEFT_DIVISIBLE_s0 WEFT_ALIGNED_xs\n"))
    assert build.defines(named) == {"WEFT_ALIGNED_y": "1", "WEFT_DIVISIBLE_s0": "1"}


def test_variants_that_a_text_does_not_tell_apart_are_one() -> None:
    same = replace(JOB, variant=Variant((True, False), (True,)))
    assert build.key(same, SHARED) == build.key(JOB, SHARED)


@pytest.mark.parametrize(
    ("other", "shared"),
    [
        (replace(JOB, architecture=B200), SHARED),
        (replace(JOB, variant=Variant((False, True), (False,))), SHARED),
        (replace(JOB, source=Source("cuda", "p", TEXT + "\n")), SHARED),
        (JOB, {**SHARED, "weft_p": 8192}),
    ],
    ids=["target", "alignment", "text", "shared memory"],
)
def test_whatever_changes_the_code_changes_the_key(other: Job, shared: dict[str, int]) -> None:
    assert build.key(other, shared) != build.key(JOB, SHARED)


@pytest.mark.parametrize(
    "change",
    [
        lambda patch: patch.setattr(build, "release", lambda: "V13.0.89"),
        lambda patch: patch.setattr(build, "header", lambda: "another header"),
        lambda patch: patch.setattr(build, "CONTRACTED", not build.CONTRACTED),
        lambda patch: patch.setattr(build, "_own_macros", lambda: {"WEFT_F8E4M3_SATURATES": "another"}),
    ],
    ids=["release", "header", "contraction", "release of torch"],
)
def test_whatever_changes_the_compiler_changes_the_key(
    change: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    before = build.key(JOB, SHARED)
    change(monkeypatch)
    assert build.key(JOB, SHARED) != before


def test_the_release_has_its_build() -> None:
    assert re.fullmatch(r"V\d+\.\d+\.\d+", build.release())


# what is used


def test_a_kernel_that_spills_and_ones_that_do_not() -> None:
    _, log = build.compiled(SPILLS, "spills", H100, {})
    spills, keeps, plain = (resource_usage(log, entry, 1000) for entry in ("spills", "keeps", "plain"))
    assert spills.registers == 32
    assert spills.spill_bytes > spills.stack_bytes > 100
    assert (keeps.spill_bytes, keeps.shared_bytes) == (0, 1256)
    assert (plain.spill_bytes, plain.stack_bytes, plain.shared_bytes) == (0, 0, 1000)


def _cuobjdump() -> str | None:
    """Path of NVIDIA's tool, which Triton brings."""
    try:
        from triton import knobs

        return knobs.nvidia.cuobjdump.path
    except Exception:
        return shutil.which("cuobjdump")


@pytest.mark.parametrize("architecture", [80, H100, B200])
def test_figures_are_those_of_the_binary(architecture: int, tmp_path: Path) -> None:
    if (tool := _cuobjdump()) is None:
        pytest.skip("there is no cuobjdump")
    content, log = build.compiled(SPILLS, "spills", architecture, {})
    path = tmp_path / "spills.cubin"
    path.write_bytes(content)
    printed = subprocess.run([tool, "-res-usage", str(path)], capture_output=True, text=True, check=True).stdout
    for entry in ("spills", "keeps", "plain"):
        found = re.search(rf"Function {entry}:\s*\n\s*REG:(\d+) STACK:(\d+) SHARED:(\d+)", printed)
        assert found is not None
        usage = resource_usage(log, entry, 0)
        assert (usage.registers, usage.stack_bytes) == (int(found[1]), int(found[2]))
        assert int(found[3]) - usage.shared_bytes in (0, 1024)  # the latter are the system's


def test_functions_that_others_are_compiled_after() -> None:
    log = (
        "ptxas info    : Compiling entry function 'weft_p_finish' for 'sm_80'\n"
        "ptxas info    : Function properties for weft_p_finish\n"
        "ptxas         .     72 bytes stack frame, 4 bytes spill stores, 8 bytes spill loads\n"
        "ptxas info    : Used 20 registers, used 0 barriers, 72 bytes cumulative stack size, 360 bytes cmem[0]\n"
        "ptxas info    : Function properties for _Z1gf\n"
        "ptxas         .     0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads\n"
        "ptxas info    : Compiling entry function 'weft_p' for 'sm_80'\n"
        "ptxas info    : Function properties for weft_p\n"
        "    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads\n"
        "ptxas info    : Used 9 registers, used 1 barriers, 256 bytes smem, 360 bytes cmem[0]\n"
    )
    assert resource_usage(log, "weft_p", 0) == ResourceUsage(9, 0, 256, 0)
    assert resource_usage(log, "weft_p_finish", 16) == ResourceUsage(20, 12, 16, 72)
    with pytest.raises(BuildError, match=r"^NVRTC says nothing of what weft uses: ptxas info"):
        resource_usage(log, "weft", 0)


# errors


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("\nvoid f() {\n  x = 1;\n}\n", 'p.cu(3): error: identifier "x" is undefined'),
        ("\nbool f(int x) { return w::cast<bool>(&x) + w::rounded<int>(1.0f).y; }\n", "error: static assertion failed"),
        (
            'extern "C" __global__ void f(int* x) { __shared__ int y[99999]; y[*x] = 1; *x = y[1]; }',
            "uses too much shared data",
        ),
        ('extern "C" __global__ void f() { asm("what"); }', "Not a name of any known instruction: 'what'"),
    ],
    ids=["name", "header", "ptxas", "assembly"],
)
def test_what_the_compiler_says_is_said(text: str, said: str) -> None:
    with pytest.raises(BuildError, match=r"^NVRTC refused p for sm_90a:\n") as raised:
        build.compile_functions(replace(JOB, source=Source("cuda", "p", text)), SHARED)
    assert said in str(raised.value)
    assert said in raised.value.printed


def test_an_architecture_that_there_is_not() -> None:
    with pytest.raises(BuildError, match=r"^NVRTC refused p for sm_91a:\nnvrtc: error: invalid value for --gpu-arch"):
        build.compile_functions(replace(JOB, architecture=91), SHARED)


def test_a_function_that_the_text_does_not_have() -> None:
    with pytest.raises(BuildError, match=r"^NVRTC says nothing of what weft_q uses"):
        build.compile_functions(JOB, {"weft_q": 0})


@pytest.fixture
def _asked_anew() -> Iterator[None]:
    build.missing.cache_clear()
    yield
    build.missing.cache_clear()


@pytest.mark.usefixtures("_asked_anew")
@pytest.mark.parametrize(
    ("absent", "package"), [("cuda", "cuda-core"), ("cuda.core", "cuda-core"), ("cuda.bindings", "cuda-bindings")]
)
def test_a_package_that_is_missing_is_named(absent: str, package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "find_spec", lambda name: None if name == absent else find_spec(name))
    assert build.missing() == package
    with pytest.raises(
        BuildError, match=rf"^no NVRTC: {package} is missing. Install it, e.g. `pip install {package}`.$"
    ):
        build.compile_functions(JOB, SHARED)


@pytest.mark.usefixtures("_asked_anew")
def test_a_library_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(name: str) -> None:
        raise RuntimeError(f"there is no {name}")

    monkeypatch.setattr("cuda.pathfinder.load_nvidia_dynamic_lib", absent)
    assert build.missing() == "nvidia-cuda-nvrtc"


def test_nvrtc_takes_nothing_from_a_cache_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would not say what such a kernel uses. Releases before 12.9 have no cache, and no option for it."""
    given: list[bool] = []
    core = import_module("cuda.core")
    options = core.ProgramOptions

    def recorded(**named: object) -> object:
        given.append(bool(named["no_cache"]))
        return options(**named)

    monkeypatch.setattr(core, "ProgramOptions", recorded)
    for version in ((0, 13, 0), (0, 12, 9), (0, 12, 8)):
        monkeypatch.setattr("cuda.bindings.nvrtc.nvrtcVersion", lambda version=version: version)
        build._has_cache.cache_clear()
        build.compiled(TEXT, "p", 90, {"WEFT_ALIGNED_x": "1"})
    build._has_cache.cache_clear()
    assert given == [True, True, False]
