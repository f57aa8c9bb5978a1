"""What a random function may do: one template a kind of statement, with how often it is drawn."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from tests.fuzz.function_generator import Generator

Template = Callable[[Generator], str]


def _is_float(t: Tensor) -> bool:
    return t.is_floating_point()


def _is_mask(t: Tensor) -> bool:
    return t.dtype == torch.bool


def _is_integer(t: Tensor) -> bool:
    return t.dtype in (torch.int64, torch.int32)


def _has_rank(rank: int) -> Callable[[Tensor], bool]:
    return lambda t: t.is_floating_point() and t.ndim >= rank


UNARY = (
    "torch.tanh({v})", "torch.sigmoid({v})", "torch.exp(-{v}.abs())", "F.gelu({v})",
    "F.gelu({v}, approximate='tanh')", "F.silu({v})", "F.relu({v})", "{v} * 2.0", "{v} / 3", "-{v}", "{v}.abs()",
    "{v}.square()", "1 - {v}", "3 / ({v}.abs() + 1)", "torch.sqrt({v}.abs() + 0.5)",
    "torch.rsqrt({v}.square() + 1)", "torch.log({v}.abs() + 1)", "torch.erf({v})", "{v}.pow(3)", "{v} ** 2",
    "{v}.abs().add(1).pow(-0.5)", "{v}.clamp(-1, 1)", "{v}.clamp(min=0.25)", "F.leaky_relu({v}, 0.2)",
    "F.softplus({v})", "{v}.abs().add(1).reciprocal()", "torch.sin({v})", "torch.log1p({v}.abs())",
    "torch.expm1(-{v}.abs())", "F.elu({v})", "{v}.to(f32)", "{v}.to(bf16)", "{v}.to(f64)", "{v}.to(f16)",
    "{v}.contiguous()", "{v}.clone()", "{v}.detach()", "F.mish({v})", "F.hardswish({v})", "F.logsigmoid({v})",
    "torch.exp2(-{v}.abs())", "{v} + 0.5", "{v} * True", "torch.add({v}, {v}, alpha=0.5)", "torch.rsub({v}, 2.0)",
    "{v}.relu().square()",
)  # fmt: skip
BINARY = (
    "{v} + {u}", "{v} - {u}", "{v} * {u}", "{v} / ({u}.abs() + 1)", "torch.maximum({v}, {u})",
    "torch.minimum({v}, {u})", "torch.add({v}, {u}, alpha=2)", "torch.sub({v}, {u}, alpha=0.5)",
    "torch.lerp({v}, {u}.to({v}.dtype), 0.25)", "torch.addcmul({v}, {u}.to({v}.dtype), {v})",
    "{v}.abs().add(0.5).pow({u})", "torch.sigmoid({v}) * {u}",
)  # fmt: skip
MASKED = (
    "torch.where({m}, {v}, {u})", "{v}.masked_fill({m}, 0.0)", "torch.where({m}, {v}, 0.0)", "{v} * {m}",
    "torch.where({m}, 1.0, {v})", "torch.where({m}, {v}, torch.zeros_like({v}))",
)  # fmt: skip
COMPARE = (
    "{v} > 0.1", "{v} <= {u}", "{v} >= 0", "{v} == 0", "{v} != {u}", "{v} < -0.2", "torch.isfinite({v})",
)  # fmt: skip
REDUCE = (
    "{v}.sum({d}, keepdim={k})", "{v}.mean({d}, keepdim={k})", "{v}.amax({d}, keepdim={k})",
    "{v}.amin({d}, keepdim={k})", "{v}.var({d}, keepdim={k}, correction={c})", "{v}.std({d}, keepdim={k})",
    "torch.var_mean({v}, {d}, keepdim={k})[0]", "torch.logsumexp({v}, {d}, keepdim={k})",
    "{v}.square().sum({d}, keepdim={k})", "{v}.to(f32).sum({d}, keepdim={k})",
    "{v}.square().add(1e-3).mean({d}, keepdim={k}).sqrt()", "torch.linalg.vector_norm({v}, 2, {d}, keepdim={k})",
    "{v}.sum({d}, keepdim={k}, dtype=f32)", "{v}.abs().sum({d}, keepdim={k})", "({v} > 0).sum({d}, keepdim={k})",
)  # fmt: skip
ONE_AXIS = (
    "torch.softmax({v}, {a})", "torch.log_softmax({v}, {a})", "{v}.max({a}).values",
    "{v}.min({a}, keepdim=True)[0]", "F.normalize({v}, dim={a})", "{v} - {v}.mean({a}, keepdim=True)",
    "torch.cumsum({v}, {a})", "{v} / ({v}.abs().sum({a}, keepdim=True) + 1)",
    "torch.softmax({v}.to(f32), {a}).to({v}.dtype)", "{v}.argmax({a})", "({v} * torch.softmax({v}, {a})).sum({a})",
    "{v} - {v}.amax({a}, keepdim=True)", "torch.softmax({v} * 0.3, {a})",
)  # fmt: skip
NORMS = (
    "F.layer_norm({v}, ({n},))", "F.layer_norm({v}, ({n},), {w}, {w})", "F.rms_norm({v}, ({n},))",
    "F.rms_norm({v}, ({n},), {w})",
    "{v} * torch.rsqrt({v}.to(f32).square().mean(-1, keepdim=True) + 1e-5).to({v}.dtype) * {w}",
    "({v} - {v}.mean(-1, keepdim=True)) / ({v}.var(-1, keepdim=True, correction=0) + 0.1).sqrt() * {w}",
    "F.layer_norm({v}.to(f32), ({n},)).to({v}.dtype)",
)  # fmt: skip
INTEGERS = (
    "{i} + 1", "{i} * {j}", "{i} // 3", "{i} % 4", "{i}.to(f32)", "{i}.sum(-1)", "{i}.sum(0)", "{i}.amax(-1)",
    "{i} == {j}", "{i} > 1", "-{i}", "{i}.abs()", "{i}.to(f64) * 0.5", "torch.where({i} > 0, {i}, {j})",
    "{i}.sum()", "({i} & 3)", "torch.maximum({i}, {j})", "{i}.bool()", "{i}.amin(0)", "{i}.to(f32).mean(-1)",
)  # fmt: skip
MASKS = (
    "{m} & {o}", "{m} | {o}", "~{m}", "{m} ^ {o}", "{m}.sum(-1)", "{m}.sum(0)", "{m}.any(-1)", "{m}.all(0)",
    "{m}.to(f32)", "{m}.to(f32).mean(0)", "{m} == {o}", "{m} != {o}", "torch.logical_and({m}, {o})", "{m}.to(bf16)",
    "{m}.long()", "{m} > {o}", "{m} * {o}", "{m} + {o}", "torch.maximum({m}, {o})", "torch.minimum({m}, {o})",
)  # fmt: skip
CHANGES = (
    "{v}.clone().add_({u})", "{v}.clone().mul_(0.5)", "{v}.mul_(0.5)", "{v}.add_({u})", "{v}.copy_({u})",
    "{v}.relu_()", "{v}.clone().zero_().add_({u})", "{v}.clone().masked_fill_({v} > 0, 1.0)", "{v}.clamp_(-1, 1)",
    "{v}.sub_(1)",
)  # fmt: skip


def _text(choices: tuple[str, ...]) -> Callable[[Generator], str]:
    return lambda g: g.random.choice(choices)


def unary(g: Generator) -> str:
    return g.random.choice(UNARY).format(v=g.pick())


def _partner(g: Generator, v: str) -> str:
    """A value that broadcasts with ``v``, of the same shape in most cases; ``v`` itself is one."""
    shape = g.tensor(v).shape

    def suits(t: Tensor) -> bool:
        if not t.is_floating_point():
            return False
        try:
            torch.broadcast_shapes(t.shape, shape)
        except RuntimeError:
            return False
        return True

    return g.pick(suits)


def binary(g: Generator) -> str:
    v = g.pick()
    return g.random.choice(BINARY).format(v=v, u=_partner(g, v))


def masked(g: Generator) -> str:
    v = g.pick()
    return g.random.choice(MASKED).format(v=v, u=_partner(g, v), m=g.pick(_is_mask))


def compare(g: Generator) -> str:
    v = g.pick()
    return g.random.choice(COMPARE).format(v=v, u=_partner(g, v))


def reduce(g: Generator) -> str:
    v = g.pick(_has_rank(1))
    rank = g.tensor(v).ndim
    axes = sorted(g.random.sample(range(rank), g.random.randint(1, rank)))
    if g.random.random() < 0.5:
        axes = [g.random.choice((0, -1))]
    dims = tuple(a - rank if a > 0 and g.random.random() < 0.3 else a for a in axes)
    return g.random.choice(REDUCE).format(v=v, d=dims, k=g.random.random() < 0.5, c=g.random.choice((0, 1)))


def one_axis(g: Generator) -> str:
    v = g.pick(_has_rank(1))
    axis = -1 if g.random.random() < 0.6 else g.random.randrange(g.tensor(v).ndim)
    return g.random.choice(ONE_AXIS).format(v=v, a=axis)


def norm(g: Generator) -> str:
    v = g.pick(_has_rank(2))
    n = g.tensor(v).shape[-1]
    text = g.random.choice(NORMS)
    dtype = g.tensor(v).dtype
    weights = [x for x in g.values() if g.tensor(x).shape == (n,) and g.tensor(x).dtype == dtype]
    if "{w}" in text and not weights:
        name = next(k for k in ("f64", "f32", "bf16", "f16") if g.native[k] == dtype)
        weights = [g.new_input(f"draw({n}).to({name})")]
    return text.format(v=v, n=n, w=g.random.choice(weights) if weights else "")


def loss(g: Generator) -> str:
    v = g.pick(_has_rank(1))
    same = [x for x in g.values() if g.tensor(x).shape == g.tensor(v).shape and _is_float(g.tensor(x))]
    u = g.random.choice(same)
    texts = [
        "F.mse_loss({v}, {u}.to({v}.dtype))", "F.smooth_l1_loss({v}, {u}.to({v}.dtype))",
        "F.binary_cross_entropy_with_logits({v}, torch.sigmoid({u}).to({v}.dtype))",
        "F.kl_div(torch.log_softmax({v}, -1), torch.softmax({u}.to({v}.dtype), -1), reduction='batchmean')",
        "F.cosine_similarity({v}, {u}.to({v}.dtype), dim=-1)",
    ]  # fmt: skip
    shape = g.tensor(v).shape
    indices = [x for x in g.values() if g.tensor(x).dtype == torch.int64 and len(shape) > 1]
    indices = [x for x in indices if g.tensor(x).shape == shape[:-1] and int(g.tensor(x).min()) >= 0]
    indices = [x for x in indices if int(g.tensor(x).max()) < shape[-1]]
    if not indices and len(shape) > 1 and g.random.random() < 0.5:
        sizes = ", ".join(map(str, shape[:-1]))
        indices = [g.new_input(f"integers(0, {shape[-1]}, {sizes})")]
    if indices:
        i = g.random.choice(indices)
        more = (
            "{v}.gather(-1, {i}[..., None])", "F.one_hot({i}, {n}) * {v}",
            "F.nll_loss(torch.log_softmax({v}, -1).reshape(-1, {n}), {i}.reshape(-1))",
            "F.cross_entropy({v}.reshape(-1, {n}), {i}.reshape(-1))",
            "{v}.reshape(-1, {n})[:, 0].gather(0, {i}.reshape(-1) * 0)",
            "F.cross_entropy({v}.reshape(-1, {n}), {i}.reshape(-1), label_smoothing=0.1)",
            "F.cross_entropy({v}.reshape(-1, {n}), {i}.reshape(-1), ignore_index=0, reduction='sum')",
            "F.cross_entropy({v}.reshape(-1, {n}).to(f32), {i}.reshape(-1), reduction='none')",
        )  # fmt: skip
        return g.random.choice(more).format(v=v, i=i, n=shape[-1])
    return g.random.choice(texts).format(v=v, u=u)


def view(g: Generator) -> str:
    draw = g.random
    v = g.pick(lambda t: t.ndim >= 1 and (t.is_floating_point() or draw.random() < 0.2))
    shape, rank = list(g.tensor(v).shape), g.tensor(v).ndim
    axis = draw.randrange(rank)
    size = shape[axis]
    divisors = [n for n in (2, 3, 4, 8) if size % n == 0 and size > n]
    options = [
        f"{v}.unsqueeze({draw.randrange(rank + 1)})", f"{v}.reshape(-1)", f"{v}.squeeze()",
        f"{v}.permute({', '.join(map(str, draw.sample(range(rank), rank)))})", f"{v}.transpose(0, -1)", f"{v}.mT",
        f"{v}.select({axis}, {draw.randrange(size)})", f"{v}.flip({axis})", f"torch.roll({v}, 1, {axis})",
        f"{v}.repeat_interleave(2, {axis})", f"torch.cat([{v}, {v}], {axis})", f"torch.stack([{v}, {v}], {axis})",
        f"{v}.unsqueeze(0).expand({', '.join(map(str, (draw.choice((2, 3)), *shape)))})", f"{v}.flatten({axis})",
        f"{v}.repeat({', '.join(['2', *['1'] * (rank - 1)])})",
    ]  # fmt: skip
    if size > 2:
        start, stop = draw.choice((0, 1)), size - draw.choice((0, 1))
        options += [
            f"{v}.narrow({axis}, {start}, {stop - start})",
            f"{v}[..., {0 if shape[-1] < 3 else 1}:]",
            f"{v}[::2]",
        ]
    if shape[-1] % 2 == 0:
        options += [f"{v}.chunk(2, -1)[{draw.randrange(2)}]", f"{v}[..., ::2]"]
    if divisors:
        n = draw.choice(divisors)
        split = [*shape[:axis], n, size // n, *shape[axis + 1 :]]
        options += [f"{v}.reshape({', '.join(map(str, split))})"] * 4
        options += [f"{v}.unflatten({axis}, ({size // n}, {n}))"]
    if rank > 1:
        options += [f"{v}.reshape(-1, {shape[-1]})", f"{v}.reshape({shape[0]}, -1)"] * 2
        options.append(f"{v}.reshape({', '.join(map(str, reversed(shape)))})")
    return draw.choice(options)


def join(g: Generator) -> str:
    v = g.pick(_has_rank(1))
    tensor = g.tensor(v)
    u = g.pick(lambda t: t.shape == tensor.shape and t.dtype == tensor.dtype)
    axis = g.random.randrange(tensor.ndim)
    return g.random.choice(("torch.cat([{v}, {u}], {a})", "torch.stack([{v}, {u}], {a})")).format(v=v, u=u, a=axis)


def product(g: Generator) -> str:
    v = g.pick(lambda t: t.ndim == 2 and t.is_floating_point())
    u = g.pick(lambda t: t.shape == g.tensor(v).shape and t.dtype == g.tensor(v).dtype)
    return f"{v} @ {u}.t() * 0.1"


def integers(g: Generator) -> str:
    i = g.pick(_is_integer)
    shape = g.tensor(i).shape
    j = g.pick(lambda t: _is_integer(t) and t.shape == shape)
    return g.random.choice(INTEGERS).format(i=i, j=j)


def masks(g: Generator) -> str:
    m = g.pick(_is_mask)
    return g.random.choice(MASKS).format(m=m, o=g.pick(lambda t: _is_mask(t) and t.shape == g.tensor(m).shape))


def change(g: Generator) -> str:
    """In place, on intermediate values only."""
    own = [s.target for s in g.body if _is_float(g.tensor(s.target))]
    v = g.random.choice(own[-3:]) if own else g.pick(lambda t: False)
    return g.random.choice(CHANGES).format(v=v, u=_partner(g, v))


def positions(g: Generator) -> str:
    """Made from nothing: ranges and constants."""
    v = g.pick(_has_rank(1))
    n = g.tensor(v).shape[-1]
    return g.random.choice(
        (
            f"{v} + torch.arange({n}, dtype=f32) * 0.1", f"{v} * torch.ones({n}, dtype=f32)",
            f"torch.where(torch.arange({n}) < {n // 2}, {v}, -1.0)", f"torch.full_like({v}, 0.5) * {v}",
            f"torch.where(torch.arange({n})[:, None] >= torch.arange({n}), {v}, 0.0)",
        )
    )  # fmt: skip


TEMPLATES: dict[str, tuple[float, Template]] = {
    "unary": (3, unary),
    "binary": (4, binary),
    "masked": (1, masked),
    "compare": (0.6, compare),
    "reduce": (4, reduce),
    "one_axis": (2, one_axis),
    "norm": (2, norm),
    "loss": (0.8, loss),
    "view": (3, view),
    "join": (0.6, join),
    "product": (0.4, product),
    "integers": (0.8, integers),
    "masks": (0.8, masks),
    "change": (0.6, change),
    "positions": (0.4, positions),
}
