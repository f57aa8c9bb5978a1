"""Measured schedules as data: what they are found by, where they are kept, and that a compile takes them."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import weft
from tests.run_program import run_program
from weft import compiler, planning
from weft.backends.cpp.backend import CppBackend
from weft.backends.resource_usage import ResourceUsage
from weft.capture.trace import trace
from weft.compiler import Compilation, compile_graph
from weft.integration.backend import WeftPass
from weft.ir.names import plain_names
from weft.ir.parser import parse
from weft.ir.program import Program
from weft.options import ANY, Options
from weft.plan.kernel import Kernel, Plan
from weft.plan.planner import plan_split
from weft.plan.schedule import Schedule
from weft.plan.tuned import Tuned, TunedSchedules, key_of, plain, schedule_under_names, with_tuned
from weft.planning import Asked, Plans
from weft.runtime import build, launch, tuning
from weft.runtime.cache import Cache
from weft.runtime.executable import digest_of
from weft.target import Target

CPU = Target.current("cpu")
SIZE = (2048, 256)


@pytest.fixture
def without_header(monkeypatch: pytest.MonkeyPatch) -> None:
    """Precompiling it for a cache of its own would take longer than all else here."""
    monkeypatch.setattr(build._Headers, "find", lambda *_: None)


@pytest.fixture
def options(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Options:
    """A cache of its own."""
    monkeypatch.setenv("WEFT_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.delenv("WEFT_TUNED", raising=False)
    return Options.read()


def norm(x: Tensor, weight: Tensor) -> Tensor:
    return torch.nn.functional.rms_norm(x, (SIZE[1],), weight)


def compiled(function: Callable[..., Any], *inputs: Tensor, tuned: TunedSchedules | None = None) -> Compilation:
    return compile_graph(trace(function, inputs).graph, tuned=tuned or {})


def inputs() -> tuple[Tensor, Tensor]:
    return torch.randn(SIZE), torch.rand(SIZE[1])


def tuned_to(kernel: Kernel, **changes: Any) -> Tuned:
    """A record of another schedule."""
    other = plain(replace(kernel, schedule=replace(kernel.schedule, **changes)))
    return Tuned(str(other), CPU.name, CPU.device, str(plain(kernel).schedule), 8.0, 10.0, 3, 4)


def table(*found: Tuned) -> TunedSchedules:
    return {each.key: each for each in found}


def other_schedule(kernel: Kernel) -> dict[str, Any]:
    """Legal, and not what is predicted."""
    return {"rows_per_tile": 2 if kernel.schedule.rows_per_tile != 2 else 1, "rows_per_chunk": 32}


# names


def test_equal_kernels_with_other_names_have_one_key() -> None:
    first = compiled(norm, *inputs()).kernels[0]

    def same(data: Tensor, scale: Tensor) -> Tensor:
        return norm(data, scale)

    graph = trace(same, inputs()).graph
    (second,) = compile_graph(graph, name="another").kernels
    assert str(first) != str(second)
    assert key_of(first, CPU) == key_of(second, CPU)
    assert key_of(first, CPU) != key_of(first, replace(CPU, device="another machine"))
    assert key_of(first, CPU) != key_of(first, replace(CPU, name="h200"))
    wider = replace(first.program, dims=tuple(replace(d, size=2 * int(d.size)) for d in first.program.dims))
    assert key_of(first, CPU) != key_of(replace(first, program=wider), CPU)


def test_plain_names_lead_back() -> None:
    kernel = compiled(lambda x: torch.softmax(x, -1), inputs()[0]).kernels[0]
    names = plain_names(kernel.program)
    there = kernel.renamed(names)
    assert there != kernel
    assert there.schedule.held
    assert there.schedule.held[0].startswith("v")
    assert there.renamed(names.inverse) == kernel
    record = tuned_to(kernel)
    assert schedule_under_names(record, kernel.program) == kernel.schedule
    assert record.key == key_of(kernel, CPU)


# the plan


def planned(program: Program, target: Target, tuned: TunedSchedules) -> Plan:
    found = Plans(tuned, ANY).of(Asked(program, target, {}))
    assert isinstance(found, Plan)
    return found


def test_a_plan_takes_the_measured_schedule_and_says_so() -> None:
    (region,) = compiled(norm, *inputs()).regions
    (kernel,) = region.plan.kernels
    record = tuned_to(kernel, **other_schedule(kernel))
    found = planned(region.program, CPU, table(record))
    assert found.kernels[0].schedule == replace(kernel.schedule, **other_schedule(kernel))
    assert found.tuned == (record,)
    assert "\n  measured 8.0 us, 10.0 us with the predicted schedule\n" in str(found)
    assert found.decisions == region.plan.decisions  # which values share a kernel is no matter of schedules
    elsewhere = planned(region.program, replace(CPU, device="another machine"), table(record))
    assert elsewhere == region.plan
    named = planned(region.program, Target.named("h200"), table(record))
    assert named.tuned == ()


def test_a_measurement_that_agrees_with_the_prediction_is_one_too() -> None:
    (region,) = compiled(norm, *inputs()).regions
    record = tuned_to(region.plan.kernels[0])
    found = planned(region.program, CPU, table(record))
    assert found.kernels == region.plan.kernels
    assert str(record) == "measured 8.0 us; the best of 3 timed is the predicted one"
    assert str(replace(record, sizes={"p0": 600})) == (
        "measured 8.0 us, p0 = 600; the best of 3 timed is the predicted one"
    )


@pytest.mark.parametrize("changes", [{"rows_per_tile": 3}, {"rows_per_chunk": 7}, {"held": ("x",)}, {"finish": "same"}])
def test_a_schedule_that_is_no_candidate_is_left_with_a_reason(changes: dict[str, Any]) -> None:
    (region,) = compiled(norm, *inputs()).regions
    (kernel,) = region.plan.kernels
    found = with_tuned(region.plan, CPU, table(tuned_to(kernel, **changes)))
    assert found.kernels == region.plan.kernels
    (refusal,) = found.tuned
    assert isinstance(refusal, weft.Refusal)
    assert refusal.rule == "tuned_schedule"
    assert "the tuned schedule is none that the kernel can have: ONE_SHOT rows=(d0)" in refusal.message
    assert f"\n  {refusal}\n" in str(found)
    assert found.cuts == ()


def test_names_that_no_kernel_has_are_no_error() -> None:
    (region,) = compiled(norm, *inputs()).regions
    record = tuned_to(region.plan.kernels[0])
    strange = replace(record, kernel=record.kernel.replace("held=()", "held=(v99)", 1))
    found = planned(region.program, CPU, {record.key: strange})
    assert isinstance(found.tuned[0], weft.Refusal)


def test_a_measured_schedule_that_spills_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    """It was the fastest all the same; a predicted one gives way to its runner-up."""
    (region,) = compiled(norm, *inputs()).regions
    (kernel,) = region.plan.kernels
    asked: list[Schedule] = []
    monkeypatch.setattr(launch, "usage", lambda k: asked.append(k.schedule) or ResourceUsage(0, 8, 0, 0))
    monkeypatch.setattr(CppBackend, "is_missed", lambda *_: True)
    measured = replace(region, plan=replace(region.plan, tuned=(tuned_to(kernel),)))
    assert compiler._without_misses(measured, Options.read()) is measured
    assert asked == []
    compiler._without_misses(region, Options.read())
    assert asked == [kernel.schedule]


def test_a_measured_schedule_that_cannot_be_written_any_more_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    (region,) = compiled(norm, *inputs()).regions
    (kernel,) = region.plan.kernels
    changes = other_schedule(kernel)
    refusal = weft.Refusal("triton_wide_sums", "norm", "not any more", 1, 0)
    refused = lambda k, *_: refusal if k.schedule.rows_per_chunk == changes["rows_per_chunk"] else None  # noqa: E731
    monkeypatch.setattr(planning, "supports", refused)
    (again,) = compiled(norm, *inputs(), tuned=table(tuned_to(kernel, **changes))).regions
    assert again.plan == region.plan


# the table


def record_of(rows: int = 2048) -> Tuned:
    program = parse(
        f"""
