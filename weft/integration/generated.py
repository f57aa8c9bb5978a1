"""How weft's operators stand in the code that TorchInductor generates: launches past PyTorch's dispatcher, and views of
memory that launches write over."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch.utils import _pytree as pytree

START = "weft_launch"
"""The name of ``launch.ready()`` in generated code."""
_IMPORTS = ("from weft.runtime import launch as _weft_launch", f"{START} = _weft_launch.ready()")


@cache
def register() -> None:
    """Have TorchInductor write ``weft::launch`` and ``weft::over`` as calls of functions in Python, where it writes
    Python; in C++ they stay what they are. Once a process, before a graph with either is lowered."""
    from torch._inductor import ir
    from torch._inductor.lowering import add_needs_realized_inputs, register_lowering
    from torch._inductor.virtualized import V

    class Launch(ir.FallbackKernel):
        """A launch: the operator's arguments for a function of the launcher."""

        def codegen(self, wrapper: Any) -> None:
            if not V.graph.cpp_wrapper:
                for line in _IMPORTS:
                    wrapper.add_import_once(line)
                self.python_kernel_name = START
            super().codegen(wrapper)

    class Over(ir.FallbackKernel):
        """A view, which TorchInductor writes without a call of an operator where it makes one itself. It then keeps the
        memory as long as either is read; a graph must not see it: what it writes where an input lies it would copy
        first."""

        def codegen(self, wrapper: Any) -> None:
            if not V.graph.cpp_wrapper:
                self.python_kernel_name = "reinterpret_tensor"
            super().codegen(wrapper)

        def codegen_args(self) -> list[str]:
            offset = [] if V.graph.cpp_wrapper else ["0"]
            return [*super().codegen_args(), *offset]

    def lowering(made: type[ir.FallbackKernel], operator: Any) -> Callable[..., Any]:
        def lower(*args: Any, **kwargs: Any) -> Any:
            node = made.create(operator, *args, **kwargs)
            return pytree.tree_map(lambda x: ir.TensorBox.create(x) if isinstance(x, ir.IRNode) else x, node)

        return lower

    weft, aten = torch.ops.weft, torch.ops.aten
    for operator, made, written in (
        (weft.launch.default, Launch, weft.launch.default),
        (weft.over.default, Over, aten.as_strided.default),
    ):
        add_needs_realized_inputs(operator)
        register_lowering(operator, type_promotion_kind=None)(lowering(made, written))
