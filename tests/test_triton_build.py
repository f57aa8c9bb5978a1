"""Compiling Triton without a GPU: the artefact, its cache, variants, and what binaries use."""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("triton")

import triton
from torch._inductor.runtime import compile_tasks
from triton import knobs
from triton.backends.nvidia.compiler import CUDABackend, get_ptxas_version

from tests.triton_by_hand import SAME, SEPARATE, SOURCE, TEXT
from weft.backends.binary import Job, Variant
from weft.backends.resource_usage import ResourceUsage
from weft.backends.source import Source
from weft.backends.triton import build as triton_build
from weft.backends.triton import files as triton_files
from weft.backends.triton import usage as triton_usage
from weft.backends.triton.build import attributes, signature
from weft.backends.triton.front_end import functions_of
from weft.backends.triton.usage import parse_cuobjdump, parse_ptxas
from weft.errors import BuildError
from weft.ir.dtypes import itemsize
from weft.options import Options
from weft.plan.kernel import Kernel
from weft.runtime import cache
from weft.runtime.cache import Cache
from weft.runtime.counters import counters
from weft.runtime.gpu import builds
from weft.runtime.gpu.builds import all_binaries, binaries

ALL, NONE = (True,) * 3, (False,) * 3
ALIGNED = Variant(ALL, (True,))
H100, B200 = 90, 100
JOB = Job(SEPARATE, SOURCE, ALIGNED, H100)


