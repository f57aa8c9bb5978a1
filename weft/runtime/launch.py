"""The operator ``weft::launch`` and what stands behind it: kernels by digest, checks, the fallback.

This is all of it, from import on. Calls like one that was made here are done in C++ once ``weft.runtime.launcher`` is
loaded, which is when the first kernel is prepared or found.
"""

from __future__ import annotations

import ctypes
import hashlib
import warnings
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from threading import Lock
from typing import Any

import torch
from torch import Tensor

from weft.errors import CompilerNotFoundError, LaunchError, WeftError
from weft.ir.interpret import bind, interpret_into, resolve, sizes_of
from weft.ir.program import Buffer, Program
from weft.logs import log_sources
from weft.options import LaunchOptions, Options
from weft.plan.kernel import Backend, Kernel, Plan, parse_kernel
from weft.render.backends import device_of, render
from weft.render.source import Source
from weft.runtime import failures, launcher, reproducer
from weft.runtime.backends import calls_of
from weft.runtime.check import compare
from weft.runtime.counters import counters
from weft.runtime.layout import Fitting, allocate, check_tensors, has_elements, overlap

_LIBRARY = torch.library.Library("weft", "DEF")
# no argument has a default: Inductor would pass it by keyword, which takes half a microsecond
for _name in ("launch", "_launch_probe"):
    _LIBRARY.define(
        f"{_name}(str digest, str kernel, Tensor[] inputs, Tensor(a!)[] outputs, SymInt[] sizes, str options) -> ()",
        tags=(torch.Tag.needs_exact_strides,),
    )
_LIBRARY.define(
    "_launch_checked(int texts, Tensor[] inputs, Tensor(a!)[] outputs, SymInt[] sizes) -> str",
    tags=(torch.Tag.needs_exact_strides,),
)
_KERNELS: dict[str, Executable] = {}
FOUND_BY_TEXT: list[Kernel] = []
"""Kernels that this process knows only from code in Inductor's cache."""
_LOCK = Lock()
_FITTING_LIMIT = 4096


