"""C++ and Triton of every workload, and CUDA C++ of some, are golden texts: a change is seen, and a refactor is seen to
change none."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from tests.cases import NAMES, make_case, planned
from weft.backends.cuda import build
from weft.backends.listed import render
from weft.bench.workloads import WORKLOADS
from weft.plan.kernel import Plan
from weft.plan.planner import plan
from weft.target import Target

FOLDER = Path(__file__).parent / "golden"
ROWS, COLUMNS = 4096, 1024
GPU_ROWS, GPU_COLUMNS = 32768, 5120
TARGETS = {"cpp": "cpu", "py": "h200"}
FEW_ROWS = 100
OF_FEW_ROWS = ("layer_norm_backward", "modulated_layer_norm_backward")
"""Whose kernels for few rows are golden texts too: rows and columns apart."""
WIDE_ROWS = 1024
OF_WIDE_ROWS = {
    "rms_norm_backward": 65536,
    "layer_norm_backward": 50257,
    "modulated_layer_norm_backward": 32768,
    "softmax_forward": 50257,
    "layer_norm_forward": 131072,
    "add_rms_norm_backward": 32768,
}
"""Columns of those whose kernels for wide rows are, in CUDA C++; odd ones begin between vectors. In the last one tiles
come behind."""
OF_NARROW_ROWS = {"layer_norm_backward": (2**17, 521)}
"""Rows and columns of those of which groups of warps have rows of their own."""
OF_ODD_ROWS = {"layer_norm_forward": (1232, 54441)}
"""And of those whose weights are shifted for each row."""


@pytest.mark.only_triton
@pytest.mark.parametrize("kind", TARGETS)
@pytest.mark.parametrize("name", NAMES)
def test_source_is_the_golden_text(name: str, kind: str, update_golden: bool) -> None:
    text = rendered(name) if kind == "cpp" else rendered_for_gpu(name, GPU_ROWS)
    compare(name, FOLDER / f"{name}.{kind}", text, update_golden)


@pytest.mark.only_triton
@pytest.mark.parametrize("name", OF_FEW_ROWS)
def test_source_for_few_rows_is_the_golden_text(name: str, update_golden: bool) -> None:
    compare(name, FOLDER / f"{name}_few_rows.py", rendered_for_gpu(name, FEW_ROWS), update_golden)


@pytest.mark.skipif(build.missing() != "", reason=f"no plan has them: {build.missing()} is missing")
@pytest.mark.parametrize("name", OF_WIDE_ROWS)
def test_source_for_wide_rows_is_the_golden_text(name: str, update_golden: bool) -> None:
    text = rendered_for_gpu(name, WIDE_ROWS, OF_WIDE_ROWS[name])
    compare(name, FOLDER / f"{name}_wide.cu", text, update_golden)


@pytest.mark.skipif(build.missing() != "", reason=f"no plan has them: {build.missing()} is missing")
@pytest.mark.parametrize("name", OF_NARROW_ROWS)
def test_source_for_narrow_rows_is_the_golden_text(name: str, update_golden: bool) -> None:
    text = rendered_for_gpu(name, *OF_NARROW_ROWS[name])
    assert "constexpr int groups" in text
    compare(name, FOLDER / f"{name}_narrow.cu", text, update_golden)


@pytest.mark.skipif(build.missing() != "", reason=f"no plan has them: {build.missing()} is missing")
@pytest.mark.parametrize("name", OF_ODD_ROWS)
def test_source_for_odd_rows_is_the_golden_text(name: str, update_golden: bool) -> None:
    text = rendered_for_gpu(name, *OF_ODD_ROWS[name])
    assert "w::keep_weights<" in text
    compare(name, FOLDER / f"{name}_odd.cu", text, update_golden)


def compare(name: str, path: Path, text: str, update_golden: bool) -> None:
    if update_golden:
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    assert path.exists(), f"{path.name} is missing: run this test with --update-golden"
    assert text == path.read_text(), (
        f"weft makes something else of {name} than {path.name} has. If that is intended, run this test with "
        "--update-golden and look at the difference in git."
    )


def test_there_is_no_golden_file_without_a_workload() -> None:
    known = {f"{name}.{kind}" for name in NAMES for kind in TARGETS} | {f"{name}_few_rows.py" for name in OF_FEW_ROWS}
    known |= {f"{name}_wide.cu" for name in OF_WIDE_ROWS} | {f"{name}_narrow.cu" for name in OF_NARROW_ROWS}
    known |= {f"{name}_odd.cu" for name in OF_ODD_ROWS}
    assert {path.name for path in FOLDER.iterdir()} == known


def rendered(name: str) -> str:
    """Sources of the kernels of a workload in bfloat16, planned for a CPU: rows known at run time, 1024 columns."""
    inputs = WORKLOADS[name].make_inputs((64, COLUMNS), torch.bfloat16)
    program = make_case(name, inputs, dynamic_rows=True).program
    chosen = plan(program, Target.named("cpu"), dict.fromkeys(program.parameters, ROWS))
    assert isinstance(chosen, Plan), chosen
    return "\n".join(render(kernel).text for kernel in chosen.kernels)


def rendered_for_gpu(name: str, rows: int, columns: int = GPU_COLUMNS) -> str:
    """Of the kernels in bfloat16 of an H200, at sizes that are known: 5120 columns are two pieces."""
    with FakeTensorMode():
        inputs = WORKLOADS[name].make_inputs((rows, columns), torch.bfloat16)
    chosen = planned(make_case(name, inputs), "h200")
    return "\n".join(render(kernel).text for kernel in chosen.kernels)
