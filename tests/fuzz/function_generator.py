"""Random functions of tensors as source text, statement by statement, each tried in eager mode before it is kept."""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

DTYPES = {"f64": torch.float64, "f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}
MOST_ELEMENTS, LARGEST, LARGEST_ERROR = 40_000, 1e4, 0.05


@dataclass(frozen=True)
class Statement:
    """``target = text``; the text reads other targets and inputs by name."""

    target: str
    text: str

    def __str__(self) -> str:
        return f"{self.target} = {self.text}"

    def reads(self) -> set[str]:
        return set(re.findall(r"\b[xv]\d+\b", self.text))

    def renamed(self, old: str, new: str) -> Statement:
        return replace(self, text=re.sub(rf"\b{old}\b", new, self.text))


@dataclass(frozen=True)
class Function:
    """inputs: statements that make tensors with ``draw``, ``integers`` and dtypes. gradients: whether the inputs of
    floating point want them."""

    inputs: tuple[Statement, ...]
    body: tuple[Statement, ...]
    outputs: tuple[str, ...]
    gradients: bool

    def source(self) -> str:
        names = ", ".join(i.target for i in self.inputs)
        lines = [f"def function({names}):", *(f"    {s}" for s in self.body), f"    return {', '.join(self.outputs)},"]
        return "\n".join(lines) + "\n"

    def inputs_source(self) -> str:
        return "\n".join(map(str, self.inputs)) + "\n"

    def alive(self) -> Function:
        """Without statements that no output needs, and without inputs that nobody reads."""
        needed, body = set(self.outputs), []
        for statement in reversed(self.body):
            changes = bool(re.search(r"\w_\(", statement.text)) and bool(statement.reads() & needed)
            if statement.target in needed or changes:
                body.append(statement)
                needed |= statement.reads()
        inputs = tuple(i for i in self.inputs if i.target in needed)
        return replace(self, inputs=inputs, body=tuple(reversed(body)))


def namespace(reference: bool, seed: int) -> dict[str, Any]:
    """Names the source text may use; for the reference every floating-point dtype is float64."""
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64).clamp(-3, 3)

    def integers(low: int, high: int, *shape: int) -> Tensor:
        return torch.randint(low, high, shape, generator=generator)

    dtypes = dict.fromkeys(DTYPES, torch.float64) if reference else DTYPES
    return {"torch": torch, "F": F, "draw": draw, "integers": integers, **dtypes}


def compiled(source: str, reference: bool) -> Callable[..., tuple[Tensor, ...]]:
    """The function of a source text."""
    found = namespace(reference, 0)
    exec(compile(source, "<fuzz>", "exec"), found)
    return found["function"]


def make_inputs(function: Function, seed: int) -> list[Tensor]:
    found = namespace(False, seed)
    for statement in function.inputs:
        found[statement.target] = eval(statement.text, found)
    return [found[i.target] for i in function.inputs]


def fits(native: Tensor, exact: Tensor) -> bool:
    """Whether a value is finite, not large, and means the same in its own dtype as in float64."""
    if native.ndim > 5 or not 0 < native.numel() <= MOST_ELEMENTS or native.shape != exact.shape:
        return False
    if not native.dtype.is_floating_point:
        return torch.equal(native, exact)
    if not (native.isfinite().all() and exact.isfinite().all()):
        return False
    scale = float(exact.abs().max())
    return scale <= LARGEST and float((native.double() - exact).abs().max()) <= LARGEST_ERROR * scale