class Executable:
    """A compiled kernel that checks the tensors it is given. Without a function it evaluates its program on ATen.

    It loses its function, with one warning, when that raises, when its outputs are found wrong, or when tensors lie in
    memory otherwise than it was compiled for; the call at hand and all that follow give the program's results still.
    """

    def __init__(self, kernel: Kernel, function: Any | None) -> None:
        self.kernel = kernel
        self._calls = calls_of(kernel)
        self._function = function
        self._fitting: dict[object, Fitting] = {}
        self._last: Fitting | None = None
        self._compared = False

    @property
    def function(self) -> Any | None:
        """What the backend compiled, as long as it is used."""
        return self._function

    def __call__(
        self, inputs: Sequence[Tensor], outputs: Sequence[Tensor], parameters: Sequence[int], options: str = "off"
    ) -> None:
        """Run on tensors bound to the buffers in order. options: a printed ``LaunchOptions``.

        Raises LaunchError if the tensors do not fit and are not the buffers' elements in another order either.
        """
        try:
            fitting = self._find_fitting(inputs, outputs, parameters)
        except LaunchError as error:
            self._run_relaid(inputs, outputs, parameters, error)
            return
        chosen = LaunchOptions.parse(options)
        if self._function is None:
            self._run_on_aten(inputs, outputs, parameters)
        elif chosen.check == "always" or (chosen.check == "first" and not self._compared):
            self._run_compared(fitting, inputs, outputs, parameters, chosen)
        else:
            self._run_compiled(fitting, inputs, outputs, parameters, chosen)

    def repeatable(
        self, inputs: Sequence[Tensor], outputs: Sequence[Tensor], parameters: Sequence[int], options: str
    ) -> str:
        """How the launcher repeats a call that was made: a word for the kind of function, whether its outputs were ever
        compared with the reference, the bytes of all its tensors, and what ``repeat`` of the backend says; empty if a
        call takes more than that."""
        function, compared = self._function, self._compared
        if function is None:
            return ""
        fitting = self._find_fitting(inputs, outputs, parameters)
        margin = LaunchOptions.parse(options).sm_margin
        numbers = self._calls.repeat(function, fitting, inputs, outputs, margin)
        if not numbers:
            return ""
        return " ".join(map(str, (device_of(self.kernel), int(compared), fitting.launch_bytes, *numbers)))

    def _find_fitting(self, inputs: Sequence[Tensor], outputs: Sequence[Tensor], parameters: Sequence[int]) -> Fitting:
        """What is known of tensors like these. Raises LaunchError if they do not fit."""
        last = self._last
        if last is not None and last.fits(inputs, outputs, parameters):
            return last
        tensors = [*inputs, *outputs]
        signature = (*((t.dtype, t.device, t.shape, t.stride()) for t in tensors), *parameters)
        found = self._fitting.get(signature)
        if found is None:
            check_tensors(self.kernel, inputs, outputs, parameters)
            found = Fitting.of(inputs, outputs, parameters, self._calls.bind(inputs, outputs, parameters))
            if len(self._fitting) >= _FITTING_LIMIT:
                self._fitting.clear()
            self._fitting[signature] = found
        self._last = found
        return found

    def _run_compiled(
        self,
        fitting: Fitting,
        inputs: Sequence[Tensor],
        outputs: Sequence[Tensor],
        parameters: Sequence[int],
        chosen: LaunchOptions,
    ) -> None:
        function = self._function
        if function is None:  # another thread found it wrong
            self._run_on_aten(inputs, outputs, parameters)
            return
        try:
            done = self._calls.call(function, fitting, inputs, outputs, chosen.sm_margin)
        except torch.OutOfMemoryError:
            raise  # ATen would need more, and nothing is wrong with the kernel
        except Exception as error:
            if any(overlap(a, b) for a in inputs for b in outputs):
                raise  # an input may be half overwritten
            self._fail(_reason(error))
            self._run_on_aten(inputs, outputs, parameters)
            return
        if done:
            counters.count_launch(fitting.launch_bytes)
        else:
            self._run_on_aten(inputs, outputs, parameters)

    def _run_compared(
        self,
        fitting: Fitting,
        inputs: Sequence[Tensor],
        outputs: Sequence[Tensor],
        parameters: Sequence[int],
        chosen: LaunchOptions,
    ) -> None:
        """Run, and compare the outputs with the reference unless that is impossible now (a CUDA graph is captured)."""
        if _is_capturing(outputs):
            self._run_compiled(fitting, inputs, outputs, parameters, chosen)
            return
        kept = [_copy(t) if any(overlap(t, out) for out in outputs) else t for t in inputs]
        self._run_compiled(fitting, inputs, outputs, parameters, chosen)
        self._compared = True
        if self._function is None:
            return
        try:
            with _plainly(outputs):
                finding = compare(self.kernel.program, kept, outputs, parameters)
        except Exception as error:  # e.g. no memory left: nothing is known about the kernel
            message = f"weft: kernel {self.kernel.name} could not be checked: {_reason(error)}"
            warnings.warn(message, stacklevel=2)
            return
        if finding is not None:
            script = reproducer.write(self.kernel, digest_of(self.kernel), kept, parameters, str(finding))
            self._fail(f"{finding}; {script} shows it")
            self._run_on_aten(kept, outputs, parameters)

    def _run_on_aten(self, inputs: Sequence[Tensor], outputs: Sequence[Tensor], parameters: Sequence[int]) -> None:
        counters.add(fallbacks=1)
        with _plainly(outputs):
            interpret_into(self.kernel.program, inputs, outputs, parameters)

    def _run_relaid(
        self, inputs: Sequence[Tensor], outputs: Sequence[Tensor], parameters: Sequence[int], error: LaunchError
    ) -> None:
        """Evaluate on copies that lie as the buffers do. Raises ``error`` if the tensors hold other elements."""
        program = self.kernel.program
        sizes = sizes_of(program, parameters)
        buffers = [*program.inputs, *(o.buffer for o in program.outputs)]
        tensors = [*inputs, *outputs]
        if len(buffers) != len(tensors) or tensors[0].device.type != device_of(self.kernel):
            raise error
        if not all(has_elements(b, t, sizes, tensors[0].device) for b, t in zip(buffers, tensors, strict=True)):
            raise error
        self._fail(str(error))
        copies = [allocate(b, sizes, t.device) for b, t in zip(buffers, tensors, strict=True)]
        read = list(zip(program.inputs, inputs, copies, strict=False))
        written = list(zip(buffers[len(read) :], outputs, copies[len(read) :], strict=True))
        with _plainly(outputs):
            for buffer, tensor, copy in read:
                bind(buffer, copy, sizes).copy_(tensor.reshape([sizes[d] for d in buffer.dims]))
            self._run_on_aten(copies[: len(read)], copies[len(read) :], parameters)
            for buffer, tensor, copy in written:
                tensor.view([sizes[d] for d in buffer.dims]).copy_(bind(buffer, copy, sizes))

    def _fail(self, reason: str) -> None:
        self._function = None
        launcher.forget(digest_of(self.kernel))
        failures.record(digest_of(self.kernel), self.kernel.name, reason)


