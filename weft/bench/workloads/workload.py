"""What a workload is."""

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from weft.bench.inputs import InputMaker, Shape, statistics_dtype


@dataclass(frozen=True)
class Workload:
    """A function with what is needed to run, check and time it."""

    name: str
    fn: Callable[..., Tensor | tuple[Tensor, ...]]
    default_shape: Shape
    """Rows and columns of the data, as a large model has them."""
    make_inputs: InputMaker
    """Random inputs."""
    exact_inputs: InputMaker
    """Inputs whose outputs do not depend on the order of summation: see `weft.bench.inputs`. Some shapes have none:
    ValueError."""
    weight_outputs: tuple[int, ...]
    """Which outputs are gradients of weights, biases or modulations, that is, sums over rows (of a batch element)."""
    summary: str

    def outputs(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        """The outputs of `fn`, as a tuple even where there is only one."""
        result = self.fn(*inputs)
        return (result,) if isinstance(result, Tensor) else tuple(result)


def wide(value: Tensor) -> Tensor:
    """`value` in the dtype of computation: float32, or float64 for float64."""
    return value.to(statistics_dtype(value.dtype))
