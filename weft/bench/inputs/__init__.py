"""Inputs of the workloads: random ones for timing and accuracy, exact ones that find a lost row or column.

Exact inputs are small integers and powers of two, chosen so that every mean divides evenly and every intermediate,
partial sums included, is exactly representable in float32. Any order of summation then gives the bits of the float64
result rounded once, so tests compare with `==` where a tolerance would hide a missing row.

Every function takes the names of the tensors it is to make, in order, and the logical shape `(M, N)`. The names:

| name | shape | dtype | what |
|---|---|---|---|
| `x`, `residual`, `dy`, `dresidual` | `[M, N]` | asked for | data, incoming gradients |
| `y`, `log_y` | `[M, N]` | asked for | saved outputs of softmax and of log-softmax |
| `weight`, `bias` | `[N]` | asked for | affine parameters of a norm |
| `mean`, `rstd` | `[M, 1]` | float32, or float64 where that is asked for | saved statistics of `x` |
| `flat_mean` | `[M]` | as `mean` | the same mean before its broadcast |
| `scale`, `shift` | `[B, N]` | asked for | modulation of a norm's result, one for each batch element |
| `target` | `[M]` | int64 | the right column of each row, or `IGNORED` |
| `maximum`, `log_total` | `[M, 1]` | as `mean` | largest logit of a row; log of the sum of `exp(x - maximum)` |
| `count`, `dloss` | `[]` | as `mean` | number of targets that are not ignored; gradient of the loss |

With modulation, rows are `[B, T]`: `batch_and_sequence` makes both from M. `per_head` makes them `[B, H, T]`.
"""

from weft.bench.inputs.columns import exact_batch_norm_inputs, exact_gelu_inputs, exact_sum_inputs
from weft.bench.inputs.kinds import (
    IGNORED,
    NORM_EPS,
    Device,
    InputMaker,
    Shape,
    batch_and_sequence,
    batch_sequence_heads,
    statistics_dtype,
)
from weft.bench.inputs.losses import (
    exact_cross_entropy_inputs,
    exact_log_softmax_inputs,
    exact_softmax_inputs,
    random_cross_entropy_inputs,
    random_softmax_inputs,
)
from weft.bench.inputs.modulated import (
    exact_modulated_backward_inputs,
    exact_modulated_forward_inputs,
    per_head,
    random_modulated_inputs,
)
from weft.bench.inputs.norms import exact_norm_backward_inputs, exact_norm_forward_inputs, random_norm_inputs

__all__ = [
    "IGNORED",
    "NORM_EPS",
    "Device",
    "InputMaker",
    "Shape",
    "batch_and_sequence",
    "batch_sequence_heads",
    "exact_batch_norm_inputs",
    "exact_cross_entropy_inputs",
    "exact_gelu_inputs",
    "exact_log_softmax_inputs",
    "exact_modulated_backward_inputs",
    "exact_modulated_forward_inputs",
    "exact_norm_backward_inputs",
    "exact_norm_forward_inputs",
    "exact_softmax_inputs",
    "exact_sum_inputs",
    "per_head",
    "random_cross_entropy_inputs",
    "random_modulated_inputs",
    "random_norm_inputs",
    "random_softmax_inputs",
    "statistics_dtype",
]