def _reason(error: BaseException) -> str:
    return str(error) if isinstance(error, WeftError | OSError) else f"{type(error).__name__}: {error}"


@contextmanager
def _plainly(outputs: Sequence[Tensor]) -> Generator[None]:
    """Evaluate as the program says, whatever autocast and autograd would make of it."""
    with torch.no_grad(), torch.autocast(outputs[0].device.type, enabled=False):
        yield


def _is_capturing(tensors: Sequence[Tensor]) -> bool:
    """Whether work on these tensors is recorded in a CUDA graph instead of being done."""
    return any(t.is_cuda for t in tensors) and torch.cuda.is_current_stream_capturing()


def _copy(tensor: Tensor) -> Tensor:
    """A copy with the same strides."""
    return reproducer.memory(tensor).clone().as_strided(tensor.shape, tensor.stride())


def digest_of(kernel: Kernel) -> str:
    """Short identity of a kernel: a hash of its printed form."""
    return hashlib.sha256(str(kernel).encode()).hexdigest()[:24]


def prepare(
    kernels: Sequence[Kernel],
    sources: Sequence[Source],
    options: Options,
    hints: Sequence[Mapping[str, int]] | None = None,
) -> None:
    """Compile kernels side by side and keep them by digest. hints: for each, likely values of its parameters. Raises
    CompilerNotFoundError or BuildError."""
    known = [{}] * len(kernels) if hints is None else hints
    with _LOCK:
        given = zip(kernels, sources, known, strict=True)
        new = {digest: one for one in given if (digest := digest_of(one[0])) not in _KERNELS}
    log_sources(sources)
    by_backend: dict[Backend, list[str]] = {}
    for digest, (kernel, _, _) in new.items():
        by_backend.setdefault(kernel.schedule.backend, []).append(digest)
    for digests in by_backend.values():
        of_backend, texts, values = zip(*(new[digest] for digest in digests), strict=True)
        functions = calls_of(of_backend[0]).build_all(of_backend, texts, values, options)
        for digest, kernel, function in zip(digests, of_backend, functions, strict=True):
            with _LOCK:
                _KERNELS.setdefault(digest, Executable(kernel, function))


def spill_bytes(kernel: Kernel) -> int:
    """Of a thread of a prepared kernel, as its compiler says; 0 for one that is not prepared, and on a CPU."""
    found = _KERNELS.get(digest_of(kernel))
    return 0 if found is None else calls_of(kernel).spill_bytes(found.function)


