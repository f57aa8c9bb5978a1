"""The slots of TorchInductor's configuration that passes over post-grad graphs and a partitioner are put into."""

from __future__ import annotations

from typing import Any

from torch import fx
from torch._inductor import config, custom_graph_pass
from torch._inductor.custom_graph_pass import CustomGraphPass

SLOT = "post_grad_custom_post_pass"
_TAKES_LISTS = hasattr(custom_graph_pass, "get_custom_graph_passes")  # from torch 2.13 on


def without_mix_order() -> dict[str, Any]:
    """What turns TorchInductor's own mix-order fusion off, which is known to be wrong, in releases that have it."""
    name = "triton.mix_order_reduction"
    return {name: False} if name in config._config else {}  # pyright: ignore[reportAttributeAccessIssue]


def partitioned(patches: dict[str, Any], own: Any) -> dict[str, Any]:
    """What makes TorchInductor divide a training step by weft's partitioner, unless the user has one."""
    name = "custom_partitioner_fn"
    chosen = patches[name] if name in patches else getattr(config, name)
    return {} if chosen is not None else {name: own}


def configured(patches: dict[str, Any]) -> list[Any]:
    """The passes of the user: those in the options of a compile, else those in TorchInductor's configuration."""
    found = patches[SLOT] if SLOT in patches else getattr(config, SLOT)
    if found is None:
        return []
    return list(found) if isinstance(found, list | tuple) else [found]


def in_turn(passes: list[Any]) -> Any:
    """What makes TorchInductor run these passes, one after the other: functions, or instances of ``CustomGraphPass``
    whose ``uuid`` is part of the keys of its cache. A graph that went through any other is not cached."""
    if len(passes) == 1:
        return passes[0]
    return passes if _TAKES_LISTS else _InTurn(passes)


class _InTurn(CustomGraphPass):
    """Several passes as the one that older releases take."""

    def __init__(self, passes: list[Any]) -> None:
        self.passes = passes

    def __call__(self, graph: fx.Graph) -> None:
        for each in self.passes:
            each(graph)

    def uuid(self) -> Any:
        """What identifies the passes; None if one of them has nothing."""
        found = [each.uuid() if isinstance(each, CustomGraphPass) else None for each in self.passes]
        return tuple(found) if all(found) else None
