"""Loads what is in ``launcher/``, the kernel of ``weft::launch`` that does calls like earlier ones without Python."""

from __future__ import annotations

import ctypes
import logging
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from importlib import resources
from pathlib import Path
from threading import Lock

import torch

from weft.options import Options
from weft.runtime import build
from weft.runtime.counters import counters

_LOG = logging.getLogger(__name__)
_OF_DRIVER = ("cuCtxGetDevice", "cuStreamIsCapturing", "cuLaunchKernelEx")
"""What the launcher calls of a GPU's driver, behind PyTorch's current stream; in the order of ``launcher/gpu.h``."""


class _Launcher:
    """The library of this process, if there is one. Its functions are called with Python's lock held."""

    def __init__(self) -> None:
        self.library: ctypes.PyDLL | None = None
        self.direct: Callable[..., None] | None = None
        self.reason = "it was not loaded yet"
        self.tried = False
        self.lock = Lock()


_LAUNCHER = _Launcher()


def load(options: Options) -> None:
    """Compile the launcher if no process did, and register it, once a process. It is an acceleration: what goes wrong
    is logged, and all calls go through Python then. So do those on a GPU that is not CUDA's.

    PyTorch's dispatcher does not guard an operator's table against calls that come meanwhile: this belongs where the
    first kernel is prepared or found.
    """
    if _LAUNCHER.tried:
        return
    with _LAUNCHER.lock:
        if _LAUNCHER.tried:
            return
        try:
            library = build.open_auxiliary(build.auxiliary("weft_launcher", _files(), options), "weft_launcher")
            library.weft_launcher_forget.argtypes = [ctypes.c_char_p]
            library.weft_launcher_forget.restype = None
            _register(library, "_launch_probe", "CPU")
            _probe()
            _register(library, "launch", "CPU")
            functions = gpu_functions()
            if functions is not None:
                use_gpu(library, functions)
                _register(library, "launch", "CUDA")
            library.weft_launcher_direct.argtypes = [ctypes.py_object]
            library.weft_launcher_direct.restype = ctypes.py_object
            library.weft_launcher_listen.argtypes = [ctypes.py_object]
            library.weft_launcher_listen.restype = None
            _LAUNCHER.direct = library.weft_launcher_direct(torch.ops.weft.launch.default)
            _LAUNCHER.library = library
        except Exception as error:
            _LAUNCHER.reason = f"{type(error).__name__}: {error}"
            _LOG.info("weft::launch runs in Python: %s", _LAUNCHER.reason)
        _LAUNCHER.tried = True


def _register(library: ctypes.PyDLL, name: str, device: str) -> None:
    interrupt = ctypes.pythonapi.PyErr_SetInterrupt
    given = name.encode(), device.encode(), counters.launched_without_python, interrupt
    if library.weft_launcher_register(*given) != 0:
        raise OSError("PyTorch refused the kernel")


def gpu_functions() -> list[int] | None:
    """Addresses of what GPUs are used through: PyTorch's current stream, and functions of the driver. None where
    either is not there; nothing is done on a GPU."""
    if torch.version.cuda is None:
        return None
    try:
        driver = ctypes.CDLL("libcuda.so.1")
        of_torch = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libtorch_cuda.so"))
        found = [of_torch.aoti_torch_get_current_cuda_stream, *(getattr(driver, name) for name in _OF_DRIVER)]
    except (OSError, AttributeError) as error:
        _LOG.info("weft::launch runs in Python on GPUs: %s", error)
        return None
    return [ctypes.cast(function, ctypes.c_void_p).value or 0 for function in found]


def use_gpu(library: ctypes.PyDLL, functions: Sequence[int]) -> None:
    """Have the launcher use GPUs through functions at these addresses."""
    library.weft_launcher_use_gpu((ctypes.c_void_p * len(functions))(*functions))


def _probe() -> None:
    """Have an operator like ``weft::launch`` take an argument of each type to Python and bring an error back, before
    every launch depends on it. Raises OSError."""
    tensors = [torch.zeros(1)]
    try:
        torch.ops.weft._launch_probe("", "no kernel", tensors, tensors, [1], "off")
    except RuntimeError as error:
        if str(error).startswith("line 1: not a schedule"):
            return
        raise OSError(f"PyTorch's C interface is not what it was: {error}") from error
    raise OSError("PyTorch's C interface is not what it was: an error was lost")


def forget(digest: str | None = None) -> None:
    """Let the next call of a kernel go through Python, or of every kernel."""
    if _LAUNCHER.library is not None:
        _LAUNCHER.library.weft_launcher_forget(None if digest is None else digest.encode())


def direct() -> Callable[..., None]:
    """What generated code calls in place of ``weft::launch``, with the same arguments: the launcher's function if there
    is one, which does calls like earlier ones past PyTorch's dispatcher, 5 of 7 us of a launch; else the operator."""
    load(Options.read())
    return _LAUNCHER.direct or torch.ops.weft.launch.default


@contextmanager
def heard(listener: Callable[[str], object]) -> Generator[None]:
    """Tell a function the kernel of each launch of generated code, as text, before it is done. Raises RuntimeError if
    the launcher does none of them."""
    direct()
    library = _LAUNCHER.library
    if library is None:
        raise RuntimeError(f"launches cannot be heard: {_LAUNCHER.reason}")
    library.weft_launcher_listen(listener)
    try:
        yield
    finally:
        library.weft_launcher_listen(None)


def is_loaded() -> bool:
    return _LAUNCHER.library is not None


def reason_against() -> str | None:
    """Why all calls go through Python, if they do."""
    return None if is_loaded() else _LAUNCHER.reason


def _files() -> dict[str, str]:
    """What is compiled: texts by name, the one that includes the others first."""
    folder = resources.files("weft.runtime").joinpath("launcher")
    headers = sorted(file.name for file in folder.iterdir() if file.name.endswith(".h"))
    return {name: folder.joinpath(name).read_text() for name in ("launcher.cpp", *headers)}
