"""Weights of the model of registers in ``plan/resources.py``; written by ``python -m weft.bench.ptxas_fit``.

Fitted to ``calibration/ptxas_sm90.csv``, what ptxas of Triton 3.6 gives kernels for sm_90 and sm_100.

ONE_SHOT: 593 of 622 kernels within 16 registers or 15 %, 300 of 312 that a planner chose; of 2 that spill 0 said to
fit, 0 others said to spill; fitted to every other one, 287 of 311 others.
LOOP: 44 of 48 kernels within 16 registers or 15 %, 2 of 2 that a planner chose; of 3 that spill 0 said to fit, 0
others said to spill; fitted to every other one, 15 of 23 others.
COLUMN: 119 of 139 kernels within 16 registers or 15 %, 76 of 76 that a planner chose; of 6 that spill 0 said to fit,
9 others said to spill; fitted to every other one, 53 of 68 others.
COLUMN_WHOLE: 344 of 468 kernels within 16 registers or 15 %, 0 of 0 that a planner chose; of 0 that spill 0 said to
fit, 0 others said to spill; fitted to every other one, 156 of 234 others.
STREAM: 630 of 759 kernels within 16 registers or 15 %, 251 of 279 that a planner chose; of 99 that spill 0 said to
fit, 58 others said to spill; fitted to every other one, 290 of 377 others.
STREAM_TILES: 723 of 901 kernels within 16 registers or 15 %, 0 of 0 that a planner chose; of 69 that spill 0 said to
fit, 104 others said to spill; fitted to every other one, 362 of 446 others.
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
        "waiting": 0.132,
        "alive": 0.275,
        "loaded": 0.637,
        "loads": 5.132,
        "stores": 0.508,
        "row_loads": 2.588,
        "reductions": 3.001,
        "wide": 13.908,
        "staged": 17.718,
        "staged_elements": 0.312,
        "blocks": 1.147,
        "remainder": 17.236,
        "unaligned": 2.231,
        "narrow": 0.001,
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
        "base": 0.375,
        "alive": 0.484,
        "sums": 0.805,
        "loads": 2.5,
        "stores": 31.812,
        "adders": 2.812,
        "converted": 0.43,
        "segmented": 1.211,
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
        "base": 0.209,
        "elements": 1.243,
        "waiting": 0.782,
        "sums": 0.636,
        "loads": 0.714,
        "row_loads": 14.177,
        "reductions": 7.005,
        "lone_rows": 1.073,
        "finish": 0.186,
        "segmented": 19.518,
    },
}
# The share of all registers beyond which a kernel is said to spill, by architecture.
SPILLING = {
    "ONE_SHOT": {90: 1.11, 100: 1.11},
    "LOOP": {90: 1.07, 100: 1.07},
    "COLUMN": {90: 1.0, 100: 1.0},
    "COLUMN_WHOLE": {90: 1.25, 100: 1.25},
    "STREAM": {90: 1.04, 100: 1.04},
    "STREAM_TILES": {90: 1.19, 100: 0.82},
}
# The share of the registers that it wants with which a kernel can do.
FEWEST = {"ONE_SHOT": 0.9, "LOOP": 0.8, "COLUMN": 1.0, "COLUMN_WHOLE": 0.8, "STREAM": 0.95, "STREAM_TILES": 0.8}
