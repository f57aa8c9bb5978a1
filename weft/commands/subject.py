"""What a command is about: a workload, a model, or a function of the user's own file, with inputs to call it with."""

from __future__ import annotations

import importlib.util
import os
import re
import sys
from collections.abc import Callable, Generator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any, Literal

import torch
import typer
from torch._subclasses.fake_tensor import FakeTensorMode

from weft.bench.models import DEFAULT_SHAPES, MODELS
from weft.bench.workloads import WORKLOADS
from weft.errors import BuildError, CallError
from weft.explain.calls import line_of
from weft.explain.inputs import make_tensor
from weft.ir.dtypes import TORCH_DTYPES
from weft.options import Options
from weft.runtime import calibration
from weft.target import TARGETS, Target

Shape = tuple[int, int]
FLOAT_DTYPES = ("f64", "f32", "bf16", "f16")
_SHAPE = re.compile(r"([1-9]\d*|0)x([1-9]\d*|0)")
FILE = re.compile(r"(.+\.py):(\w+)")

Name = Annotated[str, typer.Argument(metavar="WORKLOAD|FILE.py:FUNCTION", help="What it is about.", show_default=False)]
Types = Annotated[
    list[str] | None,
    typer.Argument(metavar="[TYPE]...", help="Of a FUNCTION's inputs, as in 'bf16[8192,4096]'.", show_default=False),
]
ShapeOption = Annotated[
    str | None,
    typer.Option("--shape", help="Rows and columns of a workload, batch and sequence of a model: 8192x4096."),
]
DtypeOption = Annotated[str, typer.Option("--dtype", help=f"Of a workload or model: {', '.join(FLOAT_DTYPES)}.")]
TargetOption = Annotated[str, typer.Option("--target", help=f"The machine: {', '.join(TARGETS)} or current.")]
GradOption = Annotated[bool, typer.Option("--grad", help="A FUNCTION's floating-point inputs need gradients.")]
DeviceOption = Annotated[str | None, typer.Option("--device", help="cpu or cuda; by default the GPU if there is one.")]


@dataclass(frozen=True)
class Subject:
    """function, inputs: what to call, and with what. kind: a workload and a model get their inputs from weft, and a
    model runs under autocast to ``dtype``; both are called in ``scope``, where tensors on a CPU hold no data."""

    name: str
    kind: Literal["workload", "model", "function"]
    function: Callable[..., Any]
    inputs: tuple[Any, ...]
    dtype: torch.dtype
    fake: FakeTensorMode | None = None
    device: str = "cpu"

    @contextmanager
    def scope(self) -> Generator[None]:
        """Where to call it."""
        with ExitStack() as stack:
            if self.fake is not None:
                stack.enter_context(self.fake)
            if self.kind == "model" and self.dtype in (torch.bfloat16, torch.float16):
                stack.enter_context(torch.autocast(self.device, self.dtype))
            yield


def resolve(
    name: str,
    types: Sequence[str] = (),
    shape: str | None = None,
    dtype: str = "bf16",
    grad: bool = False,
    device: str = "cpu",
) -> Subject:
    """The subject of a command line, with its tensors on a device. Raises typer.BadParameter, in one line with the way
    out, for anything wrong."""
    if match := FILE.fullmatch(name):
        if shape is not None:
            raise typer.BadParameter(
                "--shape is for workloads; a function's inputs are written as TYPEs: 'bf16[8192,4096]'"
            )
        return _of_file(Path(match[1]), match[2], types, grad, device)
    if name not in WORKLOADS and name not in MODELS:
        raise typer.BadParameter(_unknown(name))
    if types:
        raise typer.BadParameter(f"TYPEs are for functions of a file; a workload takes --shape (got {' '.join(types)})")
    if dtype not in FLOAT_DTYPES:
        raise typer.BadParameter(f"unknown dtype {dtype!r}; one of {', '.join(FLOAT_DTYPES)}")
    size = None if shape is None else parse_shape(shape)
    if name in WORKLOADS:
        return _workload(name, size, TORCH_DTYPES[dtype], device)
    return _model(name, size, TORCH_DTYPES[dtype], device)


def _unknown(name: str) -> str:
    """What may have been meant."""
    if ":" in name or name.endswith(".py"):
        return f"a function of a file is written FILE.py:FUNCTION, not {name!r}"
    if "[" in name:
        return f"the TYPE {name} is not behind a function; a workload or model takes --shape or --shapes instead"
    known = [*WORKLOADS, *MODELS]
    lower = name.lower()
    near = [each for each in known if each.startswith(f"{lower}_")] or get_close_matches(lower, known, n=1)
    hint = f"did you mean {' or '.join(near)}?" if near else f"known are {', '.join(known)}"
    return f"no workload {name!r}, and not FILE.py:FUNCTION; {hint}"


def failing(subject: Subject, error: Exception) -> typer.BadParameter:
    """What is said when the user's function fails, in one line."""
    if isinstance(error, CallError):
        return typer.BadParameter(str(error))
    line = " ".join(str(error).split("\n\n")[0].split())
    return typer.BadParameter(f"{subject.name} fails on these inputs: {type(error).__name__}: {line}")


