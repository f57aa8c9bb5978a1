"""The zoo: some of its models on a CPU, and what compares them."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.cases import often
from tests.zoo import __main__ as zoo
from tests.zoo import gradients, kernels, one, start, training
from tests.zoo.entries import ENTRIES, FIVE
from tests.zoo.exact import exact_gradients, gradients_of, grouped_mm
from tests.zoo.gradients import compare, excess_of
from tools.training import Run, comparison_of
from weft.backends.triton.schedule import TritonSchedule
from weft.ir.parser import parse
from weft.plan.kernel import Kernel

INSTALLED = all(find_spec(name) for name in zoo.LIBRARIES)
DTYPES = dict(zip(FIVE, ("bf16", "f32", "bf16", "f32", "bf16"), strict=True))


@pytest.mark.skipif(not INSTALLED, reason="the zoo's libraries are not installed: pip install weft[zoo]")
@pytest.mark.parametrize("name", often(FIVE, ("gpt2",)))
def test_gradients_of_a_model_are_right(name: str) -> None:
    found = one.run(ENTRIES[name], DTYPES[name], "cpu")
    assert found["wrong"] == []
    assert found["regions"] >= 10
    assert found["launches"] >= found["regions"]


@pytest.mark.slow
@pytest.mark.skipif(not INSTALLED, reason="the zoo's libraries are not installed: pip install weft[zoo]")
@pytest.mark.parametrize("check", ["f32", "bf16", "training"])
@pytest.mark.parametrize("name", ENTRIES)
def test_every_model_is_right(name: str, check: str) -> None:
    assert one.run(ENTRIES[name], check, "cpu")["wrong"] == []


class Small(nn.Module):
    """A norm in float32 whatever it is given, as models of transformers have it."""

    def __init__(self) -> None:
        super().__init__()
        self.scale, self.gain = nn.Parameter(torch.randn(64)), nn.Parameter(torch.tensor(1.5))

    def forward(self, x: Tensor) -> Tensor:
        wide = x.to(torch.float32)
        normed = wide * torch.rsqrt(wide.float().square().mean(-1, keepdim=True)) * self.scale
        return normed.cos().sum() * self.gain


def test_exact_gradients_are_in_float64_throughout() -> None:
    model, x = Small(), torch.randn(16, 64)
    loss, found = exact_gradients(model, [x])
    wide, scale = x.double(), model.scale.detach().requires_grad_()
    normed = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True)) * scale
    (normed.cos().sum() * model.gain.item()).backward()
    assert found["scale"].dtype == torch.float64
    assert isinstance(loss, float)
    torch.testing.assert_close(found["scale"], scale.grad, rtol=1e-13, atol=1e-13)
    assert torch.get_default_dtype() == torch.float32


def test_grouped_products_in_float64() -> None:
    tokens, weights = torch.randn(7, 4, dtype=torch.float64), torch.randn(3, 4, 5, dtype=torch.float64)
    found = grouped_mm(tokens, weights, offs=torch.tensor([2, 2, 7], dtype=torch.int32))
    torch.testing.assert_close(found, torch.cat([tokens[:2] @ weights[0], tokens[2:] @ weights[2]]))


def test_an_error_is_measured_by_those_of_eager_and_of_inductor() -> None:
    exact = torch.ones(1000, dtype=torch.float64)
    eager, mine = (exact + error for error in (1e-4, 2.1e-4))
    assert excess_of(mine, eager, None, exact, "f32") == pytest.approx(1.05, rel=1e-2)
    assert excess_of(mine, eager, exact + 3e-4, exact, "f32") < 1
    assert not excess_of(exact * float("nan"), eager, None, exact, "f32") <= 1
    assert excess_of(exact, exact, None, exact, "f32") == 0


def test_a_wrong_gradient_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The comparison of a model whose compiled form has a gradient one part in a thousand too large."""

    class Wrong(gradients.Differentiated):
        def __init__(self, model: nn.Module, dtype: str, device: str, backend: str = "eager", _: bool = False) -> None:
            super().__init__(model, dtype, device)
            self.factor = 1.001 if backend == "weft" else 1

        def __call__(self, batch: Sequence[Tensor]) -> dict[str, Tensor]:
            return {name: grad * self.factor for name, grad in super().__call__(batch).items()}

    monkeypatch.setattr(gradients, "Differentiated", Wrong)
    for further in ([], [[torch.randn(16, 64)] for _ in range(3)]):
        found = compare(Small, [torch.randn(16, 64)], "f32", "cpu", further=further)
        assert {text.partition(":")[0] for text in found.wrong} >= {"scale", "gain"}
        assert "weft launched no kernel" in found.wrong


