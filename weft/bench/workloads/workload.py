"""What a workload is."""

from collections.abc import Callable
from dataclasses import dataclass
from inspect import signature

import torch
from torch import Tensor

from weft.bench.inputs import Device, InputMaker, Shape, random_norm_inputs, statistics_dtype


@dataclass(frozen=True)
class Workload:
    """A function with what is needed to run and time it. default_shape: rows and columns of the data, as a large model
    has them. inputs: what makes its random inputs. named: the names of these, where they are not those of the
    function's parameters."""

    fn: Callable[..., Tensor | tuple[Tensor, ...]]
    default_shape: Shape
    inputs: InputMaker = random_norm_inputs
    named: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        return self.fn.__name__

    @property
    def names(self) -> tuple[str, ...]:
        """What its inputs are; see ``weft.bench.inputs``."""
        return self.named or tuple(signature(self.fn).parameters)

    def make_inputs(
        self, shape: Shape, dtype: torch.dtype, device: Device = "cpu", seed: int = 0
    ) -> tuple[Tensor, ...]:
        """Random inputs. Raises ValueError for a shape that it does not have."""
        return self.inputs(self.names, shape, dtype, device, seed)

    def outputs(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        """The outputs of `fn`, as a tuple even where there is only one."""
        result = self.fn(*inputs)
        return (result,) if isinstance(result, Tensor) else tuple(result)


def wide(value: Tensor) -> Tensor:
    """`value` in the dtype of computation: float32, or float64 for float64."""
    return value.to(statistics_dtype(value.dtype))
