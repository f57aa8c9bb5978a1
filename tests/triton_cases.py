"""Expressions in Triton, run by its interpreter or compiled for GPUs: ``python -m tests.triton_cases interpret`` or
``compile TARGET...``. Each in a process of its own: Triton is with or without its interpreter from its import on.
Prints JSON."""

from __future__ import annotations

import json
import linecache
import sys
from collections.abc import Iterable
from itertools import product
from typing import Any

import numpy as np
import torch
from torch import Tensor

from weft.backends.triton.expressions import SIGNATURE_TYPES, TRITON_TYPES, constant, expression, literal, reduction
from weft.backends.triton.text import LEAST_ARCHITECTURES
from weft.ir.dtypes import HALVES, TORCH_DTYPES, is_float, is_narrow
from weft.ir.ops import LOGICAL, OPS, Op

ELEMENTS = 1024
COMPUTED = ("f32", "f64", "i32", "i64", "bool")
"""Types that arithmetic is done in."""
Findings = dict[str, dict[str, str | None]]
TARGETS = {f"sm_{architecture}": architecture for architecture in (80, 86, 89, 90, 100, 120)}
INF, NAN = float("inf"), float("nan")
SPECIAL = {
    "f": (0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 1.5, 2.5, -2.5, 3.0, 7.0, 1e-3, 88.0, -87.0, 1e4, -3e6, INF, -INF, NAN),
    "i": (0, 1, -1, 2, -2, 3, 7, -7, 100),
    "b": (0, 1),
}
INSTRUCTIONS = {
    "f32": ("max.NaN.f32", "min.NaN.f32", "div.rn.f32", "sqrt.rn.f32", "fma.rn.f32", "cvt.rn.bf16.f32"),
    "f64": ("setp.nan.f64", "div.rn.f64", "sqrt.rn.f64", "fma.rn.f64"),
    "bf16": ("fma.rn.bf16x2",),
    "f16": ("add.rn.f16x2", "sub.rn.f16x2", "mul.rn.f16x2"),
}
"""What the interpreter cannot tell: that NaN wins, what is rounded to nearest, and what is done in pairs."""
ROUNDED = ("add", "sub", "mul", "div", "neg", "abs", "maximum", "minimum", "sqrt", "reciprocal", "floor", "ceil")
ROUNDED += ("trunc", "round", "copysign", "fmod", "floor_divide", "remainder", "where")
"""Operations of floats of which every bit is defined."""


def main(kind: str, *targets: str) -> None:
    findings = interpreted() if kind == "interpret" else {target: compiled(target) for target in targets}
    print(json.dumps(findings))


def interpreted() -> Findings:
    """Check -> operation or number, with types -> what is wrong with it."""
    from tests import triton_interpreted  # noqa: F401  (puts in place what the interpreter lacks)

    with np.errstate(all="ignore"):
        return {
            "eight bits": eight_bits(),
            "roundings": roundings(),
            "values": _merged(values(dtype) for dtype in (*COMPUTED, *HALVES)),
            "casts": _merged(casts(dtype) for dtype in TORCH_DTYPES),
            "reductions": _merged(reductions(dtype) for dtype in COMPUTED),
            "constants": _merged(constants(dtype) for dtype in TORCH_DTYPES),
        }


def _merged(parts: Iterable[dict[str, str | None]]) -> dict[str, str | None]:
    return {name: finding for part in parts for name, finding in part.items()}


def ops_of(dtype: str) -> list[Op]:
    """Pointwise operations on that type, without casts."""
    return [op for op in OPS.values() if op.kind == "pointwise" and op.name != "cast" and _takes(op, dtype)]


def _takes(op: Op, dtype: str) -> bool:
    if dtype in HALVES:
        return op.halves
    if dtype == "bool":
        return op.name in LOGICAL or op.dtype in ("bool", "select") or op.name in ("bitwise_and", "bitwise_or")
    if op.name in LOGICAL or (is_float(dtype) and op.integers_only):
        return False
    return is_float(dtype) or not op.floats_only


def operands(dtype: str, count: int = 3) -> list[Tensor]:
    """All pairs of special values, then random ones of several magnitudes."""
    generator = torch.Generator().manual_seed(7)
    special = SPECIAL[dtype[0]]
    if dtype in ("i32", "i64"):
        limits = torch.iinfo(TORCH_DTYPES[dtype])
        special = (*special, limits.min, limits.max)
    pairs = torch.tensor(list(product(special, repeat=2)), dtype=torch.float64 if dtype[0] == "f" else torch.int64)
    assert len(pairs) < ELEMENTS
    found: list[Tensor] = []
    for i in range(count):
        if dtype[0] == "f":
            scale = torch.tensor([1e-3, 1.0, 10.0, 60.0])[torch.randint(4, (ELEMENTS,), generator=generator)]
            x = torch.randn(ELEMENTS, generator=generator, dtype=torch.float64) * scale
        else:
            x = torch.randint(-1000, 1000, (ELEMENTS,), generator=generator)
        x[: len(pairs)] = pairs[:, i % 2]
        found.append((x % 2).bool() if dtype == "bool" else x.to(TORCH_DTYPES[dtype]))
    return found