def parse_shape(text: str) -> Shape:
    """``8192x4096``."""
    match = _SHAPE.fullmatch(text)
    if match is None:
        raise typer.BadParameter(f"a shape is written 8192x4096, not {text!r}")
    return int(match[1]), int(match[2])


def parse_target(text: str) -> Target:
    """A target by name, or the machine at hand."""
    options = Options.read()
    try:
        if text != "current":
            return Target.named(text)
        return calibration.at_hand(torch.device("cuda" if torch.cuda.is_available() else "cpu"), options)
    except (ValueError, BuildError) as error:
        raise typer.BadParameter(str(error)) from None


def choose_device(text: str | None) -> str:
    """``cpu`` or ``cuda``; by default the GPU if there is one."""
    known = ("cpu", "cuda")
    if text is None:
        return "cuda" if torch.cuda.is_available() else "cpu"
    if text not in known:
        raise typer.BadParameter(f"no device {text!r}; one of {', '.join(known)}")
    if text == "cuda" and not torch.cuda.is_available():
        raise typer.BadParameter("--device cuda: torch sees no GPU here; use --device cpu")
    return text


def split_list(text: str, option: str) -> list[str]:
    """The entries of a list with commas, at least one."""
    found = [entry.strip() for entry in text.split(",") if entry.strip()]
    if not found:
        raise typer.BadParameter(f"{option} is empty")
    return found


def check_file(path: Path | None, option: str, suffix: str = "") -> None:
    """Whether it can be written, before minutes are spent on what belongs in it."""
    if path is None:
        return
    if suffix and path.suffix.lower() != suffix:
        raise typer.BadParameter(f"{option}: {path} does not end in {suffix}")
    if path.is_dir() or not path.parent.is_dir() or not os.access(path if path.exists() else path.parent, os.W_OK):
        raise typer.BadParameter(f"{option}: {path} cannot be written")


def _workload(name: str, shape: Shape | None, dtype: torch.dtype, device: str) -> Subject:
    workload, mode = WORKLOADS[name], _without_data(device)
    try:
        with mode or nullcontext():
            inputs = workload.make_inputs(shape or workload.default_shape, dtype, device)
    except ValueError as error:
        raise typer.BadParameter(f"{name}: {error}") from None
    return Subject(name, "workload", workload.fn, tuple(inputs), dtype, mode, device)


def _model(name: str, shape: Shape | None, dtype: torch.dtype, device: str) -> Subject:
    if dtype == torch.float64:
        raise typer.BadParameter(f"{name} is a model: its dtype is that of autocast (bf16, f16) or f32 without")
    mode = _without_data(device)
    with mode or nullcontext():
        model = MODELS[name]()
    try:
        batch = model.make_batch(*(shape or DEFAULT_SHAPES[name]), seed=0)
    except (ValueError, RuntimeError) as error:
        raise typer.BadParameter(f"{name}: {error}") from None
    if mode is None:
        return Subject(name, "model", model.to(device), tuple(t.to(device) for t in batch), dtype, None, device)
    return Subject(name, "model", model, tuple(mode.from_tensor(t) for t in batch), dtype, mode)


def _without_data(device: str) -> FakeTensorMode | None:
    """Tensors on a CPU hold no data where nothing is computed; a GPU's memory is large enough to hold it."""
    return FakeTensorMode() if device == "cpu" else None


def _of_file(path: Path, name: str, types: Sequence[str], grad: bool, device: str) -> Subject:
    try:
        made = [make_tensor(text, device, grad) for text in types]
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None
    module = _load(path)
    found = getattr(module, name, None)
    if found is None:
        names = [n for n, v in vars(module).items() if callable(v) and getattr(v, "__module__", "") == module.__name__]
        raise typer.BadParameter(f"{path} has no {name!r}; it has {', '.join(names) or 'no functions'}")
    if isinstance(found, type) and issubclass(found, torch.nn.Module):
        try:
            found = found()
        except Exception as error:
            message = f"{name} cannot be made without arguments: {error}; name a function or an instance instead"
            raise typer.BadParameter(message) from None
    if not callable(found):
        raise typer.BadParameter(f"{name} in {path} is {type(found).__name__}, not a function or a module of torch")
    if isinstance(found, torch.nn.Module):
        found = found.to(device)
    return Subject(name, "function", found, tuple(made), torch.bfloat16, device=device)


def _load(path: Path) -> ModuleType:
    """The user's file as a module, with its folder on the path as if it were run."""
    if not path.is_file():
        raise typer.BadParameter(f"no file {path}")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.path.insert(0, str(path.resolve().parent))
    sys.modules.setdefault(path.stem, module)
    try:
        spec.loader.exec_module(module)
    except SystemExit as error:
        guard = 'put what runs, rather than defines, under `if __name__ == "__main__":`'
        raise typer.BadParameter(f"{path} cannot be imported: it exits with {error.code}; {guard}") from None
    except Exception as error:
        where = f" at {path.name}:{error.lineno}" if isinstance(error, SyntaxError) else line_of(error)
        said = error.msg if isinstance(error, SyntaxError) else error
        raise typer.BadParameter(f"{path} cannot be imported: {type(error).__name__}: {said}{where}") from None
    return module
