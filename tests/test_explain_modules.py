"""Explanations of models whose code is torch's or a library's: everything has a name that the user knows."""

from __future__ import annotations

import importlib.util
import json
import re
from math import prod
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode

import weft
from weft.explain.explanation import Explanation
from weft.explain.graphs import readable
from weft.explain.html import page

LIBRARY = """
from torch import nn

class Norm(nn.LayerNorm):
    def forward(self, x):
        return x.softmax(-1) * self.weight

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.ModuleDict({"norm": Norm(64), "linear": nn.Linear(64, 64)}) for _ in range(4))

    def forward(self, x):
        for layer in self.layers:
            x = layer["linear"](layer["norm"](x))
        return x
"""


@pytest.fixture(scope="module")
def encoder() -> Explanation:
    layer = nn.TransformerEncoderLayer(512, 8, dim_feedforward=1024, batch_first=True)
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        return weft.explain(layer, mode.from_tensor(torch.randn(8, 256, 512)), target="cpu")


def table(found: Explanation) -> list[str]:
    lines = found.text().splitlines()
    return lines[2 : lines.index("forward:") - 1]


def test_every_region_of_a_module_of_torch_names_modules(encoder: Explanation) -> None:
    modules = {name for name, _ in nn.TransformerEncoderLayer(8, 2).named_modules()} | {"TransformerEncoderLayer"}
    regions = json.loads(encoder.to_json())["regions"]
    assert len(regions) == 8
    for region in regions:
        assert region["lines"]
        assert {name for line in region["lines"] for name in line.split(", ")} <= modules
    assert sum(line.startswith("    from ") for line in encoder.text().splitlines()) == len(regions)


def test_a_gradient_has_the_name_and_the_size_of_its_parameter(encoder: Explanation) -> None:
    layer = nn.TransformerEncoderLayer(512, 8, dim_feedforward=1024)
    sizes = {f"{name} gradient": parameter.numel() for name, parameter in layer.named_parameters()}
    outputs = [output for kernel in json.loads(encoder.to_json())["kernels"] for output in kernel["outputs"]]
    found = {output["source"]: prod(output["shape"]) for output in outputs if output["source"]}
    assert found == {name: size for name, size in sizes.items() if "bias" in name or "norm" in name}


def test_kernels_of_one_name_are_told_apart(encoder: Explanation) -> None:
    kernels = json.loads(encoder.to_json())["kernels"]
    sums = [kernel["purpose"] for kernel in kernels if kernel["name"] == "column_sum"]
    assert sums == ["linear1.bias gradient", "self_attn.in_proj_bias gradient"]
    assert "norm2.weight, norm2.bias, linear2.bias gradients" in [kernel["purpose"] for kernel in kernels]
    assert [kernel["purpose"] for kernel in kernels if kernel["graph"] == 0] == ["self_attn", "norm1", "norm2"]
    heading, _, *rows = table(encoder)
    assert " for " in heading
    assert len({tuple(row.split()[1:3]) for row in rows}) == len(rows)
    assert "linear1.bias gradient</td>" in page(encoder).replace("<wbr>", "")


def test_inputs_of_a_module_of_torch_have_the_names_of_its_parameters(encoder: Explanation) -> None:
    assert "      reads src, norm1.weight, norm1.bias, " in encoder.text()
    assert "args" not in encoder.text()


def test_the_summary_says_whose_bytes_and_times_these_are(encoder: Explanation) -> None:
    kernels = json.loads(encoder.to_json())
    decided = [d for d in kernels["decisions"] if d["taken"]]
    moved = sum(k["bytes_read"] + k["bytes_written"] for k in kernels["kernels"]) / 1e6
    assert encoder.summary() == (
        f"TransformerEncoderLayer on cpu: 8 regions in 8 kernels of weft's, which move {moved:.0f} MB: "
        f"{sum(d['together_us'] for d in decided):.0f} us predicted, "
        f"{sum(d['apart_us'] for d in decided):.0f} us left to Inductor"
    )


