"""Nodes for run-time sizes: an expression over the graph's symbols as arithmetic on nodes that hold them."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import sympy
import torch
from torch import fx
from torch.utils._sympy.functions import FloorDiv, Max

from weft.capture.refine import Extent

aten = torch.ops.aten


_FUNCTIONS: tuple[tuple[type, Callable[..., Any]], ...] = (
    (sympy.Add, operator.add),
    (sympy.Mul, operator.mul),
    (Max, torch.sym_max),
    (FloorDiv, operator.floordiv),
)


class UnknownSymbolError(Exception):
    """No input of the graph has this size."""


class SizeNodes:
    """Finds or makes the node of an expression. New nodes go right after the placeholders."""

    def __init__(self, graph: fx.Graph) -> None:
        self._graph = graph
        self._nodes: dict[Any, fx.Node] = {}
        self._placeholders = [node for node in graph.nodes if node.op == "placeholder"]
        self._anchor = self._placeholders[-1] if self._placeholders else None
        for node in self._placeholders:
            value = node.meta.get("val")
            if isinstance(value, torch.SymInt):
                self._nodes.setdefault(value.node.expr, node)

    def get(self, expression: Extent) -> int | fx.Node:
        """An int for a number, else a node with a ``torch.SymInt``. Raises UnknownSymbolError."""
        if isinstance(expression, int) or expression.is_Integer:
            return int(expression)
        if expression in self._nodes:
            return self._nodes[expression]
        self._nodes[expression] = self._make(expression)
        return self._nodes[expression]

    def check(self, expression: Extent) -> None:
        """Raises UnknownSymbolError if ``get`` would; changes nothing."""
        if isinstance(expression, int) or expression.is_Integer or expression in self._nodes:
            return
        if isinstance(expression, sympy.Symbol):
            self._find_axis(expression)
        else:
            for term in _operation(expression)[1]:
                self.check(term)

    def inserting(self) -> AbstractContextManager[None]:
        """Puts nodes behind those of the sizes known so far, in front of all that compute something."""
        if self._anchor is None:
            return self._graph.inserting_before(next(iter(self._graph.nodes)))
        return self._graph.inserting_after(self._anchor)

    def _make(self, expression: sympy.Expr) -> fx.Node:
        if isinstance(expression, sympy.Symbol):
            return self._call(aten.sym_size.int, *self._find_axis(expression))
        function, terms = _operation(expression)
        result, *others = map(self.get, terms)
        for other in others:
            result = self._call(function, result, other)
        assert isinstance(result, fx.Node)
        return result

    def _find_axis(self, symbol: sympy.Symbol) -> tuple[fx.Node, int]:
        """An input of the graph and its axis of that size."""
        for node in self._placeholders:
            value = node.meta.get("val")
            if isinstance(value, torch.Tensor):
                for axis, size in enumerate(value.shape):
                    if isinstance(size, torch.SymInt) and size.node.expr == symbol:
                        return node, axis
        raise UnknownSymbolError(f"no input of the graph has the size {symbol}")

    def _call(self, function: Any, *args: Any) -> fx.Node:
        assert self._anchor is not None
        with self._graph.inserting_after(self._anchor):
            node = self._graph.call_function(function, args)
        values = values_of(args)
        node.meta["val"] = values[0].shape[args[1]] if function is aten.sym_size.int else function(*values)
        self._anchor = node
        return node


def _operation(expression: sympy.Expr) -> tuple[Callable[..., Any], list[sympy.Expr]]:
    """The function, from left to right, of which terms an expression is. Raises UnknownSymbolError."""
    function = next((function for kind, function in _FUNCTIONS if isinstance(expression, kind)), None)
    if function is not None:
        return function, [arg for arg in expression.args if isinstance(arg, sympy.Expr)]
    if isinstance(expression, sympy.Pow) and expression.exp.is_Integer and expression.exp > 0:
        return operator.mul, [expression.base] * int(expression.exp)
    raise UnknownSymbolError(f"no node for the size {expression}")


def values_of(args: Sequence[Any]) -> list[Any]:
    """What arguments of a node are in the trace: numbers as they are, of nodes their values."""
    return [arg.meta["val"] if isinstance(arg, fx.Node) else arg for arg in args]


def symbol_hints(graph: fx.Graph) -> dict[Any, int]:
    """The sizes the graph was traced with, by symbol, as far as they are known."""
    found: dict[Any, int] = {}
    for node in graph.nodes:
        value = node.meta.get("val")
        for size in [value] if isinstance(value, torch.SymInt) else getattr(value, "shape", ()):
            if not isinstance(size, int) and isinstance(size.node.expr, sympy.Symbol) and size.node.has_hint():
                found[size.node.expr] = int(size.node.hint)
    return found
