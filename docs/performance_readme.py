"""Tables of README.md on GPUs, from the files in benchmarks/results."""

from __future__ import annotations

import re
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tests.zoo.__main__ import step_ratios

BEGIN, END = "<!-- begin of {}, by docs/performance.py -->", "<!-- end -->"
MODELS = {
    "llama": ("Llama, 4 layers of 2048", "8 x 2048"),
    "qwen3": ("Qwen 3, 4 of 2048", "8 x 2048"),
    "gemma2": ("Gemma 2, 4 of 2048", "8 x 2048"),
    "olmo2": ("OLMo 2, 4 of 2048", "8 x 2048"),
    "gpt2": ("GPT-2, 6 of 768", "8 x 1024"),
    "mamba": ("Mamba, 2 of 768", "32 x 32"),
    "bert": ("BERT, 4 of 768", "8 x 1024"),
    "t5": ("T5, 4 + 4 of 512", "32 x 512"),
    "vit": ("ViT-B/16", "128 x 224²"),
    "dinov2": ("DINOv2 ViT-S/14", "16 x 518²"),
    "convnext": ("ConvNeXt-T", "64 x 224²"),
    "dit_batch_1": ("DiT, 4 of 768", "1 x 64²"),
}
"""Those of the zoo that are shown, with what they are called and their batch."""
NORMS = ("rms_norm", "layer_norm", "add_rms_norm", "softmax")
KERNELS = {
    "forwards: `rms_norm`, `layer_norm`, `add_rms_norm`, `softmax`": (*(f"{name}_forward" for name in NORMS),),
    "backwards of the same": (*(f"{name}_backward" for name in NORMS),),
    "backward of a layer norm with the bias gradient of the linear layer before it": ("layer_norm_backward_bias",),
    "backward of a modulated layer norm": ("modulated_layer_norm_backward",),
}
WIDEST = {"forward": 16384, "backward": 8192}
"""Columns of the cells of a direction."""
PEERS = {"inductor": "times as fast as TorchInductor", "liger": "as Liger 0.8.5", "quack": "as Quack 0.6.5"}
Figures = Mapping[str, Any]


def models_table(found: Mapping[str, Figures]) -> str:
    """A line a model: weft's figures, and TorchInductor's in brackets. found: checks of the zoo, by model."""
    headings = ("", "batch", "step, ms", "over TorchInductor's", "outside matmul, attention, optimizer, ms", "GB")
    lines = [row(headings), "|---" * len(headings) + "|"]
    for name, (title, batch) in MODELS.items():
        trained = found[name]["training"]
        runs, device = trained["comparison"]["runs"], trained["device_us"]
        ratio = f"{statistics.median(step_ratios(dict(found[name]))):.2f}"
        cells = (
            pair(lambda b, runs=runs: runs[b]["median_ms"]),
            ratio,
            pair(lambda b, device=device: device[b]["other"] / 1e3),
            pair(lambda b, runs=runs: runs[b]["peak_bytes"] / 1e9),
        )
        lines.append(row((title, batch, *cells)))
    return "\n".join(lines)


def pair(figure: Callable[[str], float]) -> str:
    """Of weft, and of TorchInductor."""
    return f"{figure('weft'):.1f} ({figure('inductor'):.1f})"


def kernels_table(cells: Sequence[Figures], training: Mapping[str, Figures]) -> str:
    """A line a group of workloads. cells: of 2^26 elements; training: of two small transformers."""
    headings = ("", "fraction of copy, least", "mean", *PEERS.values())
    lines = [row(headings), "|---" * len(headings) + "|"]
    for title, workloads in KERNELS.items():
        most = WIDEST["backward" if "_backward" in workloads[0] else "forward"]
        own = [c["us"] for c in cells if c["workload"] in workloads and c["us"] and c["columns"] <= most]
        copied = [us["copy"] / us["weft"] for us in own]
        peers = [[us[peer] / us["weft"] for us in own if peer in us] for peer in PEERS]
        means = [f"{statistics.geometric_mean(each):.2f}" if each else "" for each in (copied, *peers)]
        lines.append(row((title, f"{min(copied):.2f}", *means)))
    runs = (model["runs"] for model in training.values())
    steps = ", ".join(f"{each['inductor']['median_ms'] / each['weft']['median_ms']:.2f}" for each in runs)
    lines.append(row(("a training step of two small transformers", "", "", steps, "", "")))
    return "\n".join(lines)


def row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |".replace("|  |", "| |").replace("|  |", "| |")


def with_tables(page: str, tables: Mapping[str, str]) -> str:
    """A page with each table between its marks. Raises ValueError if there are none."""
    for name, table in tables.items():
        begin = BEGIN.format(name)
        page, count = re.subn(
            f"{re.escape(begin)}\n.*?{END}", lambda _, b=begin, t=table: f"{b}\n\n{t}\n\n{END}", page, flags=re.DOTALL
        )
        if count != 1:
            raise ValueError(f"{count} places for {name}")
    return page


def range_of_steps(found: Mapping[str, Figures], without: Sequence[str] = ("mamba",)) -> str:
    """Of all models, weft's time over TorchInductor's. without: a step that waits for the host."""
    ratios = [
        statistics.median(step_ratios(dict(c))) for name, c in found.items() if name not in without and "training" in c
    ]
    return f"{min(ratios):.2f} to {max(ratios):.2f}"
