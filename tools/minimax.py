"""Coefficients of the polynomials in ``weft_cpu.h``: ``python -m tools.minimax`` fits and prints them.

Minimax fits by Lawson's iteration (C. L. Lawson, "Contributions to the theory of linear least maximum approximation",
1961): least squares whose weights grow where the error is largest. Needs scipy.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from scipy.special import erf, erfc, erfcx

Function = Callable[[Any], Any]
NODES, ITERATIONS = 2000, 60


def fit(function: Function, weight: Function, low: float, high: float, degree: int) -> tuple[Any, float]:
    """Coefficients, lowest first, of the polynomial with the smallest largest weighted error, and that error."""
    angles = np.pi * (np.arange(NODES) + 0.5) / NODES
    x = (low + high) / 2 + (high - low) / 2 * np.cos(angles)
    y, weights = function(x), weight(x)
    powers = np.vander(x, degree + 1, increasing=True)
    importance = np.ones(NODES)
    coefficients, errors = np.zeros(degree + 1), np.zeros(NODES)
    for _ in range(ITERATIONS):
        scale = np.sqrt(importance) * weights
        coefficients = np.linalg.lstsq(powers * scale[:, None], y * scale, rcond=None)[0]
        errors = np.abs((powers @ coefficients - y) * weights)
        importance *= errors + 1e-30
        importance /= importance.sum()
    return coefficients, float(errors.max())


def main() -> None:
    """Print the fits: e^r = 1 + r + r^2 q(r), erf(x) = x + x p(x^2) and erf(x) = 1 - 2^-q(x), 2^-r.

    The last may be off by more than a rounding: it makes at most a sixth of the result.
    """
    half = np.log(2) / 2 * 1.001
    fits = {
        "exp": fit(lambda r: (np.expm1(r) - r) / r**2, lambda r: r**2 / np.exp(r), -half, half, 4),
        "erf up to 1": fit(
            lambda s: erf(np.sqrt(s)) / np.sqrt(s) - 1, lambda s: np.sqrt(s) / erf(np.sqrt(s)), 1e-12, 1.0, 6
        ),
        "erf from 1": fit(
            lambda t: (t * t - np.log(erfcx(t))) / np.log(2), lambda t: np.log(2) * erfc(t) / erf(t), 0.95, 4.0, 6
        ),
        "power of two": fit(lambda r: 2.0**-r, lambda r: 2.0**r, -0.501, 0.501, 5),
    }
    for name, (coefficients, error) in fits.items():
        print(f"{name}: {', '.join(str(np.float32(c)) for c in coefficients)} (relative error {error:.1e})")


if __name__ == "__main__":
    main()
