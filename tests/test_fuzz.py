"""A slice of the fuzzer that takes a few minutes, and cases that failed once."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from tests.cases import often
from tests.fuzz import functions, modules, programs, shrink
from tests.fuzz.function_generator import Function, Statement
from tests.fuzz.outcome import Mismatch, Outcome
from tests.fuzz.pool import Worker, run_seeds
from weft.ir.parser import parse
from weft.ir.program import Program

Patch = pytest.MonkeyPatch
KINDS = ("programs", "functions", "modules")
MINUTES = float(os.environ.get("WEFT_FUZZ_MINUTES", "0.3")) / len(KINDS)
JOBS = max(1, (os.cpu_count() or 1) // int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1")))
"""Processes for the cores that no other tests run on: more of them would only take longer to start."""


@pytest.mark.parametrize("kind", KINDS)
def test_random_cases_agree_with_float64(kind: str, tmp_path: Path, record_property: pytest.RecordProperty) -> None:
    """The same seeds each time, as many of them as there is time for."""
    summary = run_seeds(kind, range(100_000), JOBS, MINUTES, shrink_seconds=60, folder=tmp_path, progress=False)
    print(summary.line())
    record_property("fuzz", summary.line())
    shown = [f"python -m tests.fuzz {kind} --seed {f.seed}\n{f.message}" for f in summary.failures]
    assert not shown, "\n\n".join(shown)
    assert summary.ran > 0
    assert summary.without_kernels < max(2, summary.ran / 2), summary.line()


@pytest.mark.parametrize("kind", [programs, functions, modules], ids=KINDS)
def test_a_seed_is_one_case(kind: object) -> None:
    for seed in range(30):
        assert kind.make(seed) == kind.make(seed)  # type: ignore[attr-defined]
        assert kind.describe(kind.make(seed))  # type: ignore[attr-defined]


# what the fuzzer says of kernels that are wrong

WRONG = """program p()
  dim m = 40
  dim n = 33
  input x: f32 [m:33, n:1]
  tanh: f32{m, n} = tanh(x)
  column: f32{n} = sum[m](x)
  row: f32{m} = sum[n](tanh)
  output y0: f32 [n:1] = column
  output y1: f32 [m:1] = row
  output y2: f32 [m:33, n:1] = tanh
