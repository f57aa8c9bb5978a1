"""Weights of the model of registers in ``plan/resources.py``; written by ``python -m weft.bench.ptxas_fit``.

Fitted to ``calibration/ptxas_sm90.csv``, what ptxas of Triton 3.6 gives kernels for sm_90 and sm_100.

ONE_SHOT: 407 of 430 kernels within 16 registers or 15 %, 300 of 312 that a planner chose; of 2 that spill 0 said to
fit, 0 others said to spill; fitted to every other one, 194 of 215 others.
LOOP: 43 of 48 kernels within 16 registers or 15 %, 2 of 2 that a planner chose; of 3 that spill 0 said to fit, 0
others said to spill; fitted to every other one, 14 of 23 others.
COLUMN: 122 of 139 kernels within 16 registers or 15 %, 76 of 76 that a planner chose; of 6 that spill 0 said to fit,
7 others said to spill; fitted to every other one, 51 of 68 others.
STREAM: 629 of 759 kernels within 16 registers or 15 %, 250 of 279 that a planner chose; of 99 that spill 0 said to
fit, 65 others said to spill; fitted to every other one, 309 of 377 others.
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
        "elements": 0.09,
        "columns": 0.582,
        "rows": 6.48,
        "several_rows": 1.873,
        "waiting": 0.066,
        "alive": 0.427,
        "sums": 0.259,
        "lone_sums": 0.546,
        "invariant": 1.649,
        "loaded": 0.317,
        "adders": 7.979,
        "reductions": 4.363,
        "converted": 0.911,
        "lone_rows": 0.645,
        "segmented": 0.42,
        "wide": 16.904,
    },
}
# The share of all registers beyond which a kernel is said to spill.
SPILLING = {"ONE_SHOT": 1.11, "LOOP": 1.07, "COLUMN": 1.07, "STREAM": 1.01}
# The share of the registers that it wants with which a kernel can do.
FEWEST = {"ONE_SHOT": 0.9, "LOOP": 0.85, "COLUMN": 0.9, "STREAM": 0.95}
