"""Weights of the model of registers in ``plan/resources.py``; written by ``python -m weft.bench.ptxas_fit``.

Fitted to ``calibration/ptxas_sm90.csv``, what ptxas of Triton 3.6 gives kernels for sm_90 and sm_100.

ONE_SHOT: 1103 of 1179 kernels within 16 registers or 15 %, 803 of 836 that a planner chose; of 3 that spill 0 said to
fit, 0 others said to spill; fitted to every other one, 542 of 589 others.
LOOP: 139 of 194 kernels within 16 registers or 15 %, 5 of 5 that a planner chose; of 13 that spill 0 said to fit, 6
others said to spill; fitted to every other one, 63 of 101 others.
COLUMN: 287 of 356 kernels within 16 registers or 15 %, 162 of 170 that a planner chose; of 21 that spill 0 said to
fit, 52 others said to spill; fitted to every other one, 137 of 177 others.
STREAM: 946 of 1207 kernels within 16 registers or 15 %, 653 of 797 that a planner chose; of 110 that spill 0 said to
fit, 166 others said to spill; fitted to every other one, 447 of 598 others.
"""

# Registers of a thread for each unit of a feature: of registers that are alive, of elements, or of each one.
WEIGHTS: dict[str, dict[str, float]] = {
    "ONE_SHOT": {
        "base": 12.003,
        "elements": 0.116,
        "columns": 0.309,
        "rows": 1.203,
        "waiting": 0.638,
        "alive": 0.061,
        "loaded": 0.141,
        "row_loads": 6.716,
        "reductions": 0.278,
        "converted": 0.244,
        "pieces": 2.349,
        "lone_rows": 14.229,
        "wide": 2.0,
        "unaligned": 0.688,
        "narrow": 0.115,
    },
    "LOOP": {
        "waiting": 1.493,
        "loaded": 0.89,
        "loads": 5.265,
        "row_loads": 3.223,
        "wide": 6.753,
        "staged": 11.863,
        "staged_elements": 0.298,
        "blocks": 3.095,
        "remainder": 28.824,
        "unaligned": 3.504,
        "narrow": 0.937,
    },
    "COLUMN": {
        "alive": 0.658,
        "sums": 0.628,
        "stores": 16.515,
        "adders": 8.085,
        "converted": 2.591,
        "segmented": 25.176,
        "wide": 15.88,
        "unaligned": 1.574,
    },
    "STREAM": {
        "elements": 0.501,
        "columns": 0.366,
        "rows": 7.386,
        "several_rows": 2.569,
        "waiting": 0.796,
        "alive": 0.088,
        "sums": 0.525,
        "lone_sums": 0.407,
        "invariant": 1.881,
        "loads": 0.539,
        "stores": 3.837,
        "adders": 4.55,
        "reductions": 0.702,
        "converted": 0.922,
        "pieces": 9.432,
        "lone_rows": 2.774,
        "finish": 0.069,
        "wide": 28.058,
    },
}
# The share of all registers beyond which a kernel is said to spill.
SPILLING = {"ONE_SHOT": 1.11, "LOOP": 1.07, "COLUMN": 0.96, "STREAM": 1.0}
# The share of the registers that it wants with which a kernel can do.
FEWEST = {"ONE_SHOT": 0.9, "LOOP": 0.85, "COLUMN": 0.85, "STREAM": 0.95}