def values(dtype: str) -> dict[str, str | None]:
    """What is wrong with each operation on that type, under the interpreter."""
    found: dict[str, str | None] = {}
    for op in ops_of(dtype):
        arguments = operands(dtype)[: op.arity]
        if op.name == "where":
            arguments[0] = arguments[0] > 0
        result = op.evaluate(*arguments)
        if op.name == "sqrt":  # torch's own is not rounded to nearest on a CPU
            result = torch.from_numpy(np.sqrt(arguments[0].numpy()))
        out = _dtype_name(result)
        names = ["x", "y", "z"][: op.arity]
        with np.errstate(all=None if is_float(dtype) else "raise"):  # GPUs leave a division by zero undefined
            mine = _interpret(expression(op.name, names, out), dict(zip(names, arguments, strict=True)), out)
        if isinstance(mine, str):
            finding = mine
        elif op.name == "fma":  # the interpreter rounds the product too
            finding = _inaccurate(mine, result, result.double(), (arguments[0] * arguments[1]).abs() + result.abs())
        elif not is_float(out) or op.name in ROUNDED:
            finding = _different(mine, result)
        else:
            finding = _inaccurate(mine, result, op.evaluate(*(a.double() for a in arguments)))
        found[f"{op.name} {dtype}"] = finding
    return found


def casts(source: str) -> dict[str, str | None]:
    """What is wrong with a cast from that type to each other one."""
    if is_float(source):
        x = torch.cat([operands("f32", 1)[0][:512] * s for s in (1.0, 1e-3)])
        edges = torch.tensor([448.0, 464.0, 465.0, 479.0, 480.0, -1e9, 57344.0, 61439.0, 61440.0, 65504.0, 1e-7])
        x[900 : 900 + len(edges)] = edges
        x = x.to(TORCH_DTYPES[source])
    else:
        x = operands("i64" if source != "bool" else "bool", 1)[0].to(TORCH_DTYPES[source])
    found: dict[str, str | None] = {}
    for target in TORCH_DTYPES:
        arguments = x
        if is_float(source) and not is_float(target) and target != "bool":  # what is out of range is not defined
            low = 0 if target == "u8" else -100
            arguments = x.double().nan_to_num(3).clamp(low, 100).to(x.dtype)
        mine = _interpret(expression("cast", ["x"], target, source), {"x": arguments}, target)
        found[f"{source} {target}"] = _different(mine, arguments.to(TORCH_DTYPES[target]))
    return found


def eight_bits() -> dict[str, str | None]:
    """What is wrong with the casts to eight bits of which the release of torch decides which one is taken."""
    x = torch.cat([torch.linspace(-600, 600, 1000), torch.tensor([448.0, 464.0, -464.0, 464.1, INF, -INF, NAN])])
    x = torch.cat([x, torch.zeros(1024 - len(x))])
    saturated = x.clamp(-448, 448).to(torch.float8_e4m3fn)
    nan = torch.where(x.abs() > 464, torch.full_like(x, NAN), x.clamp(-448, 448)).to(torch.float8_e4m3fn)
    expected = {"w.to_f8e4m3(x)": nan, "w.to_f8e4m3_saturated(x)": saturated}
    return {text: _different(_interpret(text, {"x": x}, "f8e4m3"), value) for text, value in expected.items()}


def roundings() -> dict[str, str | None]:
    """What is wrong with the hyperbolic tangent of what becomes a number of 16 bits: more than six units in the last
    place of float32, and other than one, zero or no number where it is that."""
    magnitudes = torch.logspace(-44, 2, 500, dtype=torch.float64).to(torch.float32)
    x = torch.cat([magnitudes, -magnitudes, torch.tensor([0.0, -0.0, 0.25, -0.25, INF, -INF, NAN])])
    x = torch.cat([x, torch.linspace(-1, 1, 1024 - len(x) % 1024)])
    mine = _interpret("w.tanh_rounded(x)", {"x": x}, "f32")
    if isinstance(mine, str):
        return {"tanh": mine}
    exact = x.double().tanh()
    wrong = ~((mine - exact).abs() <= 6 * 2.0**-23 * exact.abs() + 2.0**-149) & ~(exact.isnan() & mine.isnan())
    return {"tanh": _report(wrong, mine, exact)}


