"""Every rule by which weft leaves something out, with ways to make it say so and what it then prints."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch._inductor.virtualized import V

import weft
from tests.refusal_builders import (
    CPU,
    STARTS_ONLY,
    compiled,
    cut_of,
    folder_refused,
    limited,
    not_in_triton,
    online,
    raced,
    refusal_of,
    refused,
    under_split,
)
from tests.region_checks import traced
from weft import compiler, planning
from weft.backends.c_expressions import C_TYPES
from weft.backends.triton import text as triton
from weft.backends.triton.expressions import TRITON_TYPES
from weft.backends.triton.schedule import TritonSchedule
from weft.bench.workloads import WORKLOADS
from weft.capture.regions import capture
from weft.capture.trace import trace
from weft.compiler import compile_graph
from weft.errors import Refusal
from weft.integration import race
from weft.integration.backend import check_ahead_of_time
from weft.integration.rewrite import rewrite
from weft.ir.parser import parse
from weft.options import Options
from weft.plan.kernel import Kernel, Plan
from weft.plan.planner import plan_split
from weft.plan.tuned import Tuned, plain, with_tuned
from weft.rules import Figure
from weft.runtime import launch, launcher
from weft.runtime.executable import Executable
from weft.target import Target


@dataclass(frozen=True)
class Case:
    """A way to make a rule say no. printed: the whole refusal without its place in the user's program."""

    rule: str
    printed: str
    have: Figure | None
    limit: Figure | None
    make: Callable[[pytest.MonkeyPatch, Path], Refusal]


CASES: list[Case] = []


def says(printed: str, have: Figure | None = None, limit: Figure | None = None) -> Callable[[Any], Any]:
    """Register a function that returns the refusal; ``printed`` begins with the rule."""

    def register(make: Callable[[pytest.MonkeyPatch, Path], Refusal]) -> Callable[..., Refusal]:
        CASES.append(Case(printed.split(":")[0], printed, have, limit, make))
        return make

    return register


# capture


@says("unsupported_op: mm: aten.mm.default is no operation weft fuses")
def _(*_: Any) -> Refusal:
    return refused(lambda x, w: x @ w, torch.randn(4, 4), torch.randn(4, 4))


@says("unsupported_form: sum_1: dtype complex64 is not supported")
def _(*_: Any) -> Refusal:
    return refused(lambda x: x.sum(-1), torch.ones(4, 6, dtype=torch.complex64))


@says("unsupported_form: sum_1: has a tensor without elements (have 0 elements, needs 1)", 0, 1)
def _(*_: Any) -> Refusal:
    return refused(lambda x: x.sum(-1), torch.ones(4, 0))


@says("unsupported_form: gather: gathers more than one element along its dimension (have 2 elements, limit 1)", 2, 1)
def _(*_: Any) -> Refusal:
    return refused(lambda x, i: x.gather(1, i), torch.ones(5, 7), torch.zeros(5, 2, dtype=torch.int64))


@says("unsupported_form: gather: gathers from a part of its operand")
def _(*_: Any) -> Refusal:
    return refused(lambda x, i: x.gather(1, i), torch.ones(5, 7), torch.zeros(3, 1, dtype=torch.int64))


@says("unsupported_form: sign: arithmetic on booleans is not supported")
def _(*_: Any) -> Refusal:
    return refused(lambda x: x.sign(), torch.ones(4, 6) > 0)


@says(
    "narrows_random: gt: is smaller than the random numbers it is made of, which need not be in memory "
    "(have 2048 bytes, needs 8192)",
    2048,
    8192,
)
def _(*_: Any) -> Refusal:
    (graph,) = weft.explain(lambda x: F.dropout(x.softmax(-1), 0.5), torch.randn(64, 32), target="cpu").graphs
    (refusal,) = [r for r in graph.compilation.refusals if r.rule != "unsupported_op"]
    return refusal


@says(
    "misaligned: gt: an index over a dimension of run-time size (have s96, needs a fixed size)", "s96", "a fixed size"
)
def _(*_: Any) -> Refusal:
    def late(x: Tensor) -> Tensor:
        place = torch.arange(x.shape[0] * x.shape[1]).view(x.shape[:2])
        return torch.where(place[..., None] > 9, x, 0).sum(-1)

    first, *others = capture(traced(late, [torch.randn(5, 7, 6)], mode="symbolic").graph).refusals
    assert {(r.rule, r.message) for r in others} == {(first.rule, first.message)}
    return first