end
"""


def case_of(text: str, mode: programs.Mode = "random", **sizes: int) -> programs.Case:
    return programs.Case(0, parse(text), sizes, {}, mode)


@pytest.mark.parametrize(
    ("was", "becomes", "place"),
    [
        ("tile < last", "tile + 1 < last", "value"),
        ("w::load(sum_chunk + n, lanes) + sum_tile", "sum_tile", "value"),
        ("x_data + m * 33 + n", "x_data + m * 33 + n + 1", "value"),
        ("y0_data + n,", "y0_data + n + 1,", "outside"),
    ],
)
def test_a_wrong_kernel_is_found(was: str, becomes: str, place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from weft.backends.cpp import text as cpp

    changed: list[str] = []

    def render(kernel: object) -> object:
        source = right(kernel)  # type: ignore[arg-type]
        text = source.text.replace(was, becomes)
        changed.append(text) if text != source.text else None
        return replace(source, text=text)

    right = cpp.render
    monkeypatch.setattr(programs.cpp, "render", render)
    found = shrink.failure_of(programs, case_of(WRONG))
    assert changed, "no kernel has that text"
    assert found is not None
    assert found[0] == place, found[1]


def test_a_failure_becomes_smaller() -> None:
    class OnlyTanh:
        """Fails for every program with a tanh."""

        smaller, is_valid = staticmethod(programs.smaller), staticmethod(programs.is_valid)

        @staticmethod
        def check(case: programs.Case) -> Outcome:
            if any(v.op == "tanh" for v in case.program.values):
                raise Mismatch("tanh", "there is one")
            return Outcome(0, 0)

    small, message = shrink.shrink(OnlyTanh, case_of(WRONG), "tanh", 20)
    assert message is not None
    program: Program = small.program
    assert [v.op for v in program.values] == ["tanh"]
    assert len(program.outputs) == 1
    assert all(d.size == 2 for d in program.dims)


def test_a_function_loses_what_a_failure_does_not_need() -> None:
    body = (
        Statement("v0", "torch.tanh(x0)"),
        Statement("v1", "v0 + x1"),
        Statement("v2", "v1.sum(-1)"),
        Statement("v3", "torch.exp(-v1.abs())"),
    )
    function = Function(
        (Statement("x0", "draw(4, 6).to(f32)"), Statement("x1", "draw(6).to(f32)")), body, ("v2", "v3"), True
    )

    class OnlySums:
        smaller, is_valid = staticmethod(functions.smaller), staticmethod(functions.is_valid)

        @staticmethod
        def check(case: functions.Case) -> Outcome:
            if ".sum(-1)" in case.function.source():
                raise Mismatch("sum", "there is one")
            return Outcome(0, 0)

    small, _ = shrink.shrink(OnlySums, functions.Case(0, function, "evaluated"), "sum", 20)
    assert [s.text.partition(".")[2] for s in small.function.body] == ["sum(-1)"]
    compile(functions.script(small, "a sum"), "script", "exec")


def disagree(*_: object) -> None:
    raise Mismatch("value", "they differ")


POINTWISE = Function((Statement("x0", "draw(4, 6).to(f32)"),), (Statement("v0", "torch.tanh(x0)"),), ("v0",), False)
SOFTMAX = replace(POINTWISE, body=(Statement("v0", "torch.softmax(x0, -1)"),))


@pytest.mark.parametrize("how", ["fuse", "evaluated"])
def test_a_wrong_result_with_the_bits_of_torch_alone_is_torchs(how: functions.How, monkeypatch: Patch) -> None:
    monkeypatch.setattr(functions, "_compare", disagree)
    assert functions.check(functions.Case(0, POINTWISE, how)) == Outcome(0, 1, torchs=1)


def test_a_wrong_result_with_other_bits_is_a_failure(monkeypatch: Patch) -> None:
    from functorch.compile import make_boxed_func

    right = functions.GraphBackend._compile

    def wrong(self: functions.GraphBackend, *given: object) -> object:
        made = right(self, *given)  # type: ignore[arg-type]
        return make_boxed_func(lambda *inputs: [t * 1.5 for t in made([*inputs])])

    monkeypatch.setattr(functions.GraphBackend, "_compile", wrong)
    with pytest.raises(Mismatch, match="value: output 0"):
        functions.check(functions.Case(0, SOFTMAX, "evaluated"))


def test_a_worker_that_dies_or_hangs_is_a_failure_of_its_seed() -> None:
    worker = Worker("tests.fuzz.worker", "programs", "0")
    try:
        worker.process.kill()
        worker.process.wait()
        assert str(worker.run(0, 10)).startswith("crash")
    finally:
        worker.end()
    worker = Worker("tests.fuzz.worker", "programs", "0")
    try:
        assert str(worker.run(0, 0.001)).startswith("hang")
    finally:
        worker.end()


# cases that failed once

PROGRAMS = {
    "booleans are compared": """program p()
  dim m = 40
  dim n = 33
  input b: bool [m:33, n:1]
  input c: bool [n:1]
  eq: bool{m, n} = eq(b, c)
  ne: bool{m, n} = ne(b, c)
  lt: bool{m, n} = lt(b, c)
  le: bool{m, n} = le(b, c)
  gt: bool{m, n} = gt(b, c)
  ge: bool{m, n} = ge(b, c)
  count: i64{m, n} = cast(eq)
  row: i64{m} = sum[n](count)
  column: i64{n} = sum[m](count)
  output y0: i64 [m:1] = row
  output y1: i64 [n:1] = column
  output y2: bool [m:33, n:1] = ne
  output y3: bool [m:33, n:1] = lt
  output y4: bool [m:33, n:1] = le
  output y5: bool [m:33, n:1] = gt
  output y6: bool [m:33, n:1] = ge
end
""",
    "a value without the fastest column is stored": """program p()
  dim a = 5
  dim b = 3
  dim c = 7
  input x: f32 [a:21, b:7, c:1]
  input w: f32 [b:1]
  input k: i64 [b:1]
  negated: f32{b} = neg(w)
  positive: bool{b} = gt(w, w)
  row: f32{a} = sum[b, c](x)
  column: f32{b} = sum[a, c](x)
  scaled: f32{b} = mul(column, w)
  output y0: f32 [b:2] = negated
  output y1: bool [b:1] = positive
  output y2: f32 [a:1] = row
  output y3: i64 [a:3, b:1] = k
  output y4: f32 [b:1] = scaled
end
""",
    "every row dimension is kept by a column sum": """program p()
  dim a = 5
  dim b = 3
  dim n = 40
  input x: f32 [a:120, b:40, n:1]
  first: f32{b, n} = sum[a](x)
  second: f32{a, n} = sum[b](x)
  output y0: f32 [b:40, n:1] = first
  output y1: f32 [a:40, n:1] = second
end
""",
}


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("mode", often(["exact", "random"], ["exact"]))
def test_programs_that_failed_once(name: str, mode: programs.Mode) -> None:
    for seed in range(3):
        case = programs.Case(seed, parse(PROGRAMS[name]), {}, {}, mode)
        assert programs.is_valid(case)
        assert programs.check(case).kernels > 0


PLAIN = (("norm", "nn.LayerNorm({d})"), ("act", "F.silu"), ("axis", "-1"))
MODULES = {
    "a stride is the larger of two sizes": modules.Case(
        123, (3, 3, 8), (("modulated", PLAIN),), "all", "evaluated", autocast=False, other=5
    )
}


@pytest.mark.parametrize("name", MODULES)
def test_modules_that_failed_once(name: str) -> None:
    assert modules.check(MODULES[name]).kernels > 0
