"""Weights of the model of registers in ``plan/resources.py``; written by ``python -m weft.bench.ptxas_fit``.

Fitted to ``calibration/ptxas_sm90.csv``, what ptxas of Triton 3.6 gives kernels for sm_90 and sm_100.

ONE_SHOT: 407 of 430 kernels within 16 registers or 15 %, 300 of 312 that a planner chose; of 2 that spill 0 said to
fit, 0 others said to spill; fitted to every other one, 194 of 215 others.
LOOP: 43 of 48 kernels within 16 registers or 15 %, 2 of 2 that a planner chose; of 3 that spill 0 said to fit, 0
others said to spill; fitted to every other one, 14 of 23 others.
COLUMN: 119 of 139 kernels within 16 registers or 15 %, 76 of 76 that a planner chose; of 6 that spill 0 said to fit,
9 others said to spill; fitted to every other one, 53 of 68 others.
STREAM: 630 of 759 kernels within 16 registers or 15 %, 251 of 279 that a planner chose; of 99 that spill 0 said to
fit, 58 others said to spill; fitted to every other one, 290 of 377 others.
"""

# Registers of a thread for each unit of a feature: of registers that are alive, of elements, or of each one.
WEIGHTS: dict[str, dict[str, float]] = {
    "ONE_SHOT": {
        "base": 1.653,
        "elements": 0.032,
        "columns": 0.208,
        "rows": 1.292,
        "waiting": 0.442,
        "alive": 0.171,
        "loaded": 0.202,
        "loads": 1.684,
        "stores": 0.041,
        "row_loads": 9.358,
        "reductions": 4.145,
        "converted": 0.271,
        "pieces": 5.332,
        "lone_rows": 15.914,
        "wide": 3.0,
        "unaligned": 0.67,
        "narrow": 0.124,
    },
    "LOOP": {
        "waiting": 0.619,
        "alive": 0.334,
        "loaded": 0.459,
        "loads": 6.191,
        "stores": 6.68,
        "row_loads": 2.733,
        "wide": 7.531,
        "staged": 18.707,
        "staged_elements": 0.046,
        "remainder": 12.223,
        "unaligned": 2.368,
        "narrow": 0.197,
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
}
# The share of all registers beyond which a kernel is said to spill.
SPILLING = {"ONE_SHOT": 1.11, "LOOP": 1.07, "COLUMN": 1.0, "STREAM": 1.04}
# The share of the registers that it wants with which a kernel can do.
FEWEST = {"ONE_SHOT": 0.9, "LOOP": 0.85, "COLUMN": 1.0, "STREAM": 0.95}
