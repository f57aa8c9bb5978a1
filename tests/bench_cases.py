"""Cases of ``weft bench`` that are small, and a protocol that is quick."""

from __future__ import annotations

import torch

from weft.bench.case import Case, workload_case
from weft.bench.measure import Protocol
from weft.bench.workloads import WORKLOADS

QUICK = Protocol(rounds=3, least_sample_s=1e-5)


def case_of(name: str, rows: int = 32, columns: int = 64, dtype: torch.dtype = torch.float32) -> Case:
    return workload_case(WORKLOADS[name], (rows, columns), dtype)
