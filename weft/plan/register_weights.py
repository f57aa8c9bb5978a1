"""Weights of the model of registers in ``plan/resources.py``; written by ``python -m weft.bench.ptxas_fit``.

Fitted to ``calibration/schedules``, what ptxas of Triton 3.6 gives kernels of sweeps over random shapes.

Weights are fitted to the first two thirds of these kernels, thresholds and what is said here to all.

ONE_SHOT: 3272 of 4070 kernels within 16 registers or 15 %, 372 of 457 that a planner chose; of 17 that spill 5 said
to fit, 33 others said to spill.
ONE_SHOT_TILES: 605 of 729 kernels within 16 registers or 15 %, 64 of 71 that a planner chose; of 43 that spill 2 said
to fit, 20 others said to spill.
LOOP: 1253 of 1950 kernels within 16 registers or 15 %, 20 of 41 that a planner chose; of 28 that spill 8 said to fit,
83 others said to spill.
COLUMN: 2111 of 2716 kernels within 16 registers or 15 %, 155 of 196 that a planner chose; of 112 that spill 12 said
to fit, 143 others said to spill.
COLUMN_WHOLE: 418 of 561 kernels within 16 registers or 15 %, 48 of 57 that a planner chose; of 0 that spill 0 said to
fit, 0 others said to spill.
STREAM: 3983 of 5428 kernels within 16 registers or 15 %, 171 of 210 that a planner chose; of 338 that spill 16 said
to fit, 333 others said to spill.
STREAM_TILES: 975 of 1356 kernels within 16 registers or 15 %, 22 of 30 that a planner chose; of 78 that spill 3 said
to fit, 153 others said to spill.
"""

# Registers of a thread for each unit of a feature: of registers that are alive, of elements, or of each one.
WEIGHTS: dict[str, dict[str, float]] = {
    "ONE_SHOT": {
        "rows": 9.219,
        "waiting": 0.231,
        "alive": 0.228,
        "beside": 0.019,
        "loaded": 0.322,
        "loads": 4.793,
        "row_loads": 6.265,
        "reductions": 0.845,
        "converted": 0.275,
        "pieces": 1.086,
        "lone_rows": 2.08,
        "unaligned": 0.406,
    },
    "ONE_SHOT_TILES": {
        "elements": 0.53,
        "waiting": 0.438,
        "beside": 1.323,
        "loaded": 0.127,
        "loads": 6.04,
        "stores": 8.18,
        "row_loads": 0.14,
        "pieces": 2.121,
        "lone_rows": 0.18,
        "unaligned": 0.432,
    },
    "LOOP": {
        "base": 22.482,
        "waiting": 0.383,
        "alive": 0.323,
        "sums": 0.041,
        "loads": 1.0,
        "stores": 2.258,
        "adders": 11.687,
        "row_loads": 4.282,
        "reductions": 7.097,
        "staged": 9.421,
        "staged_elements": 0.101,
        "unaligned": 5.927,
        "narrow": 0.762,
    },
    "COLUMN": {
        "rows": 2.408,
        "alive": 0.829,
        "sums": 0.491,
        "invariant": 1.404,
        "loaded": 0.092,
        "stores": 11.73,
        "adders": 14.1,
        "converted": 0.668,
        "segmented": 4.2,
        "unaligned": 1.488,
    },
    "COLUMN_WHOLE": {
        "base": 11.549,
        "rows": 0.025,
        "alive": 0.681,
        "stores": 17.795,
        "adders": 3.246,
        "unaligned": 0.889,
    },
    "STREAM": {
        "rows": 13.038,
        "waiting": 0.325,
        "alive": 0.126,
        "sums": 0.598,
        "lone_sums": 0.107,
        "invariant": 1.148,
        "loaded": 0.655,
        "loads": 0.335,
        "stores": 1.56,
        "adders": 4.146,
        "row_loads": 10.595,
        "converted": 0.696,
        "pieces": 2.095,
        "lone_rows": 1.284,
        "finish": 0.065,
        "staged": 1.672,
        "staged_elements": 0.266,
        "unaligned": 0.616,
    },
    "STREAM_TILES": {
        "elements": 0.066,
        "waiting": 0.493,
        "alive": 0.122,
        "sums": 1.139,
        "stores": 13.558,
        "adders": 3.735,
        "reductions": 6.014,
        "pieces": 5.109,
        "finish": 0.066,
        "segmented": 3.0,
        "staged_elements": 0.062,
        "unaligned": 1.782,
    },
}
# The share of all registers beyond which a kernel is said to spill.
SPILLING = {
    "ONE_SHOT": 0.97,
    "ONE_SHOT_TILES": 1.09,
    "LOOP": 0.87,
    "COLUMN": 1.01,
    "COLUMN_WHOLE": 1.12,
    "STREAM": 1.01,
    "STREAM_TILES": 0.94,
}
# The share of the registers that it wants with which a kernel can do.
FEWEST = {
    "ONE_SHOT": 0.85,
    "ONE_SHOT_TILES": 0.85,
    "LOOP": 0.8,
    "COLUMN": 0.9,
    "COLUMN_WHOLE": 0.9,
    "STREAM": 0.9,
    "STREAM_TILES": 0.9,
}
