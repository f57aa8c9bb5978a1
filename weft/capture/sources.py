"""Where in the user's program a node comes from."""

from __future__ import annotations

import re
from pathlib import Path

from torch import fx

_FRAME = re.compile(r'File "(?P<file>[^"]+)", line (?P<line>\d+), in (?P<function>[^\n]+)\n\s*(?P<code>[^\n]+)')


def user_line(node: fx.Node) -> str | None:
    """``file.py:12: code`` of the innermost user frame of a node, or None if the graph does not say."""
    trace = node.meta.get("stack_trace") or node.stack_trace
    frames = [m for m in _FRAME.finditer(trace or "") if "/torch/" not in m["file"]]
    if not frames:
        return None
    return f"{Path(frames[-1]['file']).name}:{frames[-1]['line']}: {frames[-1]['code'].strip()}"
