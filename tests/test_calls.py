"""What a function is explained with: tensors, their types as text and numbers; and one clear error for what fails."""

from __future__ import annotations

import runpy
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode

import weft
from weft.errors import CallError, WeftError
from weft.explain.calls import call
from weft.explain.inputs import LARGEST_BYTES, make_tensor, with_tensors


def scaled(x: Tensor, k: float) -> Tensor:
    return x.softmax(-1) * k


def block(x: Tensor, weight: Tensor, eps: float = 1e-5) -> Tensor:
    return F.rms_norm(x * 2, (16,), weight, eps)


def broken(x: Tensor) -> Tensor:
    total = x.sum(-1)
    raise ValueError(f"no good:\n{total.dim()} dimension")


class Norm(nn.Module):
    def forward(self, x: Tensor, weight: Tensor) -> Tensor:
        return block(x, weight)


def explained(function: Callable[..., Any], *inputs: Any, **keywords: Any) -> weft.Explanation:
    return weft.explain(function, *inputs, target="cpu", **keywords)


def figures(found: weft.Explanation) -> list[int]:
    return [kernel["bytes_read"] for kernel in found.to_dict()["kernels"]]


# types as text


def test_a_type_stands_for_a_tensor() -> None:
    found = explained(block, "bf16[8,16]", "bf16[16]")
    assert figures(found) == figures(explained(block, torch.randn(8, 16).bfloat16(), torch.ones(16).bfloat16()))
    assert figures(found) == [2 * (8 * 16 + 16)]
    assert figures(explained(block, "bf16[ 8, 16 ]", weight="bf16[16]")) == figures(found)


def test_a_type_stands_beside_tensors_and_costs_nothing_among_fake_ones() -> None:
    with FakeTensorMode():
        found = explained(block, torch.empty(4096, 16), "f32[16]")
    assert figures(found) == [4 * (4096 * 16 + 16)]
    (made,), keywords = with_tensors([make_tensor("i64[3]", "meta")], {"mask": "bool[2,3]", "mode": "mean"})
    assert (made.dtype, made.device.type) == (torch.int64, "meta")
    assert (keywords["mask"].dtype, keywords["mask"].device.type, keywords["mode"]) == (torch.bool, "meta", "mean")


