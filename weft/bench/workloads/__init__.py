"""The named workloads: functions of tensors that reduce along rows, along columns, or along both.

Each is a plain PyTorch function of `[M, N]` data (of `[B, T, N]` or `[B, H, T, D]` data with as many rows where it is
about batches or heads). Backwards spell out what autograd computes: in float32 (float64 for float64 data), rounded to
the dtype of the data at the end, with the statistics that the forward saved as inputs. Tests, benchmarks and
documentation all take them from `WORKLOADS`.
"""

from weft.bench.workloads.columns import COLUMNS
from weft.bench.workloads.losses import LOSSES
from weft.bench.workloads.modulated import MODULATED
from weft.bench.workloads.norms import NORMS
from weft.bench.workloads.workload import Workload

__all__ = ["WORKLOADS", "Workload"]

WORKLOADS: dict[str, Workload] = {w.name: w for w in (*NORMS, *MODULATED, *LOSSES, *COLUMNS)}
"""Every workload by its name."""
