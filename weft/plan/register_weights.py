"""Weights of the model of registers in ``plan/resources.py``; written by ``python -m weft.bench.ptxas_fit``.

Fitted to ``calibration/ptxas_sm90.csv``, what ptxas of Triton 3.6 gives kernels for sm_90 and sm_100.

ONE_SHOT: 977 of 1046 kernels within 16 registers or 15 %, 676 of 703 that were chosen; of 3 that spill 0 said to fit,
0 others said to spill;   fitted to every other one, 476 of 524 others. LOOP: 144 of 194 kernels within 16 registers
or 15 %, 5 of 5 that were chosen; of 13 that spill 0 said to fit, 29 others said to spill;   fitted to every other
one, 64 of 95 others. COLUMN: 300 of 349 kernels within 16 registers or 15 %, 162 of 163 that were chosen; of 21 that
spill 0 said to fit, 57 others said to spill;   fitted to every other one, 146 of 175 others. STREAM: 904 of 1111
kernels within 16 registers or 15 %, 589 of 701 that were chosen; of 96 that spill 0 said to fit, 149 others said to
spill;   fitted to every other one, 433 of 554 others.
"""

# Registers of a thread for each unit of a feature: of registers that are alive, of elements, or of each one.
WEIGHTS: dict[str, dict[str, float]] = {
    "ONE_SHOT": {
        "base": 13.216,
        "elements": 0.153,
        "columns": 0.293,
        "rows": 1.044,
        "waiting": 0.633,
        "alive": 0.054,
        "loaded": 0.138,
        "row_loads": 6.576,
        "reductions": 0.147,
        "converted": 0.235,
        "pieces": 2.034,
        "lone_rows": 13.579,
        "wide": 0.538,
        "unaligned": 0.674,
        "narrow": 0.113,
    },
    "LOOP": {
        "waiting": 1.584,
        "loaded": 0.66,
        "loads": 3.259,
        "stores": 1.058,
        "row_loads": 2.09,
        "wide": 1.877,
        "staged": 0.408,
        "staged_elements": 0.713,
        "blocks": 6.543,
        "remainder": 35.213,
        "unaligned": 0.664,
        "narrow": 0.566,
    },
    "COLUMN": {
        "rows": 3.906,
        "alive": 0.429,
        "sums": 0.391,
        "stores": 17.443,
        "adders": 12.802,
        "row_loads": 0.18,
        "converted": 1.419,
        "segmented": 15.802,
        "wide": 24.377,
        "unaligned": 1.041,
    },
    "STREAM": {
        "elements": 0.2,
        "columns": 0.492,
        "rows": 7.263,
        "several_rows": 7.238,
        "waiting": 0.649,
        "alive": 0.173,
        "sums": 0.542,
        "invariant": 1.537,
        "stores": 0.685,
        "adders": 10.357,
        "converted": 0.611,
        "pieces": 2.097,
        "lone_rows": 2.425,
        "finish": 0.103,
        "segmented": 0.111,
        "wide": 23.656,
    },
}
# The share of all registers beyond which a kernel is said to spill.
SPILLING = {"ONE_SHOT": 1.11, "LOOP": 0.7, "COLUMN": 0.8, "STREAM": 0.93}
# The share of the registers that it wants with which a kernel can do.
FEWEST = {"ONE_SHOT": 0.9, "LOOP": 0.85, "COLUMN": 0.95, "STREAM": 0.9}