def find(digest: str, text: str) -> Executable:
    """The kernel of that digest; made from its printed form if this process has not seen it.

    A process that takes its graphs from Inductor's cache never ran the compile stages: the text in the generated code
    is all there is. If it cannot be compiled any more, its program runs on ATen, with one warning.
    """
    found = _KERNELS.get(digest)
    if found is not None:
        return found
    kernel = parse_kernel(text)
    options = Options.read()
    launcher.load(options)
    function = None
    if not failures.has_failed(digest):
        try:
            source = render(kernel)
            log_sources([source])
            function = calls_of(kernel).load_function(kernel, source, options)
        except CompilerNotFoundError as error:
            failures.record(digest, None, _reason(error))
        except Exception as error:
            failures.record(digest, kernel.name, _reason(error))
    with _LOCK:
        FOUND_BY_TEXT.append(kernel)
        return _KERNELS.setdefault(digest, Executable(kernel, function))


def _launch(
    digest: str, kernel: str, inputs: Sequence[Tensor], outputs: Sequence[Tensor], sizes: Sequence[int], options: str
) -> None:
    find(digest, kernel)(inputs, outputs, sizes, options)


def _launch_checked(texts: int, inputs: Sequence[Tensor], outputs: Sequence[Tensor], sizes: Sequence[int]) -> str:
    """As ``_launch``, for the launcher in C++, to which PyTorch's C interface passes no exceptions.

    texts: the address of three C strings, digest, kernel and options.
    Returns what ``Executable.repeatable`` says of calls like this one, "done" if that is nothing, "error" or "memory"
    (none is left on a GPU) and a message, or "interrupt".
    """
    try:
        digest, kernel, options = (c.decode() for c in (ctypes.c_char_p * 3).from_address(texts))
        executable = find(digest, kernel)
        executable(inputs, outputs, sizes, options)
        return executable.repeatable(inputs, outputs, sizes, options) or "done"
    except LaunchError as error:
        return f"error {error}"
    except torch.OutOfMemoryError as error:
        return f"memory {error}"
    except KeyboardInterrupt:
        return "interrupt"
    except BaseException as error:
        return f"error {_reason(error)}"


def _launch_meta(*_: Any, **__: Any) -> None:
    """Nothing is computed on meta and fake tensors, and nothing is checked."""


# the launcher takes the keys CPU and CUDA of ``launch`` when it is loaded
_LIBRARY.impl("launch", _launch, "CompositeExplicitAutograd")
_LIBRARY.impl("launch", _launch_meta, "Meta")
_LIBRARY.impl("_launch_checked", _launch_checked, "CompositeExplicitAutograd")


def run_plan(
    plan: Plan,
    program: Program,
    inputs: Sequence[Tensor],
    parameters: Sequence[int],
    options: Options,
    allocate: Callable[[Buffer, dict[str, int], torch.device], Tensor] = allocate,
) -> list[Tensor]:
    """Build and launch the kernels of a plan.

    inputs are bound to the buffers of ``program`` in order. allocate: makes the memory of each output and intermediate;
    outputs are dense or strided as their buffers say.
    """
    prepare(plan.kernels, [render(kernel) for kernel in plan.kernels], options, [plan.hints] * len(plan.kernels))
    return launch_plan(plan, program, inputs, parameters, options, allocate)


def launch_plan(
    plan: Plan,
    program: Program,
    inputs: Sequence[Tensor],
    parameters: Sequence[int],
    options: Options,
    allocate: Callable[[Buffer, dict[str, int], torch.device], Tensor] = allocate,
) -> list[Tensor]:
    """As ``run_plan``, of kernels that were prepared; others are made of their text, as in a new process."""
    sizes = sizes_of(program, parameters)
    for name, factors in plan.products.items():
        sizes[name] = 1
        for factor in factors:
            sizes[name] *= resolve(factor, sizes)
    tensors = {b.name: t for b, t in zip(program.inputs, inputs, strict=True)}
    device = inputs[0].device if inputs else torch.device("cpu")
    for kernel in plan.kernels:
        for output in kernel.program.outputs:
            tensors[output.buffer.name] = allocate(output.buffer, sizes, device)
        find(digest_of(kernel), str(kernel))(
            [tensors[b.name] for b in kernel.program.inputs],
            [tensors[o.buffer.name] for o in kernel.program.outputs],
            [sizes[p] for p in kernel.program.parameters],
            str(options.of_launch(device.type)),
        )
    return [tensors[o.buffer.name] for o in program.outputs]
