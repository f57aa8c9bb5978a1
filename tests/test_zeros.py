"""Which values are zero where inputs are."""

from __future__ import annotations

import torch

from weft.ir.interpret import interpret
from weft.ir.parser import parse
from weft.ir.zeros import zero_where

VALUES = {
    "product": ("mul(x, w)", True),
    "centred": ("sub(x, shift)", False),
    "of_any": ("mul(centred, product)", True),
    "exponential": ("exp(x)", False),
    "maybe_infinite": ("mul(exponential, product)", False),
    "both": ("add(product, of_any)", True),
    "one_of_both": ("add(product, shift)", False),
    "opposite": ("neg(both)", True),
    "scaled": ("mul(opposite, scale)", True),
    "more": ("fma(centred, product, both)", True),
    "more_of_any": ("fma(centred, product, shift)", False),
    "largest": ("maximum(x, product)", False),
}
"""By their names, how they are made and whether they are zero where x is."""
BODY = "".join(f"  {name}: f32{{m, n}} = {made}\n" for name, (made, _) in VALUES.items())
OUTPUTS = "".join(f"  output out_{name}: f32 [m:8, n:1] = {name}\n" for name in VALUES)
PROGRAM = parse(f"""program p()
  dim m = 4
  dim n = 8
  input x: f32 [m:8, n:1]
  input w: f32 [n:1]
  input shift: f32 [m:1]
  sum: f32{{m}} = sum[n](x)
  scale: f32{{m}} = exp(sum)
{BODY}{OUTPUTS}end
""")


def test_products_and_sums_are_zero_where_inputs_are() -> None:
    found = zero_where(PROGRAM, ["x"], ["sum", "scale"])
    assert found == {name for name, (_, is_zero) in VALUES.items() if is_zero}


def test_they_are() -> None:
    x, w, shift = torch.randn(4, 8), torch.randn(8), torch.randn(4)
    x[:, 3:5] = 0
    outputs = dict(zip(VALUES, interpret(PROGRAM, [x, w, shift]), strict=True))
    for name, (_, is_zero) in VALUES.items():
        assert not is_zero or outputs[name][:, 3:5].count_nonzero() == 0, name


def test_what_is_made_of_a_number_that_is_not_finite_is_not() -> None:
    assert "scaled" not in zero_where(PROGRAM, ["x"], ["sum"])
