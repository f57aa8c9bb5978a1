"""Weights of the model of registers in ``plan/resources.py``; written by ``python -m weft.bench.ptxas_fit``.

Fitted to ``calibration/ptxas_sm90.csv``, what ptxas of Triton 3.6 gives kernels for sm_90 and sm_100.

ONE_SHOT: 401 of 430 kernels within 16 registers or 15 %, 294 of 312 that a planner chose; of 2 that spill 0 said to
fit, 0 others said to spill; fitted to every other one, 194 of 215 others.
LOOP: 43 of 48 kernels within 16 registers or 15 %, 2 of 2 that a planner chose; of 3 that spill 0 said to fit, 0
others said to spill; fitted to every other one, 14 of 23 others.
COLUMN: 122 of 139 kernels within 16 registers or 15 %, 76 of 76 that a planner chose; of 6 that spill 0 said to fit,
7 others said to spill; fitted to every other one, 51 of 68 others.
STREAM: 419 of 501 kernels within 16 registers or 15 %, 250 of 279 that a planner chose; of 39 that spill 0 said to
fit, 45 others said to spill; fitted to every other one, 195 of 251 others.
"""

# Registers of a thread for each unit of a feature: of registers that are alive, of elements, or of each one.
WEIGHTS: dict[str, dict[str, float]] = {
    "ONE_SHOT": {
        "columns": 0.382,
        "rows": 1.715,
        "waiting": 0.584,
        "alive": 0.108,
        "loaded": 0.238,
        "loads": 0.817,
        "row_loads": 10.009,
        "reductions": 5.056,
        "converted": 0.386,
        "lone_rows": 13.775,
        "wide": 4.84,
        "unaligned": 0.618,
        "narrow": 0.15,
    },
    "LOOP": {
        "waiting": 0.724,
        "alive": 0.381,
        "loaded": 0.376,
        "loads": 6.662,
        "stores": 8.347,
        "row_loads": 2.553,
        "wide": 2.487,
        "staged": 15.589,
        "remainder": 7.09,
        "unaligned": 2.576,
        "narrow": 0.075,
    },
    "COLUMN": {
        "elements": 0.095,
        "rows": 2.494,
        "several_rows": 3.5,
        "alive": 0.312,
        "sums": 0.32,
        "invariant": 2.535,
        "loaded": 0.533,
        "stores": 23.2,
        "adders": 14.25,
        "converted": 1.287,
        "segmented": 15.5,
        "wide": 15.0,
        "unaligned": 1.83,
    },
    "STREAM": {
        "base": 9.15,
        "elements": 0.449,
        "columns": 0.36,
        "rows": 6.23,
        "several_rows": 6.114,
        "waiting": 0.557,
        "alive": 0.202,
        "sums": 0.431,
        "lone_sums": 0.233,
        "invariant": 1.573,
        "stores": 0.18,
        "adders": 3.276,
        "row_loads": 5.405,
        "converted": 0.523,
        "segmented": 1.398,
        "wide": 15.0,
    },
}
# The share of all registers beyond which a kernel is said to spill.
SPILLING = {"ONE_SHOT": 1.17, "LOOP": 1.07, "COLUMN": 1.07, "STREAM": 1.0}
# The share of the registers that it wants with which a kernel can do.
FEWEST = {"ONE_SHOT": 0.85, "LOOP": 0.85, "COLUMN": 0.9, "STREAM": 1.0}