def test_every_verdict_says_what_leaving_it_to_inductor_takes(encoder: Explanation) -> None:
    decided = [d for d in json.loads(encoder.to_json())["decisions"] if d["taken"]]
    verdicts = [line for line in encoder.text().splitlines() if line.startswith("    taken: ")]
    assert len(verdicts) == len(decided) == 8
    for line, decision in zip(verdicts, decided, strict=True):
        times = f"{decision['together_us']:.1f} us predicted, {decision['apart_us']:.1f} us left to Inductor, "
        apart = (
            "with rows and columns in kernels of their own" if len(decision["apart"]) > 1 else "in an ordinary kernel"
        )
        assert line == f"    taken: {times}{apart}"


def test_a_region_that_is_left_out_says_where_it_is_and_both_times() -> None:
    class Summed(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.sum(-1)

    model = nn.Sequential(Summed())
    text = weft.explain(model, torch.randn(64, 64), target="h200").text()
    (at,) = (i for i, line in enumerate(text.splitlines()) if "not_worthwhile" in line)
    verdict, place = text.splitlines()[at : at + 2]
    assert re.search(r"; [\d.]+ us predicted, [\d.]+ us left to Inductor$", verdict)
    assert re.fullmatch(r"    from Sequential.0 \(test_explain_modules.py:\d+: return x.sum\(-1\)\)", place)


def test_reasons_with_other_figures_are_other_lines() -> None:
    def sums(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return x.sum(-1), y.sum(-1)

    found = weft.explain(sums, torch.randn(64, 64), torch.randn(2048, 2048), target="h200")
    figures = {refusal["have"] for refusal in json.loads(found.to_json())["refusals"]}
    assert sum("not_worthwhile" in line for line in found.text().splitlines()) == len(figures) == 2


def test_modules_of_an_installed_library_come_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "lib" / "site-packages" / "library" / "modeling.py"
    path.parent.mkdir(parents=True)
    path.write_text(LIBRARY)
    spec = importlib.util.spec_from_file_location("modeling", path)
    assert spec is not None
    assert spec.loader is not None
    library: Any = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(library)
    found = weft.explain(library.Model(), torch.randn(4096, 64, requires_grad=True), target="cpu")
    lines = found.text().splitlines()
    assert "    from layers.0.norm (modeling.py:6: return x.softmax(-1) * self.weight)" in lines
    assert "    from layers.1-3.norm (modeling.py:6: return x.softmax(-1) * self.weight)" in lines
    assert "      reads layers.1-3.norm.weight, addmm" in lines
    assert "      writes layers.1-3.norm.weight gradient, out1, layers.0-2.linear.bias gradient" in lines
    assert any(" layers.1-3.norm.weight, layers.0-2.linear.bias gradients " in line for line in table(found))


def test_what_is_in_no_module_is_named_by_its_line() -> None:
    def twice(x: Tensor) -> Tensor:
        return torch.softmax(x, -1)

    (kernel,) = json.loads(weft.explain(twice, torch.randn(4096, 64), target="cpu").to_json())["kernels"]
    assert re.fullmatch(r"test_explain_modules\.py:\d+", kernel["purpose"])


@pytest.mark.parametrize(
    ("source", "name"),
    [
        ("L['args'][0]", "src"),
        ("L['args'][2]", "more.0"),
        ("L['args'][3][1]", "more.1.1"),
        ("L['kwargs']['flag']", "flag"),
        ("L['fn']._modules['norm']._parameters['weight']", "norm.weight"),
    ],
)
def test_positions_have_the_names_of_parameters(source: str, name: str) -> None:
    class Called(nn.Module):
        def forward(self, src: Tensor, mask: Tensor, *more: Tensor, flag: bool = False) -> Tensor:
            raise NotImplementedError

    assert readable(source, Called()) == name
    assert readable(source, Called().forward) == name


def test_a_parameter_may_be_called_args() -> None:
    def call(args: tuple[Tensor, Tensor], kwargs: dict[str, Tensor]) -> None:
        raise NotImplementedError

    assert readable("L['args'][1]", call) == "args.1"
    assert readable("L['kwargs']['x']", call) == "kwargs.x"
    assert readable("L['args'][0]", torch.sin) == "args.0"
