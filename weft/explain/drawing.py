"""Where the boxes and edges of a region's graph lie on the page, in CSS pixels.

Kernels stand in one column, in launch order, with the tensors that they pass on between them; inputs stand to the left
and outputs to the right. On a narrow screen the inputs of a kernel are rows above it and its outputs rows below.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from weft.ir.program import Buffer, Program
from weft.plan.kernel import Plan
from weft.plan.sizes import Sizes

ROW, GAP, BOX, PAD = 26, 14, 64, 10
TENSOR_WIDTH, EDGE_WIDTH, KERNEL_WIDTH, INSET = 300, 100, 280, 34
NARROW_WIDTH, RAIL = 340, 18
NAME_CHARACTER, DETAIL_CHARACTER, MARGIN = 7.9, 6.7, 8
"""Widths of the page's two monospaced fonts, and of the space around text in a box."""


@dataclass(frozen=True)
class Node:
    """A box. kind: ``kernel``, ``input``, ``output`` or ``passed`` on from one kernel to a later one."""

    kind: str
    name: str
    detail: str
    x: float
    y: float
    width: float
    height: float


@dataclass(frozen=True)
class Edge:
    """An arrow with the bytes that move along it: an SVG path, and where its label begins, is centred or ends."""

    path: str
    label: str
    x: float
    y: float
    anchor: str = "middle"


@dataclass
class Drawing:
    """width, height: of the whole."""

    width: float
    height: float = 0.0
    nodes: list[Node] = field(default_factory=list[Node])
    edges: list[Edge] = field(default_factory=list[Edge])


@dataclass(frozen=True)
class _Tensor:
    """A buffer of a plan. makers, users: places of kernels."""

    name: str
    detail: str
    moved_bytes: int
    maker: int | None
    users: tuple[int, ...]

    @property
    def kind(self) -> str:
        return "input" if self.maker is None else "passed" if self.users else "output"


def draw_wide(plan: Plan, names: dict[str, str]) -> Drawing:
    """Inputs, kernels and outputs in three columns. names: what buffers are called in the user's program."""
    tensors = _tensors(plan, names)
    drawing = Drawing(2 * (TENSOR_WIDTH + EDGE_WIDTH) + KERNEL_WIDTH)
    centre, right = TENSOR_WIDTH + EDGE_WIDTH, TENSOR_WIDTH + 2 * EDGE_WIDTH + KERNEL_WIDTH
    y = float(PAD)
    for at in range(len(plan.kernels)):
        inputs = [t for t in tensors if t.kind == "input" and t.users[0] == at]
        outputs = [t for t in tensors if t.kind == "output" and t.maker == at]
        height = max(BOX, ROW * max(len(inputs), len(outputs)))
        drawing.nodes.append(_kernel(plan, at, centre, y, KERNEL_WIDTH, height))
        for tensor, top in _spread(inputs, y, height):
            drawing.nodes.append(_box(tensor, 0, top, TENSOR_WIDTH))
            drawing.edges.append(_across(TENSOR_WIDTH, centre, top + ROW / 2 - 2, tensor.moved_bytes))
            for other in tensor.users[1:]:  # the box of a later kernel stands below
                path = f"M{TENSOR_WIDTH},{top + ROW / 2 - 2:g} C{centre - 50},{top + ROW / 2 - 2:g} {centre - 50}"
                target = _top_of(plan, tensors, other) + BOX / 2
                drawing.edges.append(Edge(f"{path},{target:g} {centre},{target:g}", "", 0, 0))
        for tensor, top in _spread(outputs, y, height):
            drawing.nodes.append(_box(tensor, right, top, TENSOR_WIDTH))
            drawing.edges.append(_across(centre + KERNEL_WIDTH, right, top + ROW / 2 - 2, tensor.moved_bytes))
        y += height
        passed = [t for t in tensors if t.kind == "passed" and t.maker == at]
        for place, tensor in enumerate(passed):
            box = _box(tensor, centre + INSET, y + GAP + ROW * place, KERNEL_WIDTH - 2 * INSET)
            drawing.nodes.append(box)
            drawing.edges += _passing(plan, tensors, tensor, box, centre, y)
        y += ROW * len(passed) + (2 * GAP if at + 1 < len(plan.kernels) else 0)
    drawing.height = y + PAD
    return drawing


def draw_narrow(plan: Plan, names: dict[str, str]) -> Drawing:
    """Everything below each other."""
    tensors = _tensors(plan, names)
    drawing = Drawing(NARROW_WIDTH)
    y, rail = float(PAD), NARROW_WIDTH - RAIL / 2
    for at in range(len(plan.kernels)):
        read = [t for t in tensors if at in t.users]
        for place, tensor in enumerate(read):  # each joins the rail that leads down to the kernel
            drawing.nodes.append(_row(tensor, y))
            down = y + ROW * (len(read) - place) + GAP
            drawing.edges.append(Edge(f"M{NARROW_WIDTH - RAIL},{y + ROW / 2 - 2:g} H{rail} V{down:g}", "", 0, 0))
            y += ROW
        y += GAP
        drawing.nodes.append(_kernel(plan, at, 0, y, NARROW_WIDTH, BOX))
        y += BOX
        written = [t for t in tensors if t.maker == at]
        for place, tensor in enumerate(written):
            start = y + (GAP if place == 0 else 0)
            drawing.nodes.append(_row(tensor, start))
            path = f"M{rail},{y - (0 if place == 0 else ROW / 2):g} V{start + ROW / 2 - 2:g} H{NARROW_WIDTH - RAIL}"
            drawing.edges.append(Edge(path, "", 0, 0))
            y = start + ROW
        y += GAP
    drawing.height = y
    return drawing