def reductions(dtype: str) -> dict[str, str | None]:
    found: dict[str, str | None] = {}
    plain = torch.arange(64).reshape(8, 8) % 7 * (-1 if dtype[0] != "b" else 1)
    x = plain.to(TORCH_DTYPES[dtype])
    if is_float(dtype):
        x[2, 3], x[5, 1], x[4, 4] = float("nan"), float("inf"), float("-inf")
    if dtype in ("i32", "i64"):
        x[1, 1], x[6, 2] = torch.iinfo(x.dtype).max, torch.iinfo(x.dtype).min
    for op, axis in product(("sum", "max", "min"), (0, 1)):
        if dtype == "bool" and op == "sum":
            continue
        expected = OPS[op].evaluate(x, [axis])
        text = f"tl.broadcast_to({reduction(op, ['tl.reshape(x, [8, 8])'], axis)}, [8, 8]).reshape([64])"
        mine = _interpret(text, {"x": x.flatten()}, dtype)
        found[f"{op} {dtype} {axis}"] = _different(mine, expected.expand(8, 8).flatten())
    return found


def constants(dtype: str) -> dict[str, str | None]:
    """What is wrong with numbers alone, beside a tensor, and beside numbers."""
    found: dict[str, str | None] = {}
    for number in _numbers(dtype):
        text = literal(number, dtype)
        texts = [f"tl.broadcast_to({constant(number, dtype)}, [4])"]
        if not is_narrow(dtype):
            texts.append(f"tl.broadcast_to({expression('cast', [text], dtype, dtype)}, [4])")
            texts.append(expression("where", ["c", text, "x"], dtype))
            texts.append(expression("where", ["c", text, text], dtype))
        if not is_narrow(dtype) and dtype != "bool" and number != 0:
            texts.append(expression("maximum" if not number < 0 else "minimum", ["x", text], dtype))
            texts.append(expression("add", ["x", text], dtype))
        tensor = torch.full((4,), number, dtype=TORCH_DTYPES[dtype])
        inputs = {"x": torch.zeros_like(tensor), "c": torch.ones(4, dtype=torch.bool)}
        found |= {f"{dtype} {number}: {t}": _different(_interpret(t, inputs, dtype), tensor) for t in texts}
    return found


def _numbers(dtype: str) -> list[Any]:
    if dtype == "bool":
        return [True, False]
    if not is_float(dtype):
        limits = torch.iinfo(TORCH_DTYPES[dtype])
        wide = [2**31, 2**32 + 1, -(2**40) - 1] if dtype == "i64" else []
        return [0, 1, limits.min, limits.max, *wide, *([-1, -100] if dtype != "u8" else [])]
    numbers = [0.1, -1.5, 0.0, -0.0, 3.0, float("nan")]
    if is_narrow(dtype):
        return numbers
    single = float(np.nextafter(np.float32("7.038531e-26"), np.float32(0)))  # its shortest text is rounded twice
    largest = float(np.finfo(np.float32).max)  # its shortest text is of a number that is larger
    return [*numbers, 1e30, 1e-40, largest, -largest, single, float("inf"), float("-inf")]