def test_gradients_of_one_number_are_compared_over_several_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that eager has exactly by luck in the first of them, and as wrong as weft in the others."""

    class Lucky(gradients.Differentiated):
        def __init__(self, model: nn.Module, dtype: str, device: str, backend: str = "eager", _: bool = False) -> None:
            super().__init__(model, dtype, device)
            self.backend, self.calls = backend, 0

        def __call__(self, batch: Sequence[Tensor]) -> dict[str, Tensor]:
            found, self.calls = super().__call__(batch), self.calls + 1
            off = 1 + 1e-5 * (self.backend == "weft" or self.calls > 1)
            return found | {"gain": found["gain"] * off}

    monkeypatch.setattr(gradients, "Differentiated", Lucky)
    batches = [[torch.randn(16, 64)] for _ in range(4)]
    for count, is_wrong in ((1, True), (4, False)):
        found = compare(Small, batches[0], "f32", "cpu", further=batches[1:count])
        assert any(text.startswith("gain: ") for text in found.wrong) == is_wrong


def test_training_that_goes_wrong_is_told() -> None:
    runs = [Run("eager", [2.0, 1.0], [1.0]), Run("inductor", [2.0, 1.001], [1.0]), Run("weft", [2.0, 1.1], [1.0])]
    wrong = training.wrong_of(comparison_of(runs), ["weft: a region is left to Inductor", "something else"])
    assert wrong[0] == "weft: a region is left to Inductor"
    assert wrong[1].startswith("losses differ from eager's by 0.1")
    assert wrong[2:] == ["weft launched no kernel"]


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("nvjet_hsh_128x256_64x4_1x2_h_bz_coopA_TNT", "matmul"),
        ("sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n", "matmul"),
        ("void pytorch_flash::flash_bwd_dq_dk_dv_loop_seqk_parallel_kernel", "attention"),
        ("fmha_cutlassB_bf16_aligned_64x64_k64_sm80", "attention"),
        ("triton_red_fused__to_copy_convolution_backward_12", "other"),
        ("triton_tem_fused_mm_3", "matmul"),
        ("weft_row_sum_rsqrt", "other"),
        ("sm80_xmma_wgrad_implicit_gemm_indexed", "convolution"),
    ],
)
def test_kernels_are_told_apart_by_name(name: str, kind: str) -> None:
    assert training.kind_of(name) == kind


PRODUCTS = (
    "program {}()\n  dim m = 8\n  input x: f32 [m:1]\n  mul: f32{{m}} = mul(x, x)\n  output y: f32 [m:1] = mul\nend"
)


def kernel(name: str) -> Kernel:
    return Kernel(parse(PRODUCTS.format(name)), TritonSchedule("ONE_SHOT", ("m",), (), piece_columns=1))


def test_kernels_of_a_profile_are_paired_with_launches() -> None:
    launched = [kernel("a"), kernel("b"), kernel("a")]
    profile = [("weft_a", 1.0), ("mm", 7.0), ("weft_b", 2.0), ("weft_b_finish", 0.5), ("weft_a", 3.0)]
    own, rest = kernels.paired(profile, launched)
    assert [(k.name, us) for k, us in own] == [("a", 1.0), ("b", 2.5), ("a", 3.0)]
    assert rest == [("mm", 7.0)]
    assert kernels.paired(profile[1:], launched) == ([], profile[1:])


def test_launches_are_recorded_in_order() -> None:
    compiled = torch.compile(lambda x: torch.softmax(torch.softmax(x, -1) @ x, -1), backend="weft")
    x = torch.randn(1024, 1024)
    with one.everything_taken():
        compiled(x)
    found = kernels.launches_of(lambda: compiled(x))
    assert len(found) == 2
    assert all("exp" in kernel.name for kernel in found)
    torch.testing.assert_close(compiled(x), torch.softmax(torch.softmax(x, -1) @ x, -1))


def test_first_steps_are_compared() -> None:
    seconds = {"inductor": {"empty": 20.0, "full": 5.0}, "weft": {"empty": 22.0, "full": 4.0}}
    assert zoo.start_cells(seconds) == ["1.10", "0.80"]
    del seconds["weft"]["full"]  # it failed there
    assert zoo.start_cells(seconds) == ["1.10"]
    assert zoo.start_cells({}) == []


def test_races_that_were_lost_are_said() -> None:
    lost = {"subject": "row_sum", "have": 20.2, "limit": 19.7}
    found = {
        "m": {"race": {"won": 3, "lost": [lost, lost], "not_raced": [], "median_ms": {"weft": 8.0, "raced": 7.6}}},
        "n": {"race": {"wrong": ["died"]}},
    }
    said = ["m: 2 of 5 regions lost their race; steps take 0.950", "  2 x row_sum 20.2 us, TorchInductor's 19.7"]
    assert list(zoo.races_lost(found)) == said


@pytest.mark.slow
@pytest.mark.skipif(not INSTALLED, reason="the zoo's libraries are not installed: pip install weft[zoo]")
def test_regions_of_a_model_are_raced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEFT_CACHE_DIR", str(tmp_path / "weft"))
    found = one.run(ENTRIES["gpt2"], "race", "cpu")
    assert found["won"] + len(found["lost"]) >= 5
    assert set(found["median_ms"]) == {"weft", "raced"}


def test_what_takes_longer_than_predicted_is_said() -> None:
    as_predicted = kernels.Line("weft_a", 2, 20.0, 10.0, "program a").to_dict()
    slow = kernels.Line("weft_b", 2, 60.0, 10.0, "program b").to_dict()
    other = kernels.Line("triton_poi", 1, 9.0).to_dict()
    found = {"m": {"training": {"kernels": {"weft": [slow, as_predicted, other]}}}, "n": {"bf16": {}}}
    assert list(zoo.slower_than_predicted(found)) == ["m: weft_b 2 x 30.0 us, predicted 10.0: program b"]


def test_a_process_that_ends_is_said_and_the_others_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, ...]] = []

    def run(check: str, names: list[str]) -> Any:
        asked.append((check, *names))
        for name in names:
            if name == "bert":
                yield {"wrong": ["the process ended with 1"]}
                return
            yield {"wrong": []}

    found = {(name, check): result["wrong"] for name, check, result in zoo.results(
        ["llama", "bert", "vit"], ["f32", "training"], run, 1
    )}  # fmt: skip
    assert set(found) == {(name, check) for name in ("llama", "bert", "vit") for check in ("f32", "training")}
    assert [key for key, wrong in found.items() if wrong] == [("bert", "f32"), ("bert", "training")]
    assert asked[-2:] == [("training", "llama", "bert", "vit"), ("training", "vit")]


def test_steps_are_timed_in_further_processes_which_come_last() -> None:
    asked: list[str] = []

    def run(check: str, names: list[str]) -> Any:
        asked.append(check)
        yield from ({"wrong": []} for _ in names)

    checks = ["training", "f32", "compile"]
    found = [(name, check) for name, check, _ in zoo.results(["llama", "vit"], checks, run, 1, 2)]
    assert asked[-3:] == ["training", "steps", "steps"]
    assert asked[:-3] == ["f32", "f32", "compile", "compile"]
    assert found[4:] == [(name, check) for check in ("training", "steps 1", "steps 2") for name in ("llama", "vit")]


@pytest.mark.skipif(not INSTALLED, reason="the zoo's libraries are not installed: pip install weft[zoo]")
def test_a_step_of_each_backend_fills_the_caches(monkeypatch: pytest.MonkeyPatch) -> None:
    steps: list[str] = []
    monkeypatch.setattr(start.Trainee, "step", lambda trainee, number, batch: steps.append(trainee.run.backend))
    assert start.fill_caches("llama", "cpu") == {"wrong": []}
    assert steps == ["inductor", "weft"]


def test_a_ratio_of_steps_is_the_median_over_processes() -> None:
    runs = {"eager": {"median_ms": 9.0}, "inductor": {"median_ms": 4.0}, "weft": {"median_ms": 3.0}}
    more = [{"median_ms": {"inductor": 4.0, "weft": ms}} for ms in (1.0, 2.0)]
    comparison = {"runs": runs, "differences": {"weft": 0.1, "inductor": 0.1}}
    checked = {"training": {"comparison": comparison, "wrong": []}, "steps 1": more[0], "steps 2": more[1]}
    assert zoo.step_ratios(checked) == [0.75, 0.25, 0.5]
    assert zoo.step_ratios({"steps 1": {"wrong": ["the process ended with 1"]}, "f32": {}}) == []
    made = zoo.table({"m": checked}, ["m"])
    assert [*made.columns[7].cells] == ["0.500"]
    assert [*made.columns[6].cells] == ["3.00"]


def test_the_command_says_what_hangs(tmp_path: Path) -> None:
    runner = zoo.Runner("cpu", 1, tmp_path, patience_s=0.01)
    (found,) = runner("f32", ["llama"])
    # with 1; what is at work, as here, may change the frames while they are written, and ends with a signal then
    assert found["wrong"] in (["the process ended with 1"], ["the process ended with -11"])
    assert "most recent call first" in found["stderr"]


def test_a_process_that_ends_takes_what_it_started_along(tmp_path: Path) -> None:
    """Which would hold its output open, and be waited for."""
    script = "import subprocess; print('{}', flush=True); subprocess.Popen(['sleep', '600']); raise SystemExit(3)"
    runner = zoo.Runner("cpu", 1, tmp_path, patience_s=1)
    with TemporaryFile("w+") as errors, runner.started([sys.executable, "-c", script], errors) as process:
        start = time.monotonic()
        assert process.stdout is not None
        assert process.stdout.read() == "{}\n"
        assert time.monotonic() - start < 60
    assert process.returncode == 3


def test_a_table_has_what_is_wrong(capsys: pytest.CaptureFixture[str]) -> None:
    from rich.console import Console

    right = {"worst": {"excess": 0.5}, "wrong": []}
    found = {"llama": {"f32": right, "bf16": right | {"wrong": ["a parameter"]}}, "bert": {"f32": {"wrong": ["died"]}}}
    Console(width=200).print(zoo.table(found, ["llama", "bert", "vit"]))
    out = capsys.readouterr().out
    assert "0.50 WRONG" in out
    assert zoo.wrong_in(found["bert"]) == ["f32: died"]
    assert json.loads(json.dumps(found)) == found


def test_gradients_that_are_not_there_are_left_out() -> None:
    model = nn.Linear(2, 2)
    model.weight.grad = torch.ones(2, 2)
    assert list(gradients_of(model)) == ["weight"]
