"""Weights of the model of registers in ``plan/resources.py``; written by ``python -m weft.bench.ptxas_fit``.

Fitted to ``calibration/ptxas_sm90.csv``, what ptxas of Triton 3.6 gives kernels for sm_90 and sm_100.

ONE_SHOT: 407 of 430 kernels within 16 registers or 15 %, 300 of 312 that a planner chose; of 2 that spill 0 said to
fit, 0 others said to spill; fitted to every other one, 194 of 215 others.
LOOP: 43 of 48 kernels within 16 registers or 15 %, 2 of 2 that a planner chose; of 3 that spill 0 said to fit, 0
others said to spill; fitted to every other one, 14 of 23 others.
COLUMN: 122 of 139 kernels within 16 registers or 15 %, 76 of 76 that a planner chose; of 6 that spill 0 said to fit,
7 others said to spill; fitted to every other one, 51 of 68 others.
STREAM: 434 of 501 kernels within 16 registers or 15 %, 254 of 279 that a planner chose; of 39 that spill 0 said to
fit, 38 others said to spill; fitted to every other one, 207 of 251 others.
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
        "base": 2.018,
        "elements": 0.102,
        "columns": 0.557,
        "rows": 7.703,
        "several_rows": 5.281,
        "waiting": 0.357,
        "alive": 0.368,
        "sums": 0.311,
        "lone_sums": 0.354,
        "invariant": 1.456,
        "loads": 1.298,
        "adders": 9.534,
        "converted": 0.628,
        "pieces": 2.062,
        "lone_rows": 3.711,
        "segmented": 5.022,
        "wide": 16.1,
    },
}
# The share of all registers beyond which a kernel is said to spill.
SPILLING = {"ONE_SHOT": 1.11, "LOOP": 1.07, "COLUMN": 1.07, "STREAM": 1.07}
# The share of the registers that it wants with which a kernel can do.
FEWEST = {"ONE_SHOT": 0.9, "LOOP": 0.85, "COLUMN": 0.9, "STREAM": 0.9}