class Generator:
    """Draws one function. Everything follows from the seed."""

    def __init__(self, seed: int) -> None:
        self.random, self.seed = random.Random(seed), seed
        draw = self.random
        self.width = draw.choice((7, 16, 24, 33, 48, 64, 96, 130))
        self.length = draw.choice((2, 3, 5, 12, 17, 40, 64))
        self.batch = draw.choice((2, 3, 4))
        self.main = draw.choice(("f32", "f32", "f32", "bf16", "bf16", "f16", "f64"))
        self.native, self.exact = namespace(False, seed), namespace(True, seed)
        self.inputs: list[Statement] = []
        self.body: list[Statement] = []

    def run(self) -> Function:
        from tests.fuzz.statements import TEMPLATES

        draw = self.random
        self._first_inputs()
        wanted = draw.choice((2, 4, 6, 9, 13))
        names, weights = list(TEMPLATES), [w for w, _ in TEMPLATES.values()]
        for _ in range(5 * wanted):
            if len(self.body) >= wanted:
                break
            _, template = TEMPLATES[draw.choices(names, weights)[0]]
            try:
                text = template(self)
            except LookupError:  # no value of the shape or dtype that it needs
                continue
            self.try_statement(text)
        read = set().union(*(s.reads() for s in self.body)) if self.body else set()
        last = [s.target for s in self.body if s.target not in read]
        outputs = last[-4:] + [s.target for s in self.body if s.target in read and draw.random() < 0.15]
        gradients = draw.random() < 0.7
        return Function(tuple(self.inputs), tuple(self.body), tuple(outputs), gradients).alive()

    def try_statement(self, text: str) -> bool:
        """Keep ``v = text`` if it runs and what it makes, and all it may have changed in place, fits."""
        target = f"v{len(self.body)}"
        try:
            found = [eval(text, env) for env in (self.native, self.exact)]
        except (RuntimeError, IndexError, ValueError, TypeError):
            self._replay()  # an in-place operation may have got half way
            return False
        if not all(isinstance(value, Tensor) for value in found) or not fits(*found):
            self._replay()
            return False
        self.native[target], self.exact[target] = found
        if "_(" in text and not all(fits(self.native[n], self.exact[n]) for n in self.values()):
            self._replay()
            return False
        self.body.append(Statement(target, text))
        return True

    def _replay(self) -> None:
        """Set every value to what it was before an operation that failed."""
        for env in (self.native, self.exact):
            for name in [n for n in env if re.fullmatch(r"v\d+", n)]:
                del env[name]
            for statement in self.body:
                env[statement.target] = eval(statement.text, env)

    # what templates ask for

    def values(self) -> list[str]:
        return [i.target for i in self.inputs] + [s.target for s in self.body]

    def tensor(self, name: str) -> Tensor:
        return self.native[name]

    def pick(self, good: Callable[[Tensor], bool] = lambda t: t.is_floating_point()) -> str:
        """A value that is good, the newest most often. LookupError if there is none."""
        names = [n for n in self.values() if good(self.tensor(n))]
        if not names:
            raise LookupError
        recent = names[-4:] if self.random.random() < 0.6 else names
        return self.random.choice(recent)

    def new_input(self, text: str) -> str:
        """A further input."""
        name = f"x{len(self.inputs)}"
        value = eval(text, self.native)
        self.native[name] = value
        self.exact[name] = value.double() if value.is_floating_point() else value.clone()
        self.inputs.append(Statement(name, text))
        return name

    def floats(self, *shape: int, plain: bool = False) -> str:
        """Text of a tensor of floats of that shape, in some layout."""
        draw = self.random
        dtype = self.main if draw.random() < 0.8 else draw.choice(("f32", "f32", "bf16", "f64"))
        kind = 0 if plain or draw.random() < 0.6 else draw.randint(1, 6)
        sizes = ", ".join(map(str, shape))
        match kind:
            case 1 if shape:  # padded rows
                wide = ", ".join(map(str, (*shape[:-1], shape[-1] + draw.choice((1, 3, 8)))))
                return f"draw({wide}).to({dtype})[..., :{shape[-1]}]"
            case 2 if len(shape) > 1:  # permuted
                order = draw.sample(range(len(shape)), len(shape))
                mixed = ", ".join(str(shape[i]) for i in order)
                back = ", ".join(str(order.index(i)) for i in range(len(shape)))
                return f"draw({mixed}).to({dtype}).permute({back})"
            case 3 if len(shape) > 1:  # the same rows again and again
                axis = draw.randrange(len(shape))
                thin = ", ".join("1" if i == axis else str(n) for i, n in enumerate(shape))
                return f"draw({thin}).to({dtype}).expand({sizes})"
            case 4:  # not at the start of its storage
                count, offset = torch.Size(shape).numel(), draw.choice((1, 3, 5))
                return f"draw({count + offset}).to({dtype})[{offset}:].view({sizes or '()'})"
            case 5 if len(shape) > 1:  # rows that overlap
                strides = [1 + draw.randrange(3) for _ in shape]
                count = 1 + sum((n - 1) * s for n, s in zip(shape, strides, strict=True))
                return f"draw({count}).to({dtype}).as_strided(({sizes},), {tuple(strides)})"
            case 6 if shape:  # every other element
                wide = ", ".join(map(str, (*shape[:-1], 2 * shape[-1])))
                return f"draw({wide}).to({dtype})[..., ::2]"
            case _:
                return f"draw({sizes}).to({dtype})"

    def _first_inputs(self) -> None:
        draw = self.random
        b, t, d = self.batch, self.length, self.width
        shape = draw.choice(((b, t, d), (t, d), (t, d), (b * t, d), (b, 2, t, d)))
        for _ in range(draw.choice((1, 1, 2))):
            self.new_input(self.floats(*shape))
        for other in ((d,), (d,), (t, 1), (b, 1, d), (t, d), (1,), (), (d, d)):
            if draw.random() < 0.3:
                self.new_input(self.floats(*other))
        if draw.random() < 0.3:
            mask = draw.choice((shape, (*shape[:-1], 1), (d,)))
            self.new_input(f"draw({', '.join(map(str, mask))}) > 0")
        if draw.random() < 0.3:
            self.new_input(f"integers(0, {d}, {', '.join(map(str, shape[:-1]))})")
        if draw.random() < 0.2:
            kind = draw.choice(("", ".int()"))
            self.new_input(f"integers(-4, 5, {', '.join(map(str, shape))}){kind}")
