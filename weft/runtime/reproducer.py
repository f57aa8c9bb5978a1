"""A script that shows a kernel going wrong: the printed kernel, its parameters and its inputs.

Inputs are stored beside the script as ``.npy`` files of their bytes if they are small; otherwise the script draws
random ones like them.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from weft.options import Options
from weft.plan.kernel import Kernel
from weft.runtime.trust import place_of

DATA_BYTES = 16 * 2**20
"""Inputs up to this size together are stored."""

_SCRIPT = '''"""Runs one of weft's kernels and compares its outputs with the reference; exits with 1 if they differ.

Written with torch {torch} because of this:
{reason}
"""

from pathlib import Path

import torch

from weft.ir.interpret import sizes_of
from weft.plan.kernel import parse_kernel
from weft.runtime.check import compare
from weft.runtime.executable import digest_of
from weft.runtime.launch import find
from weft.runtime.layout import allocate
from weft.runtime.reproducer import read

KERNEL = """{kernel}"""
PARAMETERS = {parameters}
INPUTS = [
{inputs}
]

kernel = parse_kernel(KERNEL)
sizes = sizes_of(kernel.program, PARAMETERS)
inputs = [read(Path(__file__).parent, description) for description in INPUTS]
outputs = [allocate(output.buffer, sizes, torch.device("{device}")) for output in kernel.program.outputs]
for output in outputs:
    output.fill_(float("nan") if output.is_floating_point() else 1)
find(digest_of(kernel), KERNEL)(inputs, outputs, PARAMETERS)
finding = compare(kernel.program, inputs, outputs, PARAMETERS)
print(finding or "the outputs agree with the reference")
raise SystemExit(finding is not None)
'''


def write(kernel: Kernel, digest: str, inputs: Sequence[Tensor], parameters: Sequence[int], reason: str) -> Path:
    """Path of a new script, in a folder beside the cache, or a temporary one if that cannot be written."""
    cache = place_of(Options.read().cache_dir)
    try:
        folder = cache.with_name(f"{cache.name}-reproducers") / f"{kernel.name}-{digest}"
        folder.mkdir(parents=True, exist_ok=True)
        return _write(folder, kernel, inputs, parameters, reason)
    except OSError:
        return _write(Path(tempfile.mkdtemp(prefix="weft-reproducer-")), kernel, inputs, parameters, reason)


def _write(folder: Path, kernel: Kernel, inputs: Sequence[Tensor], parameters: Sequence[int], reason: str) -> Path:
    store = sum(memory(t).numel() * t.itemsize for t in inputs) <= DATA_BYTES
    lines: list[str] = []
    for number, (buffer, tensor) in enumerate(zip(kernel.program.inputs, inputs, strict=True)):
        description = describe(tensor, number)
        if store:
            name = f"{buffer.name}.npy"
            np.save(folder / name, memory(tensor).cpu().view(torch.uint8).numpy(), allow_pickle=False)
            description = {**description, "file": name}
        lines.append(f"    {description!r},  # {buffer.name}")
    path = folder / "reproduce.py"
    text = _SCRIPT.format(
        torch=torch.__version__,
        reason=reason.replace('"""', "'''"),
        kernel=kernel,
        parameters=[int(p) for p in parameters],
        inputs="\n".join(lines),
        device=inputs[0].device if inputs else "cpu",
    )
    path.write_text(text)
    return path


def describe(tensor: Tensor, seed: int) -> dict[str, Any]:
    """Layout and statistics of a tensor, enough to draw one like it."""
    numbers = tensor.double()
    numbers = numbers[numbers.isfinite()]
    some = numbers.numel() > 0
    return {
        "dtype": str(tensor.dtype).removeprefix("torch."),
        "device": str(tensor.device),
        "shape": tuple(tensor.shape),
        "strides": tensor.stride(),
        "seed": seed,
        "mean": numbers.mean().item() if some else 0.0,
        "deviation": numbers.std(correction=0).item() if some else 0.0,
        "smallest": numbers.min().item() if some else 0.0,
        "largest": numbers.max().item() if some else 0.0,
    }


def read(folder: Path, description: dict[str, Any]) -> Tensor:
    """The tensor of a description: the stored one, or normal random numbers (integers: uniform) like it."""
    dtype = getattr(torch, description["dtype"])
    shape, strides = description["shape"], description["strides"]
    count = _extent(shape, strides)
    if "file" in description:
        memory = torch.from_numpy(np.load(folder / description["file"], allow_pickle=False)).view(dtype)
    else:
        generator = torch.Generator().manual_seed(description["seed"])
        if dtype.is_floating_point:
            memory = torch.randn(count, generator=generator, dtype=torch.float64)
            memory = memory * description["deviation"] + description["mean"]
        else:
            low, high = int(description["smallest"]), int(description["largest"])
            memory = torch.randint(low, high + 1, (count,), generator=generator)
        memory = memory.to(dtype)
    return memory.to(description["device"]).as_strided(shape, strides)


def memory(tensor: Tensor) -> Tensor:
    """The memory a tensor spans, as one dense axis."""
    return tensor.as_strided((_extent(tensor.shape, tensor.stride()),), (1,))


def _extent(shape: Sequence[int], strides: Sequence[int]) -> int:
    if 0 in shape:
        return 0
    return 1 + sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True))
