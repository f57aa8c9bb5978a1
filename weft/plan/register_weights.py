"""Weights of the model of registers in ``plan/resources.py``; written by ``python -m weft.bench.ptxas_fit``.

Fitted to ``calibration/ptxas_sm90.csv``, what ptxas of Triton 3.6 gives kernels for sm_90 and sm_100.
ONE_SHOT: 270 of 302 kernels within 16 registers or 15 %; of 3 that spill 0 are said to fit, 77 that fit are said to spill.
LOOP: 236 of 316 kernels within 16 registers or 15 %; of 0 that spill 0 are said to fit, 0 that fit are said to spill.
COLUMN: 180 of 221 kernels within 16 registers or 15 %; of 5 that spill 0 are said to fit, 107 that fit are said to spill.
STREAM: 222 of 289 kernels within 16 registers or 15 %; of 44 that spill 0 are said to fit, 12 that fit are said to spill.
"""

# Registers of a thread for each unit of a feature: of registers that are alive, of elements, or of each one.
WEIGHTS: dict[str, dict[str, float]] = {
    "ONE_SHOT": {
        "base": 14.288,
        "columns": 0.377,
        "row_values": 1.678,
        "across": 0.576,
        "alive": 0.105,
        "loaded": 0.154,
        "row_loads": 3.794,
        "converted": 0.192,
        "pieces": 3.55,
        "wide": 6.754,
    },
    "LOOP": {
        "across": 1.137,
        "alive": 0.386,
        "loaded": 0.056,
        "staged": 0.341,
        "staged_elements": 0.403,
        "blocks": 7.691,
        "remainder": 8.137,
    },
    "COLUMN": {
        "base": 16.8,
        "elements": 0.135,
        "alive": 0.315,
        "sums": 0.742,
        "stores": 17.74,
        "adders": 5.6,
        "row_loads": 6.144,
        "wide": 16.595,
    },
    "STREAM": {
        "base": 5.293,
        "elements": 0.247,
        "columns": 0.271,
        "rows": 4.347,
        "across": 0.412,
        "alive": 0.167,
        "sums": 0.528,
        "invariant": 1.409,
        "loaded": 0.048,
        "loads": 6.521,
        "adders": 0.451,
        "row_loads": 1.158,
        "reductions": 7.256,
        "converted": 1.474,
        "pieces": 7.054,
        "wide": 11.277,
    },
}
# The share of all registers beyond which a kernel is said to spill.
SPILLING = {"ONE_SHOT": 0.39, "LOOP": 1.0, "COLUMN": 0.32, "STREAM": 1.0}
