"""Weights of the model of registers in ``plan/resources.py``; written by ``python -m weft.bench.ptxas_fit``.

Fitted to ``calibration/ptxas_sm90.csv``, what ptxas of Triton 3.6 gives kernels for sm_90 and sm_100.

ONE_SHOT: 546 of 656 kernels within 16 registers or 15 %, 75 of 91 that a planner chose; of 4 that spill 0 said to
fit, 14 others said to spill; fitted to every other one, 251 of 329 others.
ONE_SHOT_TILES: 1 of 1 kernels within 16 registers or 15 %, 0 of 0 that a planner chose; of 0 that spill 0 said to
fit, 0 others said to spill; fitted to every other one, 0 of 0 others.
LOOP: 211 of 355 kernels within 16 registers or 15 %, 19 of 27 that a planner chose; of 15 that spill 0 said to fit,
27 others said to spill; fitted to every other one, 98 of 176 others.
COLUMN: 485 of 596 kernels within 16 registers or 15 %, 41 of 54 that a planner chose; of 43 that spill 0 said to fit,
66 others said to spill; fitted to every other one, 215 of 298 others.
COLUMN_WHOLE: 118 of 137 kernels within 16 registers or 15 %, 15 of 15 that a planner chose; of 0 that spill 0 said to
fit, 0 others said to spill; fitted to every other one, 53 of 68 others.
STREAM: 805 of 1058 kernels within 16 registers or 15 %, 54 of 63 that a planner chose; of 70 that spill 0 said to
fit, 172 others said to spill; fitted to every other one, 390 of 528 others.
STREAM_TILES: 31 of 31 kernels within 16 registers or 15 %, 6 of 6 that a planner chose; of 16 that spill 0 said to
fit, 18 others said to spill; fitted to every other one, 13 of 14 others.
"""

# Registers of a thread for each unit of a feature: of registers that are alive, of elements, or of each one.
WEIGHTS: dict[str, dict[str, float]] = {
    "ONE_SHOT": {
        "elements": 0.05,
        "rows": 5.484,
        "several_rows": 4.996,
        "waiting": 0.098,
        "alive": 0.313,
        "loaded": 0.144,
        "loads": 3.783,
        "stores": 1.696,
        "row_loads": 5.409,
        "reductions": 4.155,
        "converted": 0.183,
        "pieces": 1.497,
        "lone_rows": 10.294,
        "unaligned": 0.155,
    },
    "ONE_SHOT_TILES": {
        "base": 62.0,
    },
    "LOOP": {
        "waiting": 0.422,
        "alive": 0.217,
        "loaded": 2.535,
        "stores": 21.004,
        "adders": 19.172,
        "row_loads": 21.152,
        "reductions": 1.924,
        "staged": 4.34,
        "blocks": 2.456,
        "unaligned": 1.486,
        "narrow": 6.41,
    },
    "COLUMN": {
        "elements": 0.031,
        "columns": 1.083,
        "rows": 0.604,
        "several_rows": 6.934,
        "alive": 0.373,
        "sums": 0.937,
        "invariant": 0.014,
        "loaded": 0.648,
        "loads": 1.701,
        "stores": 10.217,
        "adders": 11.0,
        "converted": 1.126,
        "unaligned": 1.022,
    },
    "COLUMN_WHOLE": {
        "base": 14.672,
        "elements": 0.093,
        "alive": 0.385,
        "sums": 0.85,
        "stores": 18.038,
    },
    "STREAM": {
        "elements": 0.287,
        "rows": 12.977,
        "waiting": 0.611,
        "alive": 0.04,
        "sums": 0.719,
        "lone_sums": 0.038,
        "invariant": 0.991,
        "loaded": 0.499,
        "loads": 1.551,
        "stores": 0.501,
        "adders": 0.868,
        "row_loads": 8.463,
        "converted": 0.992,
        "pieces": 0.266,
        "lone_rows": 1.003,
        "finish": 0.149,
        "segmented": 0.718,
        "staged": 0.387,
        "staged_elements": 0.128,
        "narrow": 0.316,
    },
    "STREAM_TILES": {
        "alive": 0.204,
        "sums": 0.843,
        "loaded": 0.51,
        "adders": 15.633,
        "row_loads": 13.232,
        "pieces": 0.582,
        "unaligned": 0.035,
    },
}
# The share of all registers beyond which a kernel is said to spill, by architecture.
SPILLING = {
    "ONE_SHOT": {90: 0.78, 100: 0.78},
    "ONE_SHOT_TILES": {90: 1.0, 100: 1.0},
    "LOOP": {90: 0.95, 100: 0.95},
    "COLUMN": {90: 0.86, 100: 0.86},
    "COLUMN_WHOLE": {90: 1.11, 100: 1.11},
    "STREAM": {90: 0.83, 100: 0.83},
    "STREAM_TILES": {90: 0.93, 100: 0.93},
}
# The share of the registers that it wants with which a kernel can do.
FEWEST = {"ONE_SHOT": 0.85, "ONE_SHOT_TILES": 1.0, "LOOP": 0.8, "COLUMN": 0.8, "COLUMN_WHOLE": 0.9, "STREAM": 0.95, "STREAM_TILES": 0.85}