program softmax()
  dim m = {rows}
  dim n = 64
  input x: f32 [m:64, n:1]
  row: f32{{m}} = sum[n](x)
  output out0: f32 [m:1] = row
end
""".strip()
    )
    found = plan_split(program, ("m",), ("n",), CPU, {})
    assert isinstance(found, Plan)
    return replace(tuned_to(found.kernels[0]), sizes={"p0": 3}, versions={"torch": torch.__version__})


def test_the_table_comes_back_as_it_was(options: Options) -> None:
    first, second = record_of(), record_of(4096)
    assert (tuning.load(options), tuning.digest(options)) == ({}, "")
    assert not Path(options.cache_dir).exists()
    assert tuning.save([first], options) is None
    alone = tuning.digest(options)
    assert tuning.save([second], options) is None
    assert tuning.load(options) == table(first, second)
    assert tuning.digest(options) != alone
    faster = replace(first, us=4.0)
    tuning.save([faster], options)
    assert tuning.load(options) == table(faster, second)
    off = replace(options, tuned=False)
    assert (tuning.load(off), tuning.digest(off)) == ({}, "")
    tuning.forget([second.key], options)
    assert tuning.load(options) == table(faster)
    tuning.forget(None, options)
    assert tuning.load(options) == {}


def test_a_damaged_table_is_empty_and_healed(options: Options) -> None:
    tuning.save([record_of()], options)
    store = Cache(options.cache_dir, options.cache_bytes)
    (entry,) = store.entries()
    assert (entry.kind, entry.name, entry.path.name.endswith(".tuning.json")) == ("tuning", "tuned_schedules", True)
    entry.path.write_bytes(b"[")
    assert [each.path for each in store.damaged()] == [entry.path]
    assert (tuning.load(options), tuning.digest(options)) == ({}, "")
    second = record_of(4096)
    assert tuning.save([second], options) is None
    assert tuning.load(options) == table(second)
    assert (len(store.entries()), store.damaged()) == (1, [])


@pytest.mark.parametrize("content", ["[]", '{"format": 1, "schedules": []}', '{"format": 2, "schedules": [{}]}', "{"])
def test_a_table_of_another_release_is_empty(content: str, options: Options, caplog: pytest.LogCaptureFixture) -> None:
    store = Cache(options.cache_dir, options.cache_bytes)
    store.change(tuning._KEY, "tuning", "tuned_schedules", lambda _: content.encode())
    tuning._read.cache_clear()
    assert tuning.load(options) == {}
    assert "the table of tuned schedules cannot be read, and none is used" in caplog.text
    assert tuning.digest(options) != ""


def test_the_table_is_not_evicted(options: Options) -> None:
    tuning.save([record_of()], options)
    store = Cache(options.cache_dir, 100)
    made = [store.get(f"{i}" * 32, "kernel", "k", lambda: bytes(90)) for i in range(3)]
    assert all(artefact.path is not None for artefact in made)
    assert [entry.kind for entry in store.entries()].count("tuning") == 1
    assert [entry.kind for entry in store.entries()].count("kernel") == 1


def test_a_folder_that_cannot_be_written_says_why(options: Options, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    there = replace(options, cache_dir=str(tmp_path / "file"))
    reason = tuning.save([record_of()], there)
    assert reason is not None
    assert "exists" in reason or "directory" in reason


def test_a_file_of_schedules_is_read_back() -> None:
    known = table(record_of(), record_of(4096))
    text = tuning.to_json(known)
    assert tuning.from_json(text) == known
    assert text.endswith("\n")
    assert json.loads(text)["format"] == tuning.FORMAT


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda d: d | {"format": 7}, "is of format 7; this release reads 2"),
        (lambda d: {"schedules": 3}, "has no list of schedules"),
        (lambda d: d["schedules"], "has no list of schedules"),
        (lambda d: _with(d, us="fast"), "schedule 1: us is 'fast'"),
        (lambda d: _with(d, us=True), "schedule 1: us is True"),
        (lambda d: _with(d, us=0.0), "schedule 1: times are 0.0 and 10.0 us"),
        (lambda d: _with(d, sizes={"p0": "many"}), "schedule 1: sizes is {'p0': 'many'}"),
        (
            lambda d: _with(d, kernel="schedule X"),
            "schedule 1: a program starts with 'program NAME(...)' and ends with 'end'",
        ),
        (
            lambda d: _with(d, kernel=d["schedules"][0]["kernel"].replace("v0", "x")),
            "schedule 1: its kernel is not under",
        ),
        (lambda d: _with(d, more=1), "schedule 1: is no object with kernel, target, device, untuned, us"),
        (lambda d: {**d, "schedules": [*d["schedules"], 5]}, "schedule 2: is no object with"),
    ],
)
def test_a_file_that_is_wrong_says_where(change: Callable[[Any], Any], message: str) -> None:
    data = json.loads(tuning.to_json(table(record_of())))
    with pytest.raises(ValueError, match=r"^[^\n]*$") as caught:
        tuning.from_json(json.dumps(change(data)))
    assert str(caught.value).startswith(message)


def _with(data: dict[str, Any], **changes: Any) -> dict[str, Any]:
    return {**data, "schedules": [{**data["schedules"][0], **changes}]}


# options, and what is compiled


@pytest.mark.parametrize(("given", "found"), [("1", True), ("0", False), ("", True), (None, True)])
def test_the_switch(given: str | None, found: bool) -> None:
    assert Options.read({}, {} if given is None else {"WEFT_TUNED": given}).tuned is found
    assert Options.read({"tuned": False}, {"WEFT_TUNED": "1"}).tuned is False


def test_a_switch_that_is_none() -> None:
    with pytest.raises(ValueError, match=r"^tuned schedules are used \(tuned, WEFT_TUNED\) or not, 1 or 0, not 'yes'$"):
        Options.read({}, {"WEFT_TUNED": "yes"})


def test_the_key_of_compiled_graphs_has_the_table_in_it(options: Options) -> None:
    before = WeftPass(options).uuid()
    off = WeftPass(replace(options, tuned=False)).uuid()
    assert before == WeftPass(options).uuid() == off  # there is no table yet
    tuning.save([record_of()], options)
    after = WeftPass(options).uuid()
    assert off != after == WeftPass(options).uuid()
    tuning.save([replace(record_of(), us=7.0)], options)
    assert WeftPass(options).uuid() != after
    assert WeftPass(replace(options, tuned=False)).uuid() == off


@pytest.mark.usefixtures("without_header")
def test_a_compile_runs_the_measured_schedule(options: Options) -> None:
    x, weight = inputs()
    (kernel,) = [k for g in weft.explain(norm, x, weight).graphs for k in g.compilation.kernels]
    record = tuned_to(kernel, **other_schedule(kernel))
    tuning.save([record], options)
    weft.clear_reports()
    result = weft.fuse(norm)(x, weight)
    torch.testing.assert_close(result, norm(x, weight))
    (report,) = weft.last_reports()
    (found,) = report.to_dict()["kernels"]
    wanted = replace(kernel, schedule=replace(kernel.schedule, **other_schedule(kernel)))
    assert found["schedule"] == str(wanted.schedule) != str(kernel.schedule)
    assert found["tuned"]["us"] == 8.0
    assert "  tuned: row_sum_rsqrt: measured 8.0 us, 10.0 us with the predicted schedule" in report.text().splitlines()
    digests = [digest_of(each) for each in (wanted, kernel)]
    assert [digest in launch._KERNELS for digest in digests] == [True, False]
    assert launch._KERNELS[digests[0]].function is not None
    text = str(weft.explain(norm, x, weight))
    assert "    tuned: row_sum_rsqrt: measured 8.0 us, 10.0 us with the predicted schedule" in text.splitlines()
    torch._dynamo.reset()
    weft.fuse(norm, tuned=False)(x, weight)
    assert weft.last_reports()[-1].to_dict()["kernels"][0]["schedule"] == str(kernel.schedule)


@pytest.mark.usefixtures("without_header")
def test_a_stored_schedule_that_is_none_is_said_and_does_no_harm(options: Options) -> None:
    x, weight = inputs()
    (kernel,) = [k for g in weft.explain(norm, x, weight).graphs for k in g.compilation.kernels]
    tuning.save([tuned_to(kernel, rows_per_tile=3)], options)
    text = str(weft.explain(norm, x, weight))
    assert "    not tuned: tuned_schedule: row_sum_rsqrt: the tuned schedule is none that" in text
    assert run_program(kernel.program, [x, weight], (), options)[0].shape == SIZE


def test_a_schedule_is_used_for_other_run_time_sizes_than_it_was_measured_at() -> None:
    program = parse(
        """
program total(s)
  dim m = s
  dim n = 64
  input x: f32 [m:64, n:1]
  row: f32{m} = sum[n](x)
  hat: f32{m, n} = mul(x, row)
  column: f32{n} = sum[m](hat)
  output out0: f32 [n:1] = column
end
""".strip()
    )
    found = plan_split(program, ("m",), ("n",), CPU, {"s": 4096})
    assert isinstance(found, Plan)
    (kernel,) = found.kernels
    record = replace(tuned_to(kernel, rows_per_tile=8, rows_per_chunk=128), sizes={"p0": 4096})
    few = plan_split(program, ("m",), ("n",), CPU, {"s": 16})
    assert isinstance(few, Plan)
    assert with_tuned(few, CPU, table(record)).tuned == (record,)
    elsewhere = replace(record, sizes={"p0": 16})
    assert isinstance(with_tuned(few, CPU, table(elsewhere)).tuned[0], weft.Refusal)