@says("no_reduction: exp: no reduction shares its data: a pointwise kernel of Inductor's")
def _(*_: Any) -> Refusal:
    return refused(lambda x: x.exp(), torch.randn(4, 4))


@says("ahead_of_time: graph: a package of AOTInductor cannot call weft's kernels")
def _(*_: Any) -> Refusal:
    with V.set_aot_compilation(True):
        refusal = check_ahead_of_time()
    assert check_ahead_of_time() is None
    assert refusal is not None
    return refusal


# plan


@says("no_backend: row_max_exp_row_sum: no backend for meta (have meta, needs cpu or cuda)", "meta", "cpu or cuda")
def _(*_: Any) -> Refusal:
    return refused(lambda x: x.softmax(-1), torch.empty(8, 16, device="meta"), target=None)


@says("dimensions: total_sum: has more dimensions than splits are searched for (have 9 dimensions, limit 8)", 9, 8)
def _(*_: Any) -> Refusal:
    return refused(lambda x: x.sum((0, 2, 4, 6, 8)), torch.zeros([2] * 9))


@says(
    "separate_dimensions: p: its dimensions (m) and (n) have only single numbers in common (have 2 parts, limit 1)",
    2,
    1,
)
def _(*_: Any) -> Refusal:
    tensors = "  input x: f32 [m:1]\n  input y: f32 [n:1]\n"
    body = f"{tensors}  one: f32{{m}} = exp(x)\n  output z: f32 [m:1] = one\n  output copy: f32 [n:1] = y\n"
    return refusal_of(plan_split(parse(f"program p()\n  dim m = 2\n  dim n = 3\n{body}end\n"), (), ("m", "n"), CPU, {}))


@says(
    "partial_row: sum: reduces over n0 only, where a row is all of the columns (n0, n1) "
    "(have 1 column dimension, needs 2)",
    1,
    2,
)
def _(*_: Any) -> Refusal:
    body = "  input x: f32 [m:12, n0:4, n1:1]\n  sum: f32{m, n1} = sum[n0](x)\n  output y: f32 [m:4, n1:1] = sum\n"
    dims = "  dim m = 2\n  dim n0 = 3\n  dim n1 = 4\n"
    return refusal_of(plan_split(parse(f"program p()\n{dims}{body}end\n"), ("m",), ("n0", "n1"), CPU, {}))


@says(
    "partial_row: sum: reduces what varies over n0 only, where a row is all of the columns (n0, n1) "
    "(have 1 column dimension, needs 2)",
    1,
    2,
)
def _(*_: Any) -> Refusal:
    body = "  input x: f32 [m:3, n0:1]\n  row_sum: f32{m} = sum[n0](x)\n  output y: f32 [m:4, n1:1] = row_sum\n"
    dims = "  dim m = 2\n  dim n0 = 3\n  dim n1 = 4\n"
    return refusal_of(plan_split(parse(f"program p()\n{dims}{body}end\n"), ("m",), ("n0", "n1"), CPU, {}))


@says(
    "online_reduction: m2: m2 has a centre for each column, and this split has no columns (have 0 dimensions, needs 1)",
    0,
    1,
)
def _(*_: Any) -> Refusal:
    return online("  m2: f32{} = m2[m, n](x)\n  output y: f32 [] = m2\n")  # no split is legal


@says("online_reduction: m2: m2 drops n, where its centre moves with the rows (m) (have 1 dimension, limit 0)", 1, 0)
def _(*_: Any) -> Refusal:
    return online("  m2: f32{m} = m2[n](x)\n  output y: f32 [m:1] = m2\n", ("m",), ("n",))


@says("online_reduction: m2: m2 of something over (m), not over all rows and columns (have 1 dimension, needs 2)", 1, 2)
def _(*_: Any) -> Refusal:
    return online("  m2: f32{} = m2[m](w)\n  output y: f32 [n:1] = m2\n", ("m",), ("n",))