def size_text(count: int) -> str:
    """Bytes for a person."""
    for unit, scale in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= scale:
            return f"{count / scale:.3g} {unit}" if count < 1000 * scale else f"{count / scale:.0f} {unit}"
    return f"{count} B"


def _tensors(plan: Plan, names: dict[str, str]) -> list[_Tensor]:
    """Every buffer of a plan once, in the order in which kernels have them."""
    makers: dict[str, int] = {}
    users: dict[str, list[int]] = {}
    facts: dict[str, tuple[str, int]] = {}
    for at, kernel in enumerate(plan.kernels):
        sizes = Sizes(kernel.program, plan.hints)
        for buffer in kernel.program.buffers:
            facts.setdefault(buffer.name, (type_text(buffer, kernel.program), sizes.bytes(buffer)))
        for buffer in kernel.program.inputs:
            users.setdefault(buffer.name, []).append(at)
        for output in kernel.program.outputs:
            makers[output.buffer.name] = at
    return [
        _Tensor(names.get(name, name), *fact, makers.get(name), tuple(users.get(name, ())))
        for name, fact in facts.items()
    ]


def type_text(buffer: Buffer, program: Program) -> str:
    """``bf16[s0, 4096]``."""
    return f"{buffer.dtype}[{', '.join(str(program.size_of(d)) for d in buffer.dims)}]"


def _box(tensor: _Tensor, x: float, y: float, width: float, detail: str | None = None) -> Node:
    """A tensor with its type; a name that has no room beside it loses its beginning."""
    detail = tensor.detail if detail is None else detail
    room = max(4, int((width - 3 * MARGIN - DETAIL_CHARACTER * len(detail)) / NAME_CHARACTER))
    name = tensor.name if len(tensor.name) <= room else f"\u2026{tensor.name[1 - room :]}"
    return Node(tensor.kind, name, detail, x, y, width, ROW - 4)


def _kernel(plan: Plan, at: int, x: float, y: float, width: float, height: float) -> Node:
    kernel, estimate = plan.kernels[at], plan.estimates[at]
    detail = f"{plan.kinds[at]}, {kernel.schedule.scheme}, {estimate.predicted_us:.1f} us predicted"
    return Node("kernel", kernel.name, detail, x, y, width, height)


def _row(tensor: _Tensor, y: float) -> Node:
    detail = f"{tensor.detail}  {size_text(tensor.moved_bytes)}"
    return _box(tensor, 0, y, NARROW_WIDTH - RAIL, detail)


def _spread(tensors: Sequence[_Tensor], y: float, height: float) -> list[tuple[_Tensor, float]]:
    """Tensors with the tops of their boxes, in the middle of the kernel's side."""
    first = y + (height - ROW * len(tensors)) / 2
    return [(tensor, first + ROW * i + 2) for i, tensor in enumerate(tensors)]


def _top_of(plan: Plan, tensors: Sequence[_Tensor], wanted: int) -> float:
    """Where the box of a kernel begins in the wide drawing."""
    y = float(PAD)
    for at in range(wanted):
        sides = [sum(t.kind == "input" and t.users[0] == at for t in tensors)]
        sides.append(sum(t.kind == "output" and t.maker == at for t in tensors))
        passed = sum(t.kind == "passed" and t.maker == at for t in tensors)
        y += max(BOX, ROW * max(sides)) + ROW * passed + 2 * GAP
    return y


def _across(start: float, end: float, y: float, moved: int) -> Edge:
    return Edge(f"M{start:g},{y:g} H{end:g}", size_text(moved), (start + end) / 2 - 4, y - 4)


def _passing(
    plan: Plan, tensors: Sequence[_Tensor], tensor: _Tensor, box: Node, left: float, bottom: float
) -> list[Edge]:
    """From the kernel above down on the left, and on the right to each kernel that reads it."""
    middle, right = box.y + box.height / 2, left + KERNEL_WIDTH
    path = f"M{left + INSET / 2:g},{bottom:g} V{middle:g} H{box.x:g}"
    edges = [Edge(path, size_text(tensor.moved_bytes), left + INSET / 2 - 5, middle + 4, "end")]
    for at in tensor.users:
        top = _top_of(plan, tensors, at)
        if at == (tensor.maker or 0) + 1:
            way = f"H{right - INSET / 2:g} V{top:g}"
        else:
            way = f"H{right + INSET / 2:g} V{top + BOX / 2:g} H{right:g}"
        edges.append(Edge(f"M{box.x + box.width:g},{middle:g} {way}", "", 0, 0))
    return edges
