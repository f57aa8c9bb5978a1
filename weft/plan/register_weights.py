"""Weights of the model of registers in ``plan/resources.py``; written by ``python -m weft.bench.ptxas_fit``.

Fitted to ``calibration/ptxas_sm90.csv``, what ptxas of Triton 3.6 gives kernels for sm_90 and sm_100.

ONE_SHOT: 1098 of 1174 kernels within 16 registers or 15 %, 798 of 831 that a planner chose; of 3 that spill 0 said to
fit, 0 others said to spill;.
  fitted to every other one, 533 of 587 others.
LOOP: 141 of 194 kernels within 16 registers or 15 %, 5 of 5 that a planner chose; of 13 that spill 0 said to fit, 6
others said to spill;.
  fitted to every other one, 61 of 96 others.
COLUMN: 296 of 352 kernels within 16 registers or 15 %, 161 of 166 that a planner chose; of 21 that spill 0 said to
fit, 52 others said to spill;.
  fitted to every other one, 136 of 175 others.
STREAM: 939 of 1175 kernels within 16 registers or 15 %, 634 of 765 that a planner chose; of 110 that spill 0 said to
fit, 217 others said to spill;.
  fitted to every other one, 483 of 586 others.
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
        "waiting": 1.157,
        "alive": 0.048,
        "loaded": 0.884,
        "loads": 3.987,
        "row_loads": 4.214,
        "wide": 9.187,
        "staged": 10.94,
        "staged_elements": 0.125,
        "blocks": 3.04,
        "remainder": 27.951,
        "unaligned": 2.985,
        "narrow": 0.938,
    },
    "COLUMN": {
        "elements": 0.608,
        "rows": 1.0,
        "alive": 0.408,
        "sums": 0.475,
        "stores": 27.5,
        "adders": 14.5,
        "converted": 2.358,
        "segmented": 24.667,
        "wide": 9.0,
        "unaligned": 1.324,
    },
    "STREAM": {
        "elements": 0.572,
        "columns": 0.214,
        "rows": 6.852,
        "waiting": 0.898,
        "alive": 0.009,
        "sums": 0.625,
        "invariant": 1.726,
        "loaded": 0.082,
        "stores": 4.689,
        "adders": 4.459,
        "reductions": 3.193,
        "converted": 0.848,
        "pieces": 6.839,
        "lone_rows": 0.795,
        "finish": 0.085,
        "segmented": 0.312,
        "wide": 21.021,
    },
}
# The share of all registers beyond which a kernel is said to spill.
SPILLING = {"ONE_SHOT": 1.11, "LOOP": 0.99, "COLUMN": 0.93, "STREAM": 0.93}
# The share of the registers that it wants with which a kernel can do.
FEWEST = {"ONE_SHOT": 0.9, "LOOP": 0.9, "COLUMN": 0.85, "STREAM": 0.95}