@says(
    "outer_dependency: sub: varies over m, but needs max, which is complete only after the whole pass over m "
    "(have 1 row dimension, limit 0)",
    1,
    0,
)
def _(*_: Any) -> Refusal:
    (region,) = compiled(lambda x: x.softmax(0), torch.randn(64, 32)).regions
    return cut_of(region.plan)


@says(
    "row_registers: row_sum_column_sum: a row and all of its column sums take more registers than the threads of a "
    "multiprocessor have (have 382 registers, limit 239)",
    382,
    239,
)
def _(*_: Any) -> Refusal:
    workload = WORKLOADS["rms_norm_backward"]
    inputs = workload.make_inputs((64, 32768), torch.bfloat16)
    (region,) = compiled(workload.fn, *inputs, target=Target.named("a100")).regions
    return cut_of(region.plan)


@says(
    "apart: row_sum_column_sum: rows and columns are predicted to take less time in several kernels "
    "(4.5 us in one kernel, 4.1 us in several)",
    4.5,
    4.1,
)
def _(*_: Any) -> Refusal:
    workload = WORKLOADS["rms_norm_backward"]
    inputs = workload.make_inputs((64, 4096), torch.bfloat16)
    (region,) = compiled(workload.fn, *inputs, target=Target.named("h200")).regions
    return cut_of(region.plan)


@says(
    "max_reads: row_sum_column_sum: reduces rows and columns, and reads more buffers than max_reads "
    "(have 4 buffers, limit 3)",
    4,
    3,
)
def _(*_: Any) -> Refusal:
    return cut_of(limited(max_reads=3))


@says(
    "mix_order: row_sum_column_sum: reduces rows and columns, and mix_order is off (have 1 reduction, limit 0)",
    1,
    0,
)
def _(*_: Any) -> Refusal:
    return cut_of(limited(mix_order=False))


@says(
    "epilogue_reduction: max: reduces sum, which is complete only after the pass, where a kernel reduces nothing "
    "(have 1 reduction, limit 0)",
    1,
    0,
)
def _(*_: Any) -> Refusal:
    (region,) = compiled(lambda x: x.sum(0).amax(), torch.randn(64, 32)).regions
    return cut_of(region.plan)


@says(
    "epilogue_operand: mul_1: needs sum_1 after the pass over m0, m1, where values of a row are gone "
    "(have 1 value, limit 0)",
    1,
    0,
)
def _(*_: Any) -> Refusal:
    def scaled(x: Tensor, w: Tensor) -> Tensor:
        return (x * w[:, None]).sum(1) * w.sum(-1, keepdim=True)

    return cut_of(under_split(scaled, [torch.randn(3, 6, 4), torch.randn(3, 4)], ("m0", "m1")))