def test_a_text_that_is_no_type_stays_a_text() -> None:
    def chosen(x: Tensor, how: str) -> Tensor:
        return x.softmax(-1) if how == "soft" else x

    assert len(figures(explained(chosen, "f32[8,16]", "soft"))) == 1
    assert figures(explained(chosen, "f32[8,16]", "hard")) == []


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("bf17[8,16]", r"^unknown dtype 'bf17' in 'bf17\[8,16\]'; one of f64, f32"),
        ("f32[99999,99999]", rf"^f32\[99999,99999\] is more than {LARGEST_BYTES >> 30} GiB$"),
    ],
)
def test_a_type_that_there_is_not_is_an_error(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        explained(block, text, "bf16[16]")


# numbers


@pytest.mark.parametrize("k", [3, 2.5, True])
def test_a_number_that_the_function_takes_works(k: float) -> None:
    assert figures(explained(scaled, torch.randn(8, 16), k)) == [4 * 8 * 16]
    assert figures(explained(lambda x, k: x.softmax(-1) * k, "f32[8,16]", k)) == [4 * 8 * 16]


# what fails

WRONG: dict[str, tuple[Callable[[], Any], str]] = {
    "a number for a tensor": (
        lambda: explained(scaled, 3, 2),
        "scaled fails on these inputs: AttributeError: 'int' object has no attribute 'softmax' at test_calls.py:24: "
        'return x.softmax(-1) * k; x is 3, k is 2: a tensor is given as it is, or as its type, "bf16[8192,4096]"',
    ),
    "a text that is nearly a type": (
        lambda: explained(scaled, "bf16[8,16", k=2.5),
        "scaled fails on these inputs: AttributeError: 'str' object has no attribute 'softmax' at test_calls.py:24: "
        "return x.softmax(-1) * k; x is 'bf16[8,16', k is 2.5: a tensor is given as it is, or as its type, "
        '"bf16[8192,4096]"',
    ),
    "nothing": (
        lambda: explained(scaled),
        "scaled fails on these inputs: TypeError: scaled() missing 2 required positional arguments: 'x' and 'k'; it is "
        "called as scaled(x: 'Tensor', k: 'float') -> 'Tensor'",
    ),
    "too much": (
        lambda: explained(broken, "f32[2]", "f32[2]"),
        "broken fails on these inputs: TypeError: broken() takes 1 positional argument but 2 were given; it is called "
        "as broken(x: 'Tensor') -> 'Tensor'",
    ),
    "too few for a module": (
        lambda: explained(Norm(), "f32[8,16]"),
        "Norm fails on these inputs: TypeError: Norm.forward() missing 1 required positional argument: 'weight'; it is "
        "called as Norm(x: 'Tensor', weight: 'Tensor') -> 'Tensor'",
    ),
    "an error of the function": (
        lambda: explained(broken, "f32[2,2]"),
        "broken fails on these inputs: ValueError: no good: 1 dimension at test_calls.py:33: "
        'raise ValueError(f"no good:\\n{total.dim()} dimension")',
    ),
    "shapes": (
        lambda: explained(Norm(), "f32[8,12]", "f32[16]"),
        "Norm fails on these inputs: RuntimeError: Given normalized_shape=[16], expected input with shape [*16], but "
        "got input of size[8, 12] at test_calls.py:28: return F.rms_norm(x * 2, (16,), weight, eps)",
    ),
    "a builtin": (
        lambda: explained(torch.relu, 3),
        "relu fails on these inputs: TypeError: relu(): argument 'input' (position 1) must be Tensor, not int",
    ),
}


@pytest.mark.parametrize("wrong", WRONG.values(), ids=WRONG)
def test_a_call_that_fails_is_one_error_with_the_users_line(
    wrong: tuple[Callable[[], Any], str], capfd: pytest.CaptureFixture[str]
) -> None:
    explain, message = wrong
    with pytest.raises(CallError) as raised:
        explain()
    assert str(raised.value) == message
    assert isinstance(raised.value, WeftError)
    shown = "".join(traceback.format_exception(raised.value))
    assert "_dynamo" not in shown
    assert shown.splitlines()[-1] == f"weft.errors.CallError: {message}"
    assert capfd.readouterr().err == ""


def test_a_users_folder_may_be_called_torch(tmp_path: Path) -> None:
    path = tmp_path / "torch" / "model.py"
    path.parent.mkdir()
    path.write_text("def broken(x):\n    raise ValueError('no good')\n")
    names = runpy.run_path(str(path))
    with pytest.raises(CallError, match=r"no good at model\.py:2: raise ValueError\('no good'\)$"):
        explained(names["broken"], "f32[2]")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ((3, 4), "^weft.explain is given a function or a module and then its inputs, not 3$"),
        ((torch.ones(2),), "^weft.explain is given a function or a module and then its inputs, not a Tensor$"),
        (("softmax_forward",), "its inputs, not 'softmax_forward'$"),
    ],
)
def test_what_is_no_function_is_named(given: tuple[Any, ...], message: str) -> None:
    with pytest.raises(TypeError, match=message):
        weft.explain(*given)


def test_what_is_no_target_is_named() -> None:
    with pytest.raises(TypeError, match=r"^target is the name of a machine or a weft\.Target, not 3$"):
        weft.explain(scaled, "f32[8,16]", 2, target=3)  # type: ignore[arg-type]


def test_a_defect_behind_a_function_that_works_is_not_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    from torch._inductor import compile_fx

    def fail(*_: Any, **__: Any) -> None:
        raise KeyError("planned")

    monkeypatch.setattr(compile_fx, "_recursive_post_grad_passes", fail)
    with pytest.raises(Exception, match="planned") as raised:
        explained(scaled, "f32[8,16]", 2)
    assert not isinstance(raised.value, CallError)


def test_memory_that_is_not_there_is_no_fault_of_the_function() -> None:
    def full() -> None:
        raise torch.OutOfMemoryError("none left")

    with pytest.raises(torch.OutOfMemoryError):
        call(full, ())