def compiled(target: str) -> dict[str, str | None]:
    """What Triton's compiler says of kernels that hold all expressions, one a type."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    found: dict[str, str | None] = {}
    for dtype, every in _everything().items():
        lines = [(out, text) for out, text in every if LEAST_ARCHITECTURES.get(out, 0) <= TARGETS[target]]
        if LEAST_ARCHITECTURES.get(dtype, 0) > TARGETS[target]:
            found[dtype] = None
            continue
        arguments = dict.fromkeys("xyz", f"*{SIGNATURE_TYPES[dtype]}")
        outputs = sorted({out for out, _ in lines})
        arguments |= {f"out_{out}": f"*{SIGNATURE_TYPES[out]}" for out in outputs}
        body = ["i = tl.arange(0, 32)", "x = tl.load(x + i)", "y = tl.load(y + i)", "z = tl.load(z + i)"]
        for number, (out, text) in enumerate(lines):
            body += [f"result = {text}", f"tl.static_assert(result.dtype == {TRITON_TYPES[out]}, {text!r})"]
            body.append(f"tl.store(out_{out} + {number * 32} + i, result)")
        kernel = _jit(f"all_of_{dtype}", list(arguments), body)
        try:
            source = ASTSource(kernel, arguments, {})
            made = triton.compile(source, target=GPUTarget("cuda", TARGETS[target], 32), options={"num_warps": 1})
            missing = [name for name in INSTRUCTIONS.get(dtype, ()) if name not in made.asm["ptx"]]
            found[dtype] = f"no {', '.join(missing)}" if missing else None
        except Exception as error:
            found[dtype] = str(error)
    return found


def _everything() -> dict[str, list[tuple[str, str]]]:
    """Type of the operands -> type and text of every expression, reduction and cast."""
    lines: dict[str, list[tuple[str, str]]] = {}
    for dtype in TORCH_DTYPES:
        found = [(t, expression("cast", ["x"], t, dtype)) for t in TORCH_DTYPES]
        if dtype in (*COMPUTED, *HALVES):
            for op in ops_of(dtype):
                out = "bool" if op.dtype == "bool" else dtype
                names = ["(x > y)", "y", "z"] if op.name == "where" else ["x", "y", "z"][: op.arity]
                found.append((out, expression(op.name, names, out)))
        if dtype in COMPUTED:
            for op in ("sum", "max", "min") if dtype != "bool" else ("max", "min"):
                found.append((dtype, f"tl.broadcast_to({reduction(op, ['x'], 0)}, [32])"))
        found += [("f8e4m3", f"w.{name}(x)") for name in ("to_f8e4m3", "to_f8e4m3_saturated")]
        if is_float(dtype) and not is_narrow(dtype):
            largest = float(np.finfo(np.float32).max)
            numbers = (0.1, -0.0, 1e-40, largest, float("inf"), float("-inf"), float("nan"))
            found += [(dtype, f"tl.broadcast_to({constant(n, dtype)}, [32])") for n in numbers]
            found += [(dtype, expression(op, ["x", "0.1"], dtype)) for op in ("add", "maximum", "div", "pow")]
            for number in ("0.1", literal(-largest, dtype)):
                found.append((dtype, expression("where", ["(x > y)", number, "1.0"], dtype)))
        lines[dtype] = found
    return lines


def _interpret(text: str, inputs: dict[str, Tensor], out: str) -> Tensor | str:
    """The value of an expression for all elements, or how it fails."""
    count = next(iter(inputs.values())).numel()
    body = [f"i = tl.arange(0, {count})", *(f"{name} = tl.load({name} + i)" for name in inputs)]
    body += [f"result = {text}", f"tl.static_assert(result.dtype == {TRITON_TYPES[out]}, {text!r})"]
    kernel = _jit("one", [*inputs, "out"], [*body, "tl.store(out + i, result)"])
    result = torch.zeros(count, dtype=TORCH_DTYPES[out])
    try:
        kernel[(1,)](*inputs.values(), result)
    except Exception as error:
        return f"{text} raises {error}"
    return result


def _jit(name: str, arguments: list[str], body: list[str]) -> Any:
    lines = ["import triton", "import triton.language as tl", "from weft.backends.triton import weft_triton as w", ""]
    lines += ["@triton.jit", f"def {name}({', '.join(arguments)}):", *(f"    {line}" for line in body)]
    text = "\n".join(lines) + "\n"
    file = f"<{name} {len(linecache.cache)}>"
    linecache.cache[file] = (len(text), None, text.splitlines(True), file)
    namespace: dict[str, Any] = {}
    exec(compile(text, file, "exec"), namespace)
    return namespace[name]


def _dtype_name(x: Tensor) -> str:
    return next(name for name, dtype in TORCH_DTYPES.items() if dtype == x.dtype)


def _different(mine: Tensor | str, expected: Tensor) -> str | None:
    """Where two results differ in a bit; a NaN is as good as another."""
    if isinstance(mine, str):
        return mine
    if not mine.dtype.is_floating_point:
        return _report(mine != expected, mine, expected)
    a, b = mine.double(), expected.double()
    return _report(((a != b) | (a.signbit() != b.signbit())) & ~(a.isnan() & b.isnan()), mine, expected)


def _inaccurate(mine: Tensor, eager: Tensor, exact: Tensor, scale: Tensor | None = None) -> str | None:
    """Where a result is more than four units in the last place from float64's, or not special as eager's is.

    scale: what the units are those of, if not of the result.
    """
    info = torch.finfo(mine.dtype)
    a, special = mine.double(), ~eager.isfinite() | (eager == 0)
    bound = 4 * info.eps * (exact if scale is None else scale.double()).abs() + info.smallest_normal
    same = ((a == eager) & (a.signbit() == eager.signbit())) | (a.isnan() & eager.isnan())
    return _report(torch.where(special, ~same, ~((a - exact).abs() <= bound)), mine, exact)


def _report(wrong: Tensor, mine: Tensor, expected: Tensor) -> str | None:
    if not wrong.any():
        return None
    at = int(wrong.nonzero()[0])
    return f"{int(wrong.sum())} wrong, element {at} is {mine[at].item()!r} and not {expected[at].item()!r}"


if __name__ == "__main__":
    main(*sys.argv[1:])
