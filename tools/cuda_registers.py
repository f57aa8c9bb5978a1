"""Weights of the model of registers of CUDA C++ kernels: ``python -m tools.cuda_registers --write``.

``tools/sweeps/cuda_ptxas.csv`` has kernels near the limit that were compiled by ``tools.ptxas_sweep --backend cuda``,
and ``h200_clusters.csv`` those that were timed. Weights are those that make it the likeliest that what was spilled, and
nothing else, is predicted to want more registers than there are; what is spilled counts more, as nobody tries what is
said not to fit, and what spills is compiled again. Kernels of every fourth shape are left out of the fit and described
apart.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from scipy.optimize import minimize

from tools.swept import CLUSTERS_COMPILED, CLUSTERS_REGISTERS, CLUSTERS_TIMED, TARGET, read_clusters
from weft.backends.cuda import resources
from weft.backends.cuda.registers import counts, fitted_weights
from weft.backends.cuda.work import Work

UNSURE = 5.0
"""Registers by which predictions are off."""
SPILLED_COUNTS = 3.0
"""How much more kernels that spill count than others."""
LEFT_OUT = 4


def main(arguments: Sequence[str] | None = None) -> int:
    """Fit, and say how good that is."""
    parser = argparse.ArgumentParser(prog="python -m tools.cuda_registers", description=__doc__)
    parser.add_argument("--csv", type=Path, nargs="+", default=[CLUSTERS_COMPILED, CLUSTERS_TIMED])
    parser.add_argument("--only", nargs="+", choices=list(fitted_weights()), help="weights that are fitted")
    parser.add_argument("--write", action="store_true", help="into the package")
    given = parser.parse_args(arguments)
    shapes: dict[object, int] = {}
    rows, is_spilled, most, out = list[dict[str, float]](), list[bool](), list[int](), list[bool]()
    for cell, split, schedule, row in read_clusters(given.csv):
        if isinstance(work := Work.under(split, schedule), Work):
            rows.append(counts(work, schedule))
            is_spilled.append(int(row["spill_bytes"]) > 0)
            most.append(resources.most_registers(schedule.warps, schedule.blocks, TARGET))
            out.append(shapes.setdefault(cell, len(shapes)) % LEFT_OUT == 0)
    names = list(rows[0])
    has, limits = np.array([[float(row[name]) for name in names] for row in rows]), np.array(most)
    spilled, left_out = np.array(is_spilled), np.array(out)
    weights, fitted = np.array([fitted_weights()[name] for name in names]), np.isin(names, given.only or names)
    others = has[:, ~fitted] @ weights[~fitted]
    weights[fitted] = fit(has[~left_out][:, fitted], spilled[~left_out], (limits - others)[~left_out])
    for what, own in (("fitted to", ~left_out), ("left out", left_out)):
        print(f"{what}: {describe(has[own] @ weights <= limits[own], spilled[own])}")
    found = {name: round(float(weight), 2) for name, weight in zip(names, weights, strict=True)}
    print(json.dumps(found))
    if given.write:
        CLUSTERS_REGISTERS.write_text(json.dumps(found, indent=2) + "\n")
    return 0


def fit(has: np.ndarray, spilled: np.ndarray, limits: np.ndarray) -> np.ndarray:
    """None of them is negative. has: what kernels have, a row each."""
    count = np.where(spilled, SPILLED_COUNTS, 1.0)

    def error(weights: np.ndarray) -> tuple[float, np.ndarray]:
        beyond = (has @ weights - limits) / UNSURE
        lost = count * (np.logaddexp(0, beyond) - spilled * beyond)
        slope = count * (1 / (1 + np.exp(-beyond)) - spilled)
        return float(lost.sum()), slope @ has / UNSURE

    start = np.array([30.0 if column.std() == 0 else 1.0 for column in has.T])
    bounds = [(0.0, None)] * len(start)
    return minimize(error, start, jac=True, method="L-BFGS-B", bounds=bounds, options={"maxiter": 5000}).x


def describe(fits: np.ndarray, spilled: np.ndarray) -> str:
    """fits: which are predicted not to spill."""
    accepted, refused = int(fits.sum()), int((~fits).sum())
    return (
        f"{accepted} kernels are said to fit, of which {int((fits & spilled).sum())} spill; {refused} not to, of which "
        f"{int((~fits & ~spilled).sum())} do not spill"
    )


if __name__ == "__main__":
    raise SystemExit(main())
