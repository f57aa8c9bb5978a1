"""Where in the user's program a node comes from."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from torch import fx

_FRAME = re.compile(r'File "(?P<file>[^"]+)", line (?P<line>\d+), in (?P<function>[^\n]+)\n\s*(?P<code>[^\n]+)')
MAX_NODES = 64
"""How many nodes near one that has no line are asked for theirs, each way; the patterns of Inductor make fewer."""


def user_line(node: fx.Node) -> str | None:
    """``file.py:12: code`` of the innermost user frame of a node, or None if the graph does not say. A node that
    Inductor made from others has the line of the nearest node that reads what it computes, or else that it reads: what
    replaces the user's operations ends in one that keeps their line."""
    return own_line(node) or _nearest(node, lambda n: n.users) or _nearest(node, lambda n: n.all_input_nodes)


def user_lines(nodes: Sequence[fx.Node]) -> tuple[str, ...]:
    """The lines that some nodes have, in order, each once; if there is none, the one nearest to the last."""
    own = tuple(dict.fromkeys(line for node in nodes if (line := own_line(node))))
    near = None if own else user_line(nodes[-1])
    return own if near is None else (near,)


def own_line(node: fx.Node) -> str | None:
    """The line of the node itself."""
    trace = node.meta.get("stack_trace") or node.stack_trace
    frames = [m for m in _FRAME.finditer(trace or "") if "/torch/" not in m["file"]]
    if not frames:
        return None
    return f"{Path(frames[-1]['file']).name}:{frames[-1]['line']}: {frames[-1]['code'].strip()}"


def _nearest(node: fx.Node, neighbours: Callable[[fx.Node], Iterable[fx.Node]]) -> str | None:
    """The line of the nearest node that has one, in one direction."""
    seen, queue = {node}, deque([node])
    while queue and len(seen) < MAX_NODES:
        reached = queue.popleft()
        if (line := own_line(reached)) is not None:
            return line
        fresh = [n for n in neighbours(reached) if n not in seen]
        seen.update(fresh)
        queue += fresh
    return None
