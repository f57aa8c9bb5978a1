"""Weights of the model of registers in ``plan/resources.py``; written by ``python -m weft.bench.ptxas_fit``.

Fitted to ``calibration/ptxas_sm90.csv``, what ptxas of Triton 3.6 gives kernels for sm_90 and sm_100.
ONE_SHOT: 274 of 302 kernels within 16 registers or 15 %; of 2 that spill 0 are said to fit, 2 that fit are said to spill.
LOOP: 235 of 320 kernels within 16 registers or 15 %; of 0 that spill 0 are said to fit, 0 that fit are said to spill.
COLUMN: 183 of 224 kernels within 16 registers or 15 %; of 17 that spill 0 are said to fit, 11 that fit are said to spill.
STREAM: 225 of 290 kernels within 16 registers or 15 %; of 94 that spill 0 are said to fit, 24 that fit are said to spill.
"""

# Registers of a thread for each unit of a feature: of registers that are alive, of elements, or of each one.
WEIGHTS: dict[str, dict[str, float]] = {
    "ONE_SHOT": {
        "base": 14.386,
        "elements": 0.088,
        "columns": 0.38,
        "row_values": 1.765,
        "across": 0.614,
        "alive": 0.042,
        "loaded": 0.156,
        "row_loads": 3.506,
        "converted": 0.243,
        "pieces": 3.846,
        "wide": 5.062,
        "unaligned": 0.761,
    },
    "LOOP": {
        "across": 1.175,
        "alive": 0.394,
        "loads": 0.476,
        "staged": 3.497,
        "staged_elements": 0.281,
        "blocks": 7.534,
        "remainder": 6.464,
        "unaligned": 0.259,
    },
    "COLUMN": {
        "rows": 0.129,
        "alive": 0.448,
        "sums": 0.614,
        "loads": 0.424,
        "stores": 18.015,
        "adders": 14.172,
        "row_loads": 3.702,
        "converted": 0.066,
        "wide": 17.036,
        "unaligned": 0.825,
    },
    "STREAM": {
        "base": 7.607,
        "elements": 0.266,
        "columns": 0.242,
        "rows": 3.854,
        "across": 0.399,
        "alive": 0.237,
        "sums": 0.445,
        "invariant": 1.249,
        "loaded": 0.017,
        "loads": 5.578,
        "adders": 3.525,
        "row_loads": 1.831,
        "reductions": 3.556,
        "converted": 1.469,
        "pieces": 4.772,
        "wide": 10.41,
    },
}
# The share of all registers beyond which a kernel is said to spill.
SPILLING = {"ONE_SHOT": 1.0, "LOOP": 1.0, "COLUMN": 0.84, "STREAM": 0.95}
