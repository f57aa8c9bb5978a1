"""CUDA C++ for Hopper and later: rows of a tile are copied to shared memory ahead of the warps that compute with them.

A row is shared by the blocks of a cluster where one has no place for it. Blocks stay and loop over the rows of their
chunk; chunks are fixed by the schedule and added up in order, so bits do not depend on how many blocks there are.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from weft.backends.c_expressions import C_TYPES
from weft.backends.cuda.finish import Finish, gather_bytes
from weft.backends.cuda.launches import BARRIER, COUNTER, Layout, has_grid_sync, lowered
from weft.backends.cuda.printer import Printer
from weft.backends.cuda.schedule import WARP_THREADS, CudaKernel
from weft.backends.cuda.view import View
from weft.backends.source import Source, Writer, entry_of
from weft.ir.program import Buffer
from weft.lowering.nest import Columns, Nest, Role, Tasks


def render(kernel: CudaKernel) -> Source:
    """A translation unit of ``weft_NAME`` and, where it is launched by itself, ``weft_NAME_finish``; both take the
    words of the kernel's ``Abi``."""
    writer, entry = Writer(), entry_of(kernel.name)
    for line in str(kernel).splitlines():
        writer.line(f"// {line}")
    plain, nests = lowered(kernel)
    names = dict(zip((b.name for b in plain.program.buffers), (b.name for b in kernel.program.buffers), strict=True))
    names |= dict(zip(plain.program.parameters, kernel.program.parameters, strict=True))
    (first, *synced), *launched = (nest.phases() for nest in nests)
    with _function(plain, nests, entry, plain.schedule.warps + 1, plain.schedule.blocks, writer):
        _Function(plain, nests, names, writer).write(first, synced)
    warps = View(plain).finish_warps
    for nest in (phase for phases in launched for phase in phases):
        writer.line()
        with _function(plain, nests, f"{entry}_finish", warps, 32 // warps, writer):
            _Function(plain, nests, names, writer).write_finish(nest, warps)
    return Source("cuda", kernel.name, writer.text())


def _function(kernel: CudaKernel, nests: tuple[Nest, ...], entry: str, warps: int, blocks: int, writer: Writer):
    """The head of a function. blocks: that a multiprocessor has place for at a time."""
    writer.line()
    writer.line(f'extern "C" __global__ void __launch_bounds__({WARP_THREADS * warps}, {blocks})')
    return writer.block(f"{entry}({', '.join(_arguments(kernel, nests))})")


def _arguments(kernel: CudaKernel, nests: tuple[Nest, ...]) -> list[str]:
    program, view = kernel.program, View(kernel)
    found = [f"const {C_TYPES[b.dtype]}* __restrict__ {b.name}" for b in program.inputs]
    found += [f"{C_TYPES[o.buffer.dtype]}* {o.buffer.name}" for o in program.outputs]
    found += [f"{C_TYPES[v.dtype]}* {v.name}_partial" for v in view.outer]
    if has_grid_sync(nests):
        found.append(f"unsigned long long* {BARRIER}")
    elif view.is_queued:
        found.append(f"unsigned long long* {COUNTER}")
    return [*found, *(f"int64_t {p}" for p in program.parameters)]


class _Function(Printer):
    """The body of a function: what all of its threads know, and what is done by which."""

    def __init__(self, kernel: CudaKernel, nests: tuple[Nest, ...], names: Mapping[str, str], writer: Writer) -> None:
        """names: of buffers and parameters as the kernel has them that is compiled."""
        super().__init__(kernel, writer)
        self.layout, self.names = Layout(kernel, nests), names

    def write(self, nest: Nest, synced: list[Nest]) -> None:
        line, schedule, layout = self.out.line, self.schedule, self.layout
        line(f"constexpr int lanes = {self.lanes}, cluster = {schedule.cluster}, warps = {schedule.warps};")
        line("constexpr int threads = 32 * warps;")
        if self.is_grouped:
            line(f"constexpr int groups = {schedule.groups}, group_threads = threads / groups;")
            line("const int group = threadIdx.x / group_threads, group_thread = threadIdx.x % group_threads;")
        if self.several:
            line(f"constexpr int tile_rows = {schedule.group_rows};")
        if self.is_grouped:
            line(f"constexpr int stage_rows = groups{' * tile_rows' * self.several};")
        if self.has_parts:
            line(f"constexpr int turn = {self.turn};")
        self._sizes()
        self._beginnings()
        line("extern __shared__ __align__(128) uint8_t memory[];")
        line(f"uint64_t* const barriers = reinterpret_cast<uint64_t*>(memory + {layout.barriers_at});")
        line("const int rank = w::rank_in_cluster<cluster>(), first = rank * own;")
        eviction = "last" if self.row_outputs() else "first"
        more = ", next_rows" if self.has_next_rows else ""
        if more:
            line(f"int64_t* const next_rows = reinterpret_cast<int64_t*>(memory + {layout.next_rows_at});")
        ring = f"w::Ring<{schedule.stages}, {self.stage_bytes}, warps, w::Eviction::{eviction}>"
        line(f"{ring} ring(memory, barriers{more});")
        own = f"{schedule.exchange_places}"
        places = f"memory + {layout.exchange_at}, barriers + {layout.exchange_barriers}"
        if self.is_grouped:
            own_place = f" + group * {layout.exchange_bytes}" if layout.exchange_bytes else ""
            places = f"memory + {layout.exchange_at}{own_place}"
            places += f", barriers + {layout.exchange_barriers} + group * {own}"
        warps, more = "warps", ""
        if self.is_grouped:
            warps, more = ("warps / groups", ", true") if schedule.group_warps else ("1", ", true, group_threads")
        line(f"w::Exchange<cluster, {warps}, {layout.most}, {own}{more}> exchange({places}, rank);")
        if self.is_queued:
            each = self.stage_rows
            tiles = f"(rows + {each} - 1) / {each}" if each else "rows"
            places = f"next_rows + {schedule.stages}, barriers + {layout.queue_barriers}"
            line(f"w::TileQueue<cluster, {schedule.queue_places}> queue({tiles}, {COUNTER}, {places}, rank);")
        self._beginning()
        self._partials(gathers=bool(synced))
        more, edges = "<=", f"(k == 0 || (k + 1) * {self.threads} >= surely - 1)"
        if self.rotates_vectors:
            more, edges = "<", f"(k + 1) * {self.threads} >= surely - 2"
            line("// those of a block from its second one on, and its first one behind its last one")
            with self.out.block("const auto vector_of = [&](int thread, int k)", "};"):
                line(f"const int next = thread + k * {self.threads} + 1;")
                line(f"return (k + 1) * {self.threads} >= own && next == own ? 0 : next;")
        with self.out.block("const auto has_vector = [&](int k, int vector, int column)", "};"):
            line(f"return (k + 1) * {self.threads} {more} surely || (vector < own && column < columns);")
        with self.out.block("const auto at_edge = [&](int k)", "};"):
            line(f"return ragged && {edges};")
        for name, at in layout.weights_at.items():
            kind = self.kept_type(self.kept_with[name])
            line(f"auto* const {name}_memory = reinterpret_cast<{kind}*>(memory + {at});")
        for name, at in layout.sums_at.items():
            kind = C_TYPES[self.by_name[name].dtype]
            planes = f"reinterpret_cast<{kind}*>(memory + {at}), {self.own_vectors + 1}"
            line(f"const w::Columns<{kind}, lanes> {name}_columns{{{planes}}};")
        if self.is_grouped:
            with self.out.block("if (group < groups && group_thread == 0)"):
                line("exchange.start();")
                line("w::started_barriers();")
        with self.out.block("if (threadIdx.x == 0)"):
            copies = (1 + self.copies_numbers) * (WARP_THREADS if self.copies_by_lanes else 1)
            line(f"ring.start({copies});")
            if not self.is_grouped:
                line("exchange.start();")
            if self.is_queued:
                line("queue.start();")
            line("w::started_barriers();")
        line("w::wait_for_cluster<cluster>();")
        line()
        producer, consumers = (s for s in nest.body if isinstance(s, Role))
        assert isinstance(nest.body[0], Columns)
        with self.out.block("if (threadIdx.x >= threads)"):
            self.producer(producer)
        with self.out.block("else"):
            together = synced or layout.weights_at or any(self.sums_vectors(v) for v in self.outer)
            if together or not self.is_grouped:  # else threads are counted inside a group
                line("const int thread = threadIdx.x;")
            self.consumers(consumers)
            for phase in synced:
                line("w::wait_for_all<threads>(barrier);")
                self._finish(phase, schedule.warps)

    def write_finish(self, nest: Nest, warps: int) -> None:
        self.out.line(f"constexpr int warps = {warps};")
        has_columns = any(self.sums_vectors(v) for v in self.outer)
        self._sizes(of_rows=self.count(self.rows) is None, of_columns=has_columns)
        if has_columns:
            self.out.line(f"constexpr int lanes = {self.lanes};")
            self._early()
            if not self.is_grouped:
                self._beginning()
            self._partials(gathers=True)
        self.out.line("const int thread = threadIdx.x;")
        if shared := gather_bytes(self, nest, warps):
            self.out.line(f"__shared__ __align__(16) uint8_t memory[{shared}];")
        self._finish(nest, warps)

    def _finish(self, nest: Nest, warps: int) -> None:
        for tasks in nest.body:
            assert isinstance(tasks, Tasks)
            Finish(self.kernel, self.out, warps).write_tasks(tasks)

    def _sizes(self, *, of_rows: bool = True, of_columns: bool = True) -> None:
        line, known = self.out.line, self.count(self.columns)
        head = "constexpr int" if known is not None else "const int"
        if of_columns:
            line(f"{head} columns = {self.product(self.columns)};")
        if of_rows:
            line(f"const int64_t rows = {self.product(self.inside)};")
        if self.segments:
            line(f"const int64_t segments = {self.product(self.segments)};")
        if self.is_queued:
            return
        all_rows = self.count(self.rows)
        if all_rows is not None:
            line(f"constexpr int chunks = {max(1, min(all_rows, self.schedule.chunks))};")
        else:
            total = "segments * rows" if self.segments else "rows"
            line(f"const int chunks = static_cast<int>(max(1ll, min({total}, {self.schedule.chunks}ll)));")
        if self.apart > 1:
            multiples = self.begins_with_vectors(self.reference)
            whole = f"{self._together([], multiples)} ? 1 : " if multiples else ""
            line(f"constexpr int apart = {whole}{self.apart};")
        if self.has_parts:
            places = " * ".join(["segments"] * bool(self.segments) + ["apart"] * (self.apart > 1))
            is_known, kind = all_rows is not None, self.part_type
            if self.segments and not is_known:
                places = f"static_cast<{kind}>({places})"
            line(f"{'constexpr' if is_known else 'const'} w::ChunkParts<{kind}> parts{{{places}, chunks}};")

    def _beginning(self) -> None:
        """Where a row begins between two vectors."""
        text = "[](const auto* row) { return early ? w::elements_early<lanes>(row) : 0; }"
        self.out.line(f"const auto beginning = {text};")

    def _partials(self, *, gathers: bool) -> None:
        """How partial results of chunks lie in memory: in whole vectors. gathers: whether this function adds them
        up."""
        line = self.out.line
        if any(self.sums_vectors(v) for v in self.outer):
            kind = "constexpr" if self.count(self.columns) is not None else "const"
            line(f"{kind} int64_t padded = (columns + (early ? lanes - 1 : 0) + lanes - 1) / lanes * lanes;")
            if gathers:
                with self.out.block("const auto begins = [&](int part)", "};"):
                    self._return_where_it_begins()

    def _return_where_it_begins(self) -> None:
        """Where the first column of a part is."""
        if self.is_grouped:
            self.out.line("return 0;")
            return
        row = "parts.place(part)" if self.has_parts else "part"
        if self.segments:
            self.out.line(f"const int64_t segment = {self.segment_of('part')};")
            row = f"({row} % apart)" if self.apart > 1 else ""
        first = " + ".join(filter(None, [self.reference.name, self.offset(self.reference, row)]))
        self.out.line(f"return beginning({first});")

    def _early(self) -> None:
        """Whether vectors begin before rows."""
        whole = self._together([self.reference], self.begins_with_vectors(self.reference))
        early = "true" if whole == "false" else f"!({whole})" if " " in whole else f"!{whole}"
        self.out.line(f"constexpr bool early = {early};")

    def _together(self, starting: Iterable[Buffer], multiples: list[str] | None) -> str:
        """Whether buffers start with vectors, and parameters are multiples of 16."""
        aligned = [f"WEFT_ALIGNED_{self.names[b.name]}" for b in dict.fromkeys(starting)]
        return "false" if multiples is None else " && ".join([*aligned, *map(self._divisible, multiples)])

    def _divisible(self, parameter: str) -> str:
        return f"WEFT_DIVISIBLE_{self.names[parameter]}"

    def _beginnings(self) -> None:
        """Whether vectors begin before rows, in which tensors alike, and how many vectors there are."""
        line, reference = self.out.line, self.reference
        self._early()
        known = self.count(self.columns)
        kind = "constexpr" if known is not None else "const"
        line(f"{kind} int own = (columns + (early ? lanes - 1 : 0) + cluster * lanes - 1) / (cluster * lanes);")
        vectors = f"(own + {self.threads} - 1) / {self.threads}"
        if known is None:
            line(f"constexpr bool divisible = {' || '.join(map(self._divisible, self.unknown_sizes))};")
            vectors = f"{self.schedule.vectors} + (early && divisible)"
        line(f"constexpr int thread_vectors = {vectors};")
        line(f"{kind} int surely = (columns + lanes - 1) / lanes - (cluster - 1) * own;")
        line(f"constexpr bool ragged = early || {'columns % lanes != 0' if known is not None else '!divisible'};")
        for buffer in dict.fromkeys((*self.streamed(), *self.row_outputs())):
            text = self._together([reference, buffer], self.begins_alike(buffer))
            line(f"constexpr bool {buffer.name}_together = {text};")
        for buffer in self.weights():
            text = self._together([buffer], self.begins_with_vectors(buffer))
            text = text if self.shifts_weights or text == "false" else f"!early && {text}"
            line(f"constexpr bool {buffer.name}_together = {text};")
