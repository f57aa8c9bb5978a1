"""Where in the user's program a node comes from."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import fx

_TORCH = re.compile(rf"{re.escape(str(Path(torch.__file__).parent))}/|.*-packages/torch/")
_FRAME = re.compile(r'File "(?P<file>[^"]+)", line (?P<line>\d+), in (?P<function>[^\n]+)\n\s*(?P<code>[^\n]+)')
_STEP = re.compile(r"\['?([^'\]]*)'?\]|\.?([^.\[]+)")
_NUMBER = re.compile(r"(?<![^.])\d+(?![^.])")
_ROOTS = ("self", "fn")
"""What dynamo calls the model itself: an own one, and one of torch's."""
_HOLDERS = ("_modules", "_parameters", "_buffers")
MAX_NODES = 64
"""How many nodes near one that says nothing are asked, each way; the patterns of Inductor make fewer."""


@dataclass(frozen=True)
class Place:
    """A part of the user's program. module: the path of the innermost module, as in ``layers.0.norm1``, or the class of
    the model itself, also in front of a number, as in ``Sequential.1``; line: ``file.py:12: code``. One of them may be
    empty: functions are in no module, and modules of torch have no line of the user's. With neither it is false."""

    module: str = ""
    line: str = ""

    def __bool__(self) -> bool:
        return bool(self.module or self.line)

    def __str__(self) -> str:
        return f"{self.module} ({self.line})" if self.module and self.line else self.module or self.line


def places(nodes: Sequence[fx.Node]) -> tuple[Place, ...]:
    """The places that some nodes have, in order, each once; if there is none, the one nearest to the last."""
    own = dict.fromkeys(filter(None, map(_own_place, nodes)))
    return tuple(own) or tuple(filter(None, map(place, nodes[-1:])))


def texts(found: Iterable[Place]) -> tuple[str, ...]:
    """Places as text, those of one line together: ``norms.0, linears.0 (model.py:12: x = x + linear(norm(x)))``."""
    modules: dict[str, list[str]] = {}
    for one in found:
        modules.setdefault(one.line, []).append(one.module)
    return tuple(str(Place(", ".join(compact(name for name in own if name)), line)) for line, own in modules.items())


def compact(names: Iterable[str]) -> list[str]:
    """Dotted names, each once; those that differ in their first number alone together: ``layers.0-11.norm1``, or
    ``layers.{0,2-4}.norm1``."""
    numbers: dict[tuple[str, str], set[int]] = {}
    for name in names:
        found = _NUMBER.search(name)
        around = (name[: found.start()], name[found.end() :]) if found else (name, "")
        numbers.setdefault(around, set()).update({int(found[0])} if found else ())
    return [before + _runs(sorted(own)) + after for (before, after), own in numbers.items()]


def _runs(numbers: Sequence[int]) -> str:
    """``0-2`` of 0, 1 and 2, ``{0,2-4}`` of 0, 2, 3 and 4; nothing of none."""
    starts = [n for n in numbers if n - 1 not in numbers]
    ends = [n for n in numbers if n + 1 not in numbers]
    runs = [f"{a}-{b}" if a < b else str(a) for a, b in zip(starts, ends, strict=True)]
    return f"{{{','.join(runs)}}}" if len(runs) > 1 else "".join(runs)


def origin(node: fx.Node) -> str | None:
    """The place of a node as text, or None if the graph does not say."""
    return str(place(node)) or None


def place(node: fx.Node) -> Place:
    """Where a node comes from; of one of a backward, what it is the gradient of. One that Inductor made from others has
    the place of the nearest node that reads what it computes, or else that it reads: what replaces the user's
    operations ends in one that keeps their place."""
    return _nearest(node, lambda n: n.users) or _nearest(node, lambda n: n.all_input_nodes)


def _nearest(node: fx.Node, neighbours: Callable[[fx.Node], Iterable[fx.Node]]) -> Place:
    """That of the node itself, or of the nearest one that has one, in one direction."""
    seen, queue = {node}, deque([node])
    while queue and len(seen) < MAX_NODES:
        reached = queue.popleft()
        if found := _own_place(reached):
            return found
        fresh = [n for n in neighbours(reached) if n not in seen]
        seen.update(fresh)
        queue += fresh
    return Place()


def _own_place(node: fx.Node) -> Place:
    """What the node itself says."""
    line = user_line(node) or ""
    stack = node.meta.get("nn_module_stack") or node.meta.get("fwd_nn_module_stack")
    if not stack:
        return Place(line=line)
    (outer, kind), *_, (inner, _) = [*stack.values()] * 2
    name = dotted(inner)
    model = "" if dotted(outer) else str(getattr(kind, "__name__", kind)).rpartition(".")[-1]
    if model and name[:1].isdigit():
        return Place(f"{model}.{name}", line)
    return Place(name if name or line else model, line)


def user_line(node: fx.Node) -> str | None:
    """``file.py:12: code`` of the innermost frame of a node itself outside torch, or None if it does not say."""
    trace = node.meta.get("stack_trace") or node.stack_trace
    frames = [m for m in _FRAME.finditer(trace or "") if not in_torch(m["file"])]
    if not frames:
        return None
    return f"{Path(frames[-1]['file']).name}:{frames[-1]['line']}: {frames[-1]['code'].strip()}"


def in_torch(file: str) -> bool:
    """Whether a file is of torch itself: of this installation, or of the one that a trace comes from."""
    return _TORCH.match(file) is not None


def dotted(source: str) -> str:
    """The user's name behind that of dynamo: ``L['self']._modules['norm']._parameters['weight']`` is ``norm.weight``.
    Empty for the model itself."""
    steps = [bracketed or plain for bracketed, plain in _STEP.findall(source)]
    steps = steps[1:] if steps[:1] in (["L"], ["G"]) else steps
    steps = steps[1:] if steps[:1] and steps[0] in _ROOTS else steps
    return ".".join(step for step in steps if step not in _HOLDERS)
