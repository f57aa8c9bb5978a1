"""Weights of the model of registers in ``plan/resources.py``; written by ``python -m weft.bench.ptxas_fit``.

Fitted to ``calibration/ptxas_sm90.csv``, what ptxas of Triton 3.6 gives kernels for sm_90 and sm_100.
ONE_SHOT: 416 of 447 kernels within 16 registers or 15 %; of 2 that spill 0 said to fit, 2 others said to spill.
LOOP: 248 of 321 kernels within 16 registers or 15 %; of 0 that spill 0 said to fit, 0 others said to spill.
COLUMN: 217 of 259 kernels within 16 registers or 15 %; of 18 that spill 0 said to fit, 24 others said to spill.
STREAM: 296 of 386 kernels within 16 registers or 15 %; of 94 that spill 0 said to fit, 39 others said to spill.
"""

# Registers of a thread for each unit of a feature: of registers that are alive, of elements, or of each one.
WEIGHTS: dict[str, dict[str, float]] = {
    "ONE_SHOT": {
        "base": 12.781,
        "columns": 0.386,
        "row_values": 1.81,
        "across": 0.591,
        "alive": 0.123,
        "loaded": 0.129,
        "loads": 0.001,
        "row_loads": 2.357,
        "converted": 0.244,
        "pieces": 6.108,
        "wide": 2.371,
        "unaligned": 0.83,
    },
    "LOOP": {
        "elements": 0.066,
        "across": 1.233,
        "alive": 0.361,
        "loaded": 0.023,
        "stores": 1.015,
        "reductions": 0.142,
        "staged": 2.862,
        "staged_elements": 0.45,
        "blocks": 6.717,
        "remainder": 4.407,
        "unaligned": 0.265,
    },
    "COLUMN": {
        "alive": 0.362,
        "sums": 0.58,
        "loaded": 0.35,
        "stores": 9.467,
        "adders": 13.797,
        "row_loads": 3.552,
        "converted": 0.178,
        "wide": 28.868,
        "unaligned": 0.845,
    },
    "STREAM": {
        "base": 13.11,
        "elements": 0.407,
        "columns": 0.288,
        "rows": 2.688,
        "across": 0.573,
        "alive": 0.031,
        "alive_in_few": 0.109,
        "sums": 0.418,
        "invariant": 1.245,
        "loaded": 0.175,
        "loads": 4.535,
        "adders": 2.826,
        "row_loads": 3.961,
        "reductions": 0.741,
        "converted": 1.693,
        "wide": 9.849,
    },
}
# The share of all registers beyond which a kernel is said to spill.
SPILLING = {"ONE_SHOT": 1.0, "LOOP": 1.0, "COLUMN": 0.75, "STREAM": 0.89}