@pytest.fixture(autouse=True)
def _apart(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, empty in (("_UNWRITABLE", {}), ("_IN_USE", set()), ("_WARNED", set())):
        monkeypatch.setattr(cache, name, empty)
    counters.reset()


@pytest.fixture
def options(tmp_path: Path) -> Options:
    return Options.read({"cache_dir": str(tmp_path / "cache"), "build_threads": 2}, {})


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """Options of what Triton was asked to compile."""
    seen: list[dict[str, Any]] = []
    original = triton.compile

    def spy(source: Any, **others: Any) -> Any:
        seen.append(others["options"])
        return original(source, **others)

    monkeypatch.setattr(triton, "compile", spy)
    return seen


@pytest.fixture
def compiles(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the functions that Triton was asked to compile."""
    seen: list[str] = []
    original = triton.compile

    def spy(source: Any, **others: Any) -> Any:
        seen.append(source.name)
        return original(source, **others)

    monkeypatch.setattr(triton, "compile", spy)
    return seen


# the artefact


@pytest.mark.parametrize("architecture", [H100, B200], ids=["sm_90", "sm_100"])
def test_both_functions_are_compiled_without_a_gpu(architecture: int, options: Options) -> None:
    made = binaries(replace(JOB, architecture=architecture), options)
    assert [*made] == ["weft_p", "weft_p_finish"]
    for entry, binary in made.items():
        assert binary.content.startswith(b"\x7fELF")
        assert binary.entry == entry
        assert 0 < binary.usage.registers <= 255
        assert binary.usage.spill_bytes == binary.usage.stack_bytes == 0
        assert binary.shared_bytes <= binary.usage.shared_bytes


def test_a_kernel_that_finishes_in_the_same_launch_is_cooperative(options: Options, told: list[dict[str, Any]]) -> None:
    text = TEXT[: TEXT.index("@triton.jit\ndef weft_p_finish")].replace(
        "column_partial, s0", "column_partial, barrier, s0"
    )
    assert [*binaries(Job(SAME, Source("triton", "p", text), ALIGNED, H100), options)] == ["weft_p"]
    assert [*binaries(JOB, options)] == ["weft_p", "weft_p_finish"]
    assert [each["launch_cooperative_grid"] for each in told] == [True, False, False]
    assert {each["enable_fp_fusion"] for each in told} == {triton_build.CONTRACTED}


@pytest.mark.parametrize(
    ("name", "found"),
    [("global_scratch_size", 128), ("num_ctas", 2), ("launch_pdl", True), ("profile_scratch_size", 8)],
)
def test_a_function_that_takes_more_than_its_words_is_refused(
    name: str, found: int, options: Options, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody would give it memory of Triton's own, or start it in clusters."""
    original = triton.compile

    def other(source: Any, **others: Any) -> Any:
        made = original(source, **others)
        return SimpleNamespace(asm=made.asm, metadata=SimpleNamespace(**{**made.metadata._asdict(), name: found}))

    monkeypatch.setattr(triton, "compile", other)
    with pytest.raises(BuildError, match=f"^weft_p is not started with its words alone: {{'{name}': {found}}}$"):
        binaries(JOB, options)


def test_what_was_compiled_once_is_found(options: Options, compiles: list[str]) -> None:
    first = binaries(JOB, options)
    assert compiles == ["weft_p", "weft_p_finish"]
    assert binaries(JOB, options) == first
    assert compiles == ["weft_p", "weft_p_finish"]
    assert (counters.builds, counters.cache_hits) == (1, 1)
    (entry,) = Cache(options.cache_dir, options.cache_bytes).entries()
    assert (entry.kind, entry.name, entry.path.name.rsplit(".p.", 1)[1]) == ("triton", "p", "triton.zip")


@pytest.mark.parametrize(
    "damage",
    [lambda b: b[:-1], lambda b: b"", lambda b: b[:900] + bytes([b[900] ^ 1]) + b[901:]],
    ids=["cut", "empty", "a bit"],
)
def test_a_damaged_artefact_is_made_anew(
    damage: Callable[[bytes], bytes], options: Options, compiles: list[str]
) -> None:
    first = binaries(JOB, options)
    store = Cache(options.cache_dir, options.cache_bytes)
    (entry,) = store.entries()
    entry.path.write_bytes(damage(entry.path.read_bytes()))
    assert [e.key for e in store.damaged()] == [entry.key]
    assert binaries(JOB, options) == first
    assert compiles == ["weft_p", "weft_p_finish"] * 2
    assert store.damaged() == []


def test_the_same_job_gives_the_same_bytes() -> None:
    """So that machines may compare and share artefacts."""
    assert builds.artefact(JOB) == builds.artefact(JOB)


@pytest.mark.parametrize(
    "other",
    [
        replace(JOB, architecture=B200),
        replace(JOB, variant=Variant(NONE, (True,))),
        replace(JOB, variant=Variant(ALL, (False,))),
        replace(JOB, source=replace(SOURCE, text=TEXT + "\n")),
        replace(JOB, kernel=replace(SEPARATE, schedule=replace(SEPARATE.schedule, warps=8))),
        replace(JOB, kernel=replace(SEPARATE, schedule=replace(SEPARATE.schedule, stages=3))),
    ],
    ids=["target", "alignment", "parameter", "text", "warps", "stages"],
)
def test_whatever_changes_the_code_changes_the_key(other: Job) -> None:
    assert builds.key_of(other) != builds.key_of(JOB)


@pytest.mark.parametrize(
    "change",
    [
        lambda patch: patch.setattr(triton, "__version__", "3.6.1"),
        lambda patch: patch.setattr(triton_build, "_library_text", lambda: "another weft_triton"),
        lambda patch: patch.setattr(triton_build, "CONTRACTED", not triton_build.CONTRACTED),
        lambda patch: patch.setenv("DISABLE_LLVM_OPT", "1"),
        lambda patch: patch.setattr(knobs.compilation, "instrumentation_mode", "consan"),
        lambda patch: patch.setattr(CUDABackend, "parse_options", _with_ptxas_options),
    ],
    ids=["release", "library", "contraction", "environment", "instrumentation", "options of ptxas"],
)
def test_whatever_changes_the_compiler_changes_the_key(
    change: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    before = builds.key_of(JOB)
    change(monkeypatch)
    assert builds.key_of(JOB) != before


_PARSE_OPTIONS = CUDABackend.parse_options


def _with_ptxas_options(backend: CUDABackend, given: dict[str, Any]) -> Any:
    """As with ``PTXAS_OPTIONS`` in the environment, which Triton reads when it is imported."""
    return _PARSE_OPTIONS(backend, {**given, "ptx_options": "--opt-level=1"})


# Triton's own cache


def test_torchs_ptxas_is_named_before_a_key_is_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """TorchInductor's workers use it from their start, and what they make has to have this process's keys, also where
    somebody has asked which release there is before."""
    named = tmp_path / "ptxas"
    named.write_text("#!/bin/sh\necho Cuda compilation tools, release 13.7, V13.7.1\n")
    named.chmod(0o755)
    monkeypatch.delenv("TRITON_PTXAS_PATH", raising=False)
    name_it = partial(monkeypatch.setenv, "TRITON_PTXAS_PATH", str(named))
    monkeypatch.setattr(compile_tasks, "_set_triton_ptxas_path", name_it)
    before = get_ptxas_version(90)
    triton_build.use_torchs_ptxas.cache_clear()
    try:
        builds.key_of(JOB)
        assert "13.7" in get_ptxas_version(90) != before
    finally:
        monkeypatch.undo()
        triton_build.use_torchs_ptxas.cache_clear()
        get_ptxas_version.cache_clear()


def test_nothing_is_left_in_tritons_cache(options: Options, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "triton"
    monkeypatch.setenv("TRITON_CACHE_DIR", str(folder))
    binaries(JOB, options)
    assert not folder.exists()
    assert "manager_class" not in vars(knobs.cache)


def test_other_threads_keep_their_place_while_weft_compiles(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "theirs"))
    ours = tmp_path / "ours"
    ours.mkdir()
    entered, done = threading.Event(), threading.Event()

    def compiling() -> str:
        with triton_files.own_cache(ours):
            entered.set()
            assert done.wait(60)
            return knobs.cache.manager_class("KEY").put(b"1", "file")

    with ThreadPoolExecutor(1) as pool:
        place = pool.submit(compiling)
        assert entered.wait(60)
        assert knobs.cache.manager_class("KEY").put(b"2", "file") == str(tmp_path / "theirs" / "KEY" / "file")
        done.set()
        assert place.result() == str(ours / "KEY" / "file")
    assert knobs.cache.manager_class is None


def test_a_place_that_somebody_set_stays(options: Options, monkeypatch: pytest.MonkeyPatch) -> None:
    from triton.runtime.cache import FileCacheManager

    class Theirs(FileCacheManager):
        def put(self, *_: Any, **__: Any) -> str:
            raise AssertionError("not asked to keep this")

    monkeypatch.setitem(vars(knobs.cache), "manager_class", Theirs)
    binaries(JOB, options)
    assert knobs.cache.manager_class is Theirs


# side by side


def test_kernels_are_compiled_side_by_side(options: Options) -> None:
    names = [f"p{i}" for i in range(6)]
    jobs = [_renamed(name) for name in names]
    made = all_binaries(jobs, options)
    assert [sorted(one) for one in made] == [[f"weft_{name}", f"weft_{name}_finish"] for name in names]
    alone = replace(options, cache_dir=options.cache_dir + "_alone", build_threads=1)
    assert all_binaries(jobs, alone) == made
    assert counters.builds == 12


def test_threads_that_yield_while_python_parses_do_not_disturb_one_another(options: Options) -> None:
    """Whatever runs when garbage is collected, at any allocation, may let another thread parse: hypothesis's callback
    did. Python 3.11.7 then says "AST constructor recursion depth mismatch"."""

    def yield_to_others(phase: str, info: dict[str, int]) -> None:
        time.sleep(0)

    thresholds = gc.get_threshold()
    gc.callbacks.append(yield_to_others)
    gc.set_threshold(100)
    try:
        made = all_binaries([_renamed(f"p{i}") for i in range(6)], replace(options, build_threads=6))
    finally:
        gc.set_threshold(*thresholds)
        gc.callbacks.remove(yield_to_others)
    assert len(made) == 6


def _renamed(name: str) -> Job:
    kernel = replace(SEPARATE, program=replace(SEPARATE.program, name=name))
    return replace(JOB, kernel=kernel, source=Source("triton", name, TEXT.replace("weft_p", f"weft_{name}")))


# errors


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (TEXT.replace("tl.cdiv(s0, 4)", "tl.cdiw(s0, 4)"), r"^Triton refused p: \w+: .*cdiw"),
        (TEXT.replace("def weft_p(", "def weft_q("), r"^Triton refused p: KeyError: 'weft_p'$"),
        ("def (", r"^Triton refused p: SyntaxError: "),
    ],
    ids=["a word", "a name", "Python"],
)
def test_what_triton_says_is_in_the_error(text: str, said: str, options: Options) -> None:
    with pytest.raises(BuildError, match=said):
        binaries(replace(JOB, source=replace(SOURCE, text=text)), options)
    assert Cache(options.cache_dir, options.cache_bytes).entries() == []


def test_a_traceback_shows_the_text_of_the_kernel() -> None:
    import linecache

    functions = functions_of(SOURCE)
    name = functions["weft_p"].fn.__code__.co_filename
    assert name == f"<weft p {SOURCE.digest}>"
    assert linecache.getline(name, 6) == "def weft_p(x, y, columns, column_partial, s0):\n"


# variants


def test_arguments_have_tritons_types() -> None:
    assert signature(SEPARATE) == ["*bf16", "*fp32", "*fp32", "*fp32", "i64"]
    assert signature(SAME) == ["*bf16", "*fp32", "*fp32", "*fp32", "*i64", "i64"]


@pytest.mark.parametrize(
    ("kernel", "variant", "told"),
    [
        (SEPARATE, Variant(ALL, (True,)), [0, 1, 2, 3, 4]),
        (SEPARATE, Variant(ALL, (False,)), [0, 1, 2, 3]),
        (SEPARATE, Variant((False, True, False), (False,)), [1, 3]),
        (SEPARATE, Variant(NONE, (True,)), [3, 4]),
        (SAME, Variant(NONE, (False,)), [3, 4]),
    ],
)
def test_memory_of_wefts_own_is_always_aligned(kernel: Kernel, variant: Variant, told: list[int]) -> None:
    assert attributes(kernel, variant) == {(at,): [["tt.divisibility", 16]] for at in told}


def test_an_unaligned_variant_loads_less_at_a_time(options: Options) -> None:
    wide, narrow = (binaries(replace(JOB, variant=Variant(a, (True,))), options)["weft_p"] for a in (ALL, NONE))
    assert wide.content != narrow.content


@pytest.mark.parametrize(
    ("hints", "variant"),
    [
        ({}, Variant(ALL, (True,))),
        ({"s0": 32}, Variant(ALL, (True,))),
        ({"s0": 33}, Variant(ALL, (False,))),
        ({"x": 8}, Variant((False, True, True), (True,))),
        ({"x": 48, "s0": 33}, Variant(ALL, (False,))),
    ],
)
def test_the_variant_that_is_expected_follows_the_hints(hints: dict[str, int], variant: Variant) -> None:
    assert Variant.expected(SEPARATE, hints) == variant


@pytest.mark.parametrize(("place", "aligned"), [(0, True), (16, True), (20, False)])
def test_parts_begin_where_they_lie_in_their_whole(place: int, aligned: bool) -> None:
    x = replace(SEPARATE.program.inputs[0], within="whole", place=place)
    kernel = replace(SEPARATE, program=replace(SEPARATE.program, inputs=(x,)))
    assert Variant.expected(kernel, {}).aligned == (aligned, True, True)
    assert Variant.expected(kernel, {"whole": 8}).aligned == (place * itemsize(x.dtype) % 16 == 8, True, True)


# resources

USAGE = """
Resource usage:
 Common:
  GLOBAL:0
 Function weft_p_finish:
  REG:32 STACK:0 SHARED:1024 LOCAL:0 CONSTANT[0]:584 TEXTURE:0 SURFACE:0 SAMPLER:0
 Function weft_p:
  REG:255 STACK:5168 SHARED:1040 LOCAL:8 CONSTANT[0]:584 TEXTURE:0 SURFACE:0 SAMPLER:0
"""
SPILLS = """ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function 'weft_p' for 'sm_90a'
ptxas info    : Function properties for weft_p
    5168 bytes stack frame, 10080 bytes spill stores, 7772 bytes spill loads
ptxas info    : Used 255 registers, used 1 barriers
"""


def test_usage_is_read_for_the_function_that_is_meant() -> None:
    found = parse_cuobjdump(USAGE, "weft_p")
    assert {name: found[name] for name in ("REG", "STACK", "SHARED", "LOCAL")} == {
        "REG": 255,
        "STACK": 5168,
        "SHARED": 1040,
        "LOCAL": 8,
    }
    assert parse_cuobjdump(USAGE, "weft_p_finish")["REG"] == 32
    assert parse_ptxas(SPILLS, "weft_p") == 17852


@pytest.mark.parametrize(("parse", "text"), [(parse_cuobjdump, USAGE), (parse_ptxas, SPILLS)])
def test_what_a_tool_does_not_say_is_an_error(parse: Callable[[str, str], Any], text: str) -> None:
    with pytest.raises(BuildError, match="says nothing of weft_q"):
        parse(text, "weft_q")


def test_a_kernel_that_spills_says_so(options: Options) -> None:
    """128 x 64 accumulators on one warp: 256 registers a thread."""
    text = TEXT.replace("[4, 64]", "[128, 64]").replace("tl.arange(0, 4)", "tl.arange(0, 128)")
    kernel = replace(SEPARATE, schedule=replace(SEPARATE.schedule, warps=1))
    usage = binaries(Job(kernel, replace(SOURCE, text=text), ALIGNED, H100), options)["weft_p"].usage
    assert usage.registers == 255
    assert usage.stack_bytes > 0
    assert usage.spill_bytes >= usage.stack_bytes
    assert usage.shared_bytes > 1024


def test_without_a_text_the_whole_stack_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(triton_usage, "_run", lambda _: USAGE)
    assert triton_usage.resource_usage(b"", "weft_p", 100, None, tmp_path) == ResourceUsage(255, 5176, 1140, 5176)
