"""Which backend writes a kernel, and what is said where there is none."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from tests.run_program import run_program
from tests.triton_by_hand import PROGRAM, SEPARATE, SOURCE, render_by_hand
from weft import compiler, planning
from weft.backends import backend
from weft.backends.cpp.backend import CppBackend
from weft.backends.listed import device_of, devices, render, supports
from weft.bench.workloads import WORKLOADS
from weft.capture.trace import trace
from weft.compiler import compile_graph
from weft.errors import Refusal, RefusedError
from weft.integration.backend import supports_cuda
from weft.machines import check_device, target_of
from weft.plan.kernel import Kernel, Plan
from weft.plan.planner import plan, plan_split
from weft.target import Target

H200 = Target.named("h200")
CUDA = torch.device("cuda", 0)


def there(patch: pytest.MonkeyPatch, *names: str) -> None:
    """Let these be all packages that can be found."""
    patch.setattr(backend, "find_spec", lambda name: object() if name in names else None)


def as_triton(planned: Plan | Refusal) -> Plan:
    """The same plan with the schedule of ``SEPARATE``."""
    assert isinstance(planned, Plan)
    return replace(planned, kernels=tuple(replace(k, schedule=SEPARATE.schedule) for k in planned.kernels))


def mixed(x: Tensor) -> tuple[Tensor, Tensor]:
    scaled = x * x.sum(1, keepdim=True)
    return scaled, scaled.sum(0)


def test_a_kernel_is_written_by_the_backend_of_its_schedule(monkeypatch: pytest.MonkeyPatch) -> None:
    render_by_hand(monkeypatch)
    on_cpu = plan_split(PROGRAM, ("m",), ("n",), Target.named("cpu"), {"s0": 64})
    assert isinstance(on_cpu, Plan)
    (kernel,) = on_cpu.kernels
    assert [device_of(k) for k in (kernel, SEPARATE)] == ["cpu", "cuda"]
    assert [render(k).language for k in (kernel, SEPARATE)] == ["cpp", "triton"]
    assert supports(kernel) is supports(SEPARATE) is None


@pytest.mark.parametrize(
    ("found", "expected"),
    [((), ("cpu",)), (("triton",), ("cpu", "cuda"))],
)
def test_gpus_need_triton(found: tuple[str, ...], expected: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    there(monkeypatch, *found)
    assert devices() == expected
    assert supports_cuda() is ("cuda" in expected)


# the machine


def test_without_triton_a_gpu_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    there(monkeypatch)
    assert str(target_of(CUDA, "norm")) == (
        "no_backend: norm: triton, which kernels for cuda need, is not installed (have cuda, needs cpu)"
    )
    assert target_of(torch.device("cpu"), "norm") == Target.current()


# the plan


@pytest.mark.parametrize(("target", "regions"), [("a100", 0), ("rtx3090", 0), ("l40s", 1), ("b200", 1)])
def test_older_gpus_have_no_floats_of_eight_bits_with_four_of_mantissa(target: str, regions: int) -> None:
    workload = WORKLOADS["rms_norm_fp8"]
    graph = trace(workload.fn, workload.make_inputs((4096, 1024), torch.bfloat16)).graph
    found = compile_graph(graph, target=Target.named(target))
    assert len(found.regions) == regions
    said = [str(refusal) for refusal in found.refusals if refusal.rule == "triton_dtype"]
    assert all("Triton has no f8e4m3 for compute capability 8." in text for text in said)
    assert len(said) == 1 - regions


def test_kernels_for_another_device_than_the_machine_are_refused() -> None:
    on_cpu = plan(PROGRAM, Target.named("cpu"), {"s0": 4096})
    assert isinstance(on_cpu, Plan)
    assert check_device(on_cpu, Target.named("cpu")) is None
    assert check_device(as_triton(on_cpu), H200) is None
    assert str(check_device(on_cpu, H200)).startswith("no_backend: p: no backend for cuda (have cuda, needs cpu")
    assert str(check_device(as_triton(on_cpu), Target.named("cpu"))).startswith("no_backend: p: no backend for cpu")


def test_a_plan_for_a_gpu_has_sources_if_its_schedules_are_tritons(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = trace(mixed, [torch.randn(4096, 64).bfloat16()]).graph
    render_by_hand(monkeypatch)
    monkeypatch.setattr(planning, "plan", lambda *given: as_triton(plan(*given)))
    monkeypatch.setattr(compiler, "verify_plan", lambda *_: None)
    (written,) = compile_graph(graph, target=H200).regions
    assert written.sources == (SOURCE,)


def test_what_the_backend_cannot_write_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: CppBackend, kernel: Kernel, target: Target | None = None) -> Refusal:
        return Refusal("unsupported_op", kernel.name, "not on a GPU")

    graph = trace(mixed, [torch.randn(4096, 64)]).graph
    monkeypatch.setattr(CppBackend, "supports", refuse)
    found = compile_graph(graph)
    assert not found.regions
    assert [(r.rule, r.message) for r in found.refusals] == [("unsupported_op", "not on a GPU")]


def test_a_program_that_nothing_can_run_is_refused() -> None:
    with pytest.raises(RefusedError, match="no_backend: p: no backend for meta"):
        run_program(PROGRAM, [torch.empty(8, 64, dtype=torch.bfloat16, device="meta")], [8])