@says(
    "row_invariant_reduction: sum: is the same for every row, but would be computed again in each row over m "
    "(have 1 row dimension, limit 0)",
    1,
    0,
)
def _(*_: Any) -> Refusal:
    def both(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        total = w.sum()
        return x * w * total, total

    return refusal_of(under_split(both, [torch.randn(6, 4), torch.randn(4)], ("m",)))


@says(
    "strided_columns: row_max_exp_row_sum: columns would not be neighbours in memory, and no pass would be saved by "
    "that (have 3 passes, limit 1)",
    3,
    1,
)
def _(*_: Any) -> Refusal:
    found = compiled(lambda x: torch.softmax(x, -1), torch.randn(64, 32))
    others = [other.refusal for other in found.regions[0].plan.alternatives]
    return next(other for other in others if other is not None and other.rule == "strided_columns")


@says(
    "not_worthwhile: row_sum: one reduction and nothing to fuse with it, predicted to be no faster than Inductor's "
    "(10.0 us predicted, 10.0 us left to Inductor)",
    10.0,
    10.0,
)
def _(*_: Any) -> Refusal:
    return refused(lambda x: x.sum(-1), torch.randn(8, 16), target=STARTS_ONLY)


@says("fused_further: pointwise: Inductor fuses it with aten.hypot.default, which is in no kernel of weft")
def _(*_: Any) -> Refusal:
    def turned(x: Tensor, y: Tensor) -> Tensor:
        first, second = x.chunk(2, -1)
        return torch.hypot(torch.cat((-second, first), -1), y)

    found = compiled(turned, *[torch.randn(4, 8)] * 2)
    assert not found.regions
    (refusal,) = [r for r in found.refusals if r.rule == "fused_further"]
    return refusal


@says(
    "interrupted: row_max_exp_row_sum: cut off by aten.hypot.default: with what is left around it predicted to be no "
    "faster than without fusion (20.0 us predicted, 10.0 us left to Inductor)",
    20.0,
    10.0,
)
def _(monkeypatch: pytest.MonkeyPatch, _: Path) -> Refusal:
    found = compiled(lambda x, y: torch.hypot(torch.softmax(x, -1), y), *[torch.randn(64, 32)] * 2, target=STARTS_ONLY)
    assert not found.regions
    (refusal,) = [r for r in found.refusals if r.rule != "unsupported_op"]
    return refusal


@says(
    "not_worthwhile: row_max_exp_row_sum: predicted to be slower than without fusion (138.0 us predicted, "
    "10.0 us left to Inductor)",
    138.0,
    10.0,
)
def _(*_: Any) -> Refusal:
    """One start, and a microsecond for each of the 8 x 16 elements that are read across their layout."""
    target = replace(STARTS_ONLY, strided_us_per_mega=2.0**20)
    return refused(lambda x, y: (x * y.t()).softmax(-1), torch.randn(8, 16), torch.randn(16, 8), target=target)


# render and later


@says(
    "row_registers: p: a row and all of its column sums take more registers than the threads of a multiprocessor have "
    "(have 1026 registers, limit 216)",
    1026,
    216,
)
def _(*_: Any) -> Refusal:
    body = (
        "  input x: f32 [m:131072, n:1]\n  row: f32{m} = sum[n](x)\n  rest: f32{m, n} = sub(x, row)\n"
        "  column: f32{n} = sum[m](rest)\n  output y: f32 [n:1] = column\n"
    )
    program = parse(f"program p()\n  dim m = 64\n  dim n = 131072\n{body}end\n")
    return cut_of(plan_split(program, ("m",), ("n",), Target.named("a100"), {}))


@says(
    "registers: p: what a thread has to hold at a time takes more registers than it can have "
    "(have 293 registers, limit 216)",
    293,
    216,
)
def _(*_: Any) -> Refusal:
    """Of 48 tensors in float32 that are multiplied one after the other, and reduced."""
    names = [f"x{at}" for at in range(48)]
    body = "".join(f"  input {name}: f32 [m:1024, n:1]\n" for name in names)
    body += "  p1: f32{m, n} = mul(x0, x1)\n"
    body += "".join(f"  p{at}: f32{{m, n}} = mul(p{at - 1}, x{at})\n" for at in range(2, 48))
    body += "  row: f32{m} = sum[n](p47)\n  rest: f32{m, n} = sub(p47, row)\n  output y: f32 [m:1024, n:1] = rest\n"
    program = parse(f"program p()\n  dim m = 4096\n  dim n = 1024\n{body}end\n")
    return cut_of(plan_split(program, ("m",), ("n",), Target.named("a100"), {}))


@says(
    "tuned_schedule: p: the tuned schedule is none that the kernel can have: ONE_SHOT rows=(d0) columns=(d1) "
    "segments=() rows_per_tile=3 rows_per_chunk=8 held=() finish=none"
)
def _(*_: Any) -> Refusal:
    body = "  input x: f32 [m:32, n:1]\n  row: f32{m} = sum[n](x)\n  output y: f32 [m:1] = row\n"
    planned = plan_split(parse(f"program p()\n  dim m = 8\n  dim n = 32\n{body}end\n"), ("m",), ("n",), CPU, {})
    assert isinstance(planned, Plan)
    (kernel,) = planned.kernels
    other = plain(replace(kernel, schedule=replace(kernel.schedule, rows_per_tile=3)))
    tuned = Tuned(str(other), CPU.name, CPU.device, str(plain(kernel).schedule), 8.0, 10.0, 3, 4)
    (refusal,) = with_tuned(planned, CPU, {tuned.key: tuned}).tuned
    assert isinstance(refusal, Refusal)
    return refusal


@says("triton_dtype: sum: Triton has no f16 (have 1 dtype, limit 0)", 1, 0)
def _(monkeypatch: pytest.MonkeyPatch, _: Path) -> Refusal:
    """As it would be with a dtype that the programs have and the backend does not know yet."""
    monkeypatch.delitem(TRITON_TYPES, "f16")
    body = "  input x: f16 [m:32, n:1]\n  wide: f32{m, n} = cast(x)\n  sum: f32{m} = sum[n](wide)\n"
    return not_in_triton(f"program sum()\n  dim m = 8\n  dim n = 32\n{body}  output y: f32 [m:1] = sum\nend\n", ("m",))


@says("triton_segments: p: keeps a of the segments (a, b), not all or none (have 1 dimension, needs 2)", 1, 2)
def _(*_: Any) -> Refusal:
    body = (
        "  input x: f32 [a:512, b:128, m:16, n:1]\n  first: f32{a, n} = sum[b, m](x)\n"
        "  second: f32{a, b, n} = sum[m](x)\n  output y: f32 [a:16, n:1] = first\n"
        "  output z: f32 [a:64, b:16, n:1] = second\n"
    )
    dims = "  dim a = 3\n  dim b = 4\n  dim m = 8\n  dim n = 16\n"
    return not_in_triton(f"program p()\n{dims}{body}end\n", ("a", "b", "m"))


@says(
    "triton_grid: p: has more programs side by side along its columns than a launch can have "
    "(have 97657 blocks, limit 65535)",
    97657,
    65535,
)
def _(*_: Any) -> Refusal:
    body = "  input x: f32 [m:100000000, n:1]\n  sum: f32{n} = sum[m](x)\n  output y: f32 [n:1] = sum\n"
    return not_in_triton(f"program p()\n  dim m = 8\n  dim n = 100000000\n{body}end\n", ("m",))


@says("triton_index: p: counts along n in 32 bits (have 2147483599 elements, limit 2147418112)", 2147483599, 2147418112)
def _(*_: Any) -> Refusal:
    body = "  input x: f32 [n:1]\n  most: f32{} = max[n](x)\n  output y: f32 [] = most\n"
    return not_in_triton(f"program p()\n  dim n = 2147483599\n{body}end\n", ())


@says("triton_wide_sums: sum: sums columns of rows that are too wide for registers (have 1 sum, limit 0)", 1, 0)
def _(*_: Any) -> Refusal:
    """As it would be if the planner did not take two kernels."""
    body = "  input x: f32 [m:32, n:1]\n  sum: f32{n} = sum[m](x)\n  output y: f32 [n:1] = sum\n"
    schedule = TritonSchedule("LOOP", ("m",), ("n",), piece_columns=32, warps=4, finish="separate")
    kernel = Kernel(parse(f"program p()\n  dim m = 8\n  dim n = 32\n{body}end\n"), schedule)
    refusal = triton.supports(kernel)
    assert refusal is not None
    return refusal


@says("cpp_dtype: column_sum: no CPU vectors for f16 (have 1 dtype, limit 0)", 1, 0)
def _(monkeypatch: pytest.MonkeyPatch, _: Path) -> Refusal:
    """As it would be with a dtype that the programs have and the backend does not know yet."""
    monkeypatch.delitem(C_TYPES, "f16")
    return refused(lambda x: (x * 2).sum(0), torch.ones(64, 32, dtype=torch.float16))


@says(
    "race_lost: row_max_exp_row_sum: was predicted to take 1.4 us; Inductor's code for the same nodes is faster "
    "(30.0 us measured with weft, 20.0 us with Inductor's code)",
    30.0,
    20.0,
)
def _(monkeypatch: pytest.MonkeyPatch, folder: Path) -> Refusal:
    found = raced(lambda x: x.softmax(-1), torch.randn(64, 32), monkeypatch, folder)
    assert not found.regions
    return found.refusals[-1]


@says("not_raced: row_max_exp_row_sum: there is too little free memory (have 49152 bytes, limit 49151)", 49152, 49151)
def _(monkeypatch: pytest.MonkeyPatch, folder: Path) -> Refusal:
    monkeypatch.setattr(race, "_free_bytes", lambda _: 49151)
    (region,) = raced(lambda x: x.softmax(-1), torch.randn(64, 32), monkeypatch, folder).regions
    assert isinstance(region.race, Refusal)
    return region.race


@says("not_raced: row_max_exp_row_sum: it writes a part of a tensor that other regions write as well")
def _(monkeypatch: pytest.MonkeyPatch, folder: Path) -> Refusal:
    monkeypatch.setattr(race, "is_whole", lambda _: False)
    (region,) = raced(lambda x: x.softmax(-1), torch.randn(64, 32), monkeypatch, folder).regions
    assert isinstance(region.race, Refusal)
    return region.race


@says("not_assembled: cat: a region that has a part of it is left out (have 1 part, needs 2)", 1, 2)
def _(*_: Any) -> Refusal:
    def joined(x: Tensor, y: Tensor) -> Tensor:
        return torch.cat([x.softmax(-1).sum(0), y.softmax(-1).sum(0)])

    graph = trace(joined, [torch.randn(64, 32), torch.randn(48, 16)])
    found = compile_graph(graph.graph)
    assert len(found.regions) == 2
    (refusal,) = rewrite(graph.graph, replace(found, regions=found.regions[:1])).refusals[len(found.refusals) :]
    return refusal


@says(
    "run_time_failure: row_max_exp_row_sum: a kernel of this region failed in this process: RuntimeError: launch failed"
)
def _(*_: Any) -> Refusal:
    def softmax(x: Tensor) -> Tensor:
        return x.softmax(-1)

    def broken(*_: Any) -> None:
        raise RuntimeError("launch failed")

    x = torch.randn(64, 32)
    (kernel,) = compiled(softmax, x).kernels
    result = torch.empty_like(x)
    with pytest.warns(UserWarning, match="weft: kernel row_max_exp_row_sum runs on ATen, slowly: RuntimeError"):
        Executable(kernel, broken)([x], [result], [])
    torch.testing.assert_close(result, softmax(x))
    return refused(softmax, x)


@says(
    "no_compiler: row_max_exp_row_sum: [build] the C++ compiler FOLDER/g++ cannot compile an empty kernel, and says: "
    "error: the licence of this compiler has expired. The option cxx names it: leave that out, and weft takes the "
    "first of g++, clang++ and c++ on the path. If there is none, install one, e.g. `apt-get install g++` on Debian "
    "and Ubuntu, `dnf install gcc-c++` on Fedora, `xcode-select --install` on macOS; `weft doctor` says whether it "
    "works."
)
def _(monkeypatch: pytest.MonkeyPatch, folder: Path) -> Refusal:
    fails = "echo error: the licence of this compiler has expired; exit 1"
    (folder / "g++").write_text(f'#!/bin/sh\ncase "$1" in --version) echo 12;; *) {fails};; esac\n')
    (folder / "g++").chmod(0o755)
    monkeypatch.setattr(launch, "_KERNELS", {})
    monkeypatch.setattr(launcher, "_LAUNCHER", launcher._Launcher())
    options = Options.read({"cxx": str(folder / "g++"), "cache_dir": str(folder / "cache")}, {})
    (refusal,) = compiler.build(compiled(lambda x: x.softmax(-1), torch.randn(64, 32)), options).refusals
    return refusal


@says("internal_error: row_max_exp_row_sum: [plan] KeyError: 'planned'")
def _(monkeypatch: pytest.MonkeyPatch, _: Path) -> Refusal:
    def broken(*_: Any) -> None:
        raise KeyError("planned")

    monkeypatch.setattr(planning, "plan", broken)
    return refused(lambda x: x.softmax(-1), torch.randn(64, 32))


@says("cache_folder: FOLDER: other users can write to it (have mode 775, needs mode 755)", "mode 775", "mode 755")
def _(_: pytest.MonkeyPatch, folder: Path) -> Refusal:
    folder.chmod(0o775)
    return folder_refused(folder)


@says("cache_folder: FOLDER/file: it is no folder")
def _(_: pytest.MonkeyPatch, folder: Path) -> Refusal:
    (folder / "file").touch()
    return folder_refused(folder / "file")
