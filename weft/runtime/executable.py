"""A compiled kernel: the checks, the reference and the fallback around its function."""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from weft.backends.listed import backend_of, device_of
from weft.errors import LaunchError, WeftError
from weft.ir.interpret import bind, interpret_into, sizes_of
from weft.options import LaunchOptions
from weft.plan.kernel import Kernel
from weft.runtime import failures, launcher, reproducer
from weft.runtime.check import compare
from weft.runtime.counters import counters
from weft.runtime.layout import Fitting, allocate, check_tensors, has_elements, overlap

_FITTING_LIMIT = 4096


class Executable:
    """A compiled kernel that checks the tensors it is given. Without a function it evaluates its program on ATen.

    It loses its function, with one warning, when that raises, when its outputs are found wrong, or when tensors lie in
    memory otherwise than it was compiled for; the call at hand and all that follow give the program's results still.
    """

    def __init__(self, kernel: Kernel, function: Any | None, digest: str | None = None) -> None:
        """digest: that launches have, if the kernel runs in place of another one."""
        self.kernel = kernel
        self._digest = digest or digest_of(kernel)
        self._calls = backend_of(kernel).calls
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
    ) -> bool:
        """Whether the kernel ran; ATen did its work where it could not."""
        function = self._function
        if function is None:  # another thread found it wrong
            self._run_on_aten(inputs, outputs, parameters)
            return False
        try:
            done = self._calls.call(function, fitting, inputs, outputs, chosen.sm_margin)
        except torch.OutOfMemoryError:
            raise  # ATen would need more, and nothing is wrong with the kernel
        except Exception as error:
            if any(overlap(a, b) for a in inputs for b in outputs):
                raise  # an input may be half overwritten
            self._fail(reason_of(error))
            done = False
        if done:
            counters.count_launch(fitting.launch_bytes)
        else:
            self._run_on_aten(inputs, outputs, parameters)
        return done

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
        kept = _kept(inputs, outputs)
        if not self._run_compiled(fitting, inputs, outputs, parameters, chosen):
            return
        self._compared = True
        try:
            with _plainly(outputs):
                finding = compare(self.kernel.program, kept, outputs, parameters)
        except Exception as error:  # e.g. no memory left: nothing is known about the kernel
            message = f"weft: kernel {self.kernel.name} could not be checked: {reason_of(error)}"
            warnings.warn(message, stacklevel=2)
            return
        if finding is not None:
            script = reproducer.write(self.kernel, digest_of(self.kernel), kept, parameters, str(finding))
            self._fail(f"{finding}; {script} shows it")
            self._run_on_aten(kept, outputs, parameters)

    def _run_on_aten(self, inputs: Sequence[Tensor], outputs: Sequence[Tensor], parameters: Sequence[int]) -> None:
        counters.add(fallbacks=1)
        with _plainly(outputs):
            interpret_into(self.kernel.program, _kept(inputs, outputs), outputs, parameters)

    def _run_relaid(
        self, inputs: Sequence[Tensor], outputs: Sequence[Tensor], parameters: Sequence[int], error: LaunchError
    ) -> None:
        """Evaluate on copies that lie as the buffers do. Raises ``error`` if the tensors hold other elements."""
        program = self.kernel.program
        sizes = sizes_of(program, parameters)
        buffers = program.buffers
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
        launcher.forget(self._digest)
        failures.record(self._digest, self.kernel.name, reason)


def reason_of(error: BaseException) -> str:
    """An error as it is told to users."""
    return str(error) if isinstance(error, WeftError | OSError) else f"{type(error).__name__}: {error}"


@contextmanager
def _plainly(outputs: Sequence[Tensor]) -> Generator[None]:
    """Evaluate as the program says, whatever autocast and autograd would make of it."""
    with torch.no_grad(), torch.autocast(outputs[0].device.type, enabled=False):
        yield


def _is_capturing(tensors: Sequence[Tensor]) -> bool:
    """Whether work on these tensors is recorded in a CUDA graph instead of being done."""
    return any(t.is_cuda for t in tensors) and torch.cuda.is_current_stream_capturing()


def _kept(inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> list[Tensor]:
    """The inputs, with copies in place of those that outputs may overwrite."""
    return [_copy(t) if any(overlap(t, out) for out in outputs) else t for t in inputs]


def _copy(tensor: Tensor) -> Tensor:
    """A copy with the same strides."""
    return reproducer.memory(tensor).clone().as_strided(tensor.shape, tensor.stride())


def digest_of(kernel: Kernel) -> str:
    """Short identity of a kernel: a hash of its printed form."""
    return hashlib.sha256(str(kernel).encode()).hexdigest()[:24]
