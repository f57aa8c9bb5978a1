"""Weights of the model of registers in ``plan/resources.py``; written by ``python -m weft.bench.ptxas_fit``.

Fitted to ``calibration/ptxas_sm90.csv``, what ptxas of Triton 3.6 gives kernels for sm_90 and sm_100.

ONE_SHOT: 593 of 622 kernels within 16 registers or 15 %, 300 of 312 that a planner chose; of 2 that spill 0 said to
fit, 0 others said to spill; fitted to every other one, 283 of 311 others.
LOOP: 43 of 48 kernels within 16 registers or 15 %, 2 of 2 that a planner chose; of 3 that spill 0 said to fit, 0
others said to spill; fitted to every other one, 15 of 23 others.
COLUMN: 119 of 139 kernels within 16 registers or 15 %, 76 of 76 that a planner chose; of 6 that spill 0 said to fit,
9 others said to spill; fitted to every other one, 53 of 68 others.
COLUMN_WHOLE: 334 of 468 kernels within 16 registers or 15 %, 0 of 0 that a planner chose; of 0 that spill 0 said to
fit, 0 others said to spill; fitted to every other one, 156 of 234 others.
STREAM: 630 of 759 kernels within 16 registers or 15 %, 251 of 279 that a planner chose; of 99 that spill 0 said to
fit, 58 others said to spill; fitted to every other one, 290 of 377 others.
STREAM_TILES: 603 of 750 kernels within 16 registers or 15 %, 0 of 0 that a planner chose; of 48 that spill 0 said to
fit, 80 others said to spill; fitted to every other one, 304 of 372 others.
"""

# Registers of a thread for each unit of a feature: of registers that are alive, of elements, or of each one.
WEIGHTS: dict[str, dict[str, float]] = {
    "ONE_SHOT": {
        "base": 0.666,
        "elements": 0.247,
        "columns": 0.168,
        "rows": 0.734,
        "waiting": 0.525,
        "alive": 0.056,
        "beside": 1.127,
        "loaded": 0.243,
        "loads": 1.667,
        "row_loads": 9.611,
        "reductions": 5.307,
        "converted": 0.274,
        "pieces": 5.954,
        "lone_rows": 11.783,
        "wide": 3.248,
        "unaligned": 0.738,
        "narrow": 0.143,
    },
    "LOOP": {
        "waiting": 0.593,
        "alive": 0.326,
        "loaded": 0.464,
        "loads": 6.183,
        "stores": 7.082,
        "row_loads": 2.933,
        "wide": 7.651,
        "staged": 18.014,
        "staged_elements": 0.084,
        "remainder": 12.315,
        "unaligned": 2.349,
        "narrow": 0.186,
    },
    "COLUMN": {
        "elements": 0.056,
        "rows": 8.633,
        "alive": 0.319,
        "sums": 0.062,
        "invariant": 2.701,
        "stores": 30.278,
        "adders": 17.611,
        "row_loads": 1.389,
        "converted": 0.531,
        "segmented": 13.0,
        "wide": 21.0,
        "unaligned": 1.85,
    },
    "COLUMN_WHOLE": {
        "base": 7.687,
        "elements": 0.003,
        "rows": 0.991,
        "alive": 0.411,
        "sums": 0.637,
        "loaded": 0.132,
        "stores": 27.614,
        "adders": 2.032,
        "converted": 0.645,
    },
    "STREAM": {
        "elements": 0.181,
        "columns": 0.3,
        "rows": 5.891,
        "several_rows": 1.979,
        "waiting": 0.184,
        "alive": 0.416,
        "sums": 0.267,
        "lone_sums": 0.532,
        "invariant": 1.593,
        "loaded": 0.433,
        "adders": 8.415,
        "row_loads": 0.029,
        "reductions": 1.794,
        "converted": 0.976,
        "segmented": 2.752,
        "wide": 16.512,
    },
    "STREAM_TILES": {
        "base": 1.079,
        "elements": 1.199,
        "waiting": 0.851,
        "sums": 0.738,
        "loads": 2.571,
        "row_loads": 9.136,
        "reductions": 8.361,
        "lone_rows": 0.994,
        "finish": 0.062,
        "segmented": 11.228,
    },
}
# The share of all registers beyond which a kernel is said to spill, by architecture.
SPILLING = {
    "ONE_SHOT": {90: 1.11, 100: 1.11},
    "LOOP": {90: 1.07, 100: 1.07},
    "COLUMN": {90: 1.0, 100: 1.0},
    "COLUMN_WHOLE": {90: 1.17, 100: 1.17},
    "STREAM": {90: 1.04, 100: 1.04},
    "STREAM_TILES": {90: 1.14, 100: 0.8},
}
# The share of the registers that it wants with which a kernel can do.
FEWEST = {"ONE_SHOT": 0.9, "LOOP": 0.85, "COLUMN": 1.0, "COLUMN_WHOLE": 0.85, "STREAM": 0.95, "STREAM_TILES": 0.85}
