"""The checks of ``weft doctor``: each is a function of what is around weft, and its answer is data."""

from __future__ import annotations

import os
import platform
import re
import shutil
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Literal

import torch
from rich.filesize import decimal
from torch._inductor.runtime.cache_dir_utils import default_cache_dir

import weft
from weft.backends.listed import missing_beside
from weft.bench.machine import cores
from weft.explain.explained import count_text
from weft.explain.trial import Trial
from weft.integration.backend import supports_cuda
from weft.logs import LOGS
from weft.options import VARIABLES, Options, chosen_inductor_folder
from weft.runtime import calibration
from weft.runtime.build import compiler_version, find_compiler
from weft.runtime.cache import Cache
from weft.runtime.trust import check_folder
from weft.target import Target, cpu_model, vendor
from weft.torch_version import torch_version_supported

Status = Literal["ok", "warning", "problem"]
Answer = tuple[Status, str, str]
"""Status, fact, and what to do."""

PACKAGES = ("numpy", "sympy", "networkx", "jinja2", "matplotlib", "filelock", "rich", "typer")
"""All that weft depends on but torch."""
LEAST_FREE_BYTES = 200 * 10**6
"""The precompiled header takes 120 MB, kernels tens of KB each."""
MOST_FILES = 50_000
"""Of Inductor's cache, whose size is counted."""
_MEASURED_VENDORS = ("GenuineIntel", "AuthenticAMD")
_ENVIRONMENT = re.compile(
    "WEFT_.*|TORCHINDUCTOR_.*|TORCH_LOGS|TORCH_COMPILE_DEBUG|CXX|OMP_.*|GOMP_.*|KMP_.*|MKL_NUM_THREADS"
    "|ATEN_CPU_CAPABILITY|CUDA_VISIBLE_DEVICES|TMPDIR|XDG_CACHE_HOME"
)
_SECRET = re.compile("URL|HOST|KEY|TOKEN|SECRET|PASS|CREDENTIAL")
_USER_IN_URL = re.compile(r"://[^/\s]*@")
REPORT_IT = "send this page with a report"


@dataclass(frozen=True)
class Surroundings:
    """What the checks look at."""

    environment: Mapping[str, str]
    try_kernel: Callable[[], Trial]

    @cached_property
    def options(self) -> Options:
        """Those of the environment; without what is wrong there, which is a finding of its own."""
        try:
            return Options.read({}, self.environment)
        except ValueError:
            return Options.read({"check": Options.check, "cache_bytes": Options.cache_bytes}, self.environment)

    @cached_property
    def trial(self) -> Trial:
        return self.try_kernel()


def _torch(_: Surroundings) -> Answer:
    if torch_version_supported():
        return "ok", f"{torch.__version__}, in the supported range 2.11 to 2.15", ""
    fact = f"{torch.__version__}; weft is made for 2.11 to 2.15"
    return "warning", fact, "it may work; if it does not, install a torch in that range"


def _triton(_: Surroundings) -> Answer:
    for name in ("triton", "pytorch-triton"):
        with suppress(PackageNotFoundError):
            return "ok", version(name), ""
    return "ok", "not installed; only kernels for NVIDIA GPUs need it", ""


def _nvrtc(_: Surroundings) -> Answer:
    package = missing_beside("cuda")
    if not package:
        return "ok", "kernels in CUDA C++ can be compiled", ""
    fact = f"{package} is not installed; without it there are no kernels in CUDA C++, and wide rows take longer"
    if torch.cuda.is_available() and torch.cuda.get_device_capability() >= (9, 0):
        return "warning", fact, f"`pip install {package}`"
    return "ok", f"{fact} on GPUs from compute capability 9.0 on", ""


def _packages(_: Surroundings) -> Answer:
    found: list[str] = []
    missing: list[str] = []
    for name in PACKAGES:
        try:
            found.append(f"{name} {version(name)}")
        except PackageNotFoundError:
            missing.append(name)
    if not missing:
        return "ok", ", ".join(found), ""
    fact = f"not installed: {', '.join(missing)}; installed: {', '.join(found)}"
    return "warning", fact, f"pip install {' '.join(missing)}"


def _settings(around: Surroundings) -> Answer:
    """Of the environment, those that matter here and are set."""
    set_here = {k: v for k, v in sorted(around.environment.items()) if _ENVIRONMENT.fullmatch(k)}
    if chosen_inductor_folder(set_here) is None:
        set_here.pop("TORCHINDUCTOR_CACHE_DIR", None)  # Inductor sets it itself
    fact = ", ".join(f"{name}={_harmless(name, value)}" for name, value in set_here.items()) or "none set"
    try:
        options = Options.read({}, around.environment)
    except ValueError as error:
        return "problem", f"{fact}: {error}", "correct or unset the variable"
    unknown = [name for name in set_here if name.startswith("WEFT_") and name not in VARIABLES]
    if unknown:
        return "warning", f"{fact}: weft reads no {', '.join(unknown)}", f"its variables are {', '.join(VARIABLES)}"
    if logs := [name for name in options.logs if name not in LOGS]:
        return "warning", f"{fact}: no log named {', '.join(logs)}", f"WEFT_LOGS knows {', '.join(sorted(LOGS))}"
    return "ok", fact, ""


def _harmless(name: str, value: str) -> str:
    return "(set, not shown)" if _SECRET.search(name) or _USER_IN_URL.search(value) else value


def _compiler(around: Surroundings) -> Answer:
    try:
        path = find_compiler(around.options)
    except Exception as error:
        fact, _, remedy = str(error).partition(". ")
        return "problem", fact, remedy
    return "ok", f"{path}: {compiler_version(path).strip().splitlines()[0]}", ""


def _kernel(around: Surroundings) -> Answer:
    tried = around.trial
    if not tried.error:
        return "ok", f"compiled in {tried.compile_s:.1f} s; its results are those of the interpreter", ""
    if "CompilerNotFoundError" in tried.error:
        return "problem", "none can be compiled", "install a C++ compiler, see above"
    return "problem", tried.error, f"if the text does not say what to do, {REPORT_IT}"


def _launcher(around: Surroundings) -> Answer:
    reason = around.trial.launcher_error
    if not reason:
        return "ok", "kernels are called from C++", ""
    if around.trial.error:
        return "warning", "kernels cannot be called from C++ either", "first make a kernel run, see above"
    remedy = f"calls go through Python and take some microseconds more; {REPORT_IT}"
    return "warning", f"does not work: {reason}", remedy


def _threads(_: Surroundings) -> Answer:
    if not torch.backends.openmp.is_available():
        return "warning", "torch was built without OpenMP", "kernels run on one core; install another build of torch"
    threads, own = torch.get_num_threads(), cores()
    fact = f"{count_text(threads, 'OpenMP thread')}, {count_text(own, 'core')} for this process"
    if threads > own:
        return "warning", fact, f"set OMP_NUM_THREADS={own}: threads that share a core wait for each other"
    return "ok", fact, ""


def _cpu(_: Surroundings) -> Answer:
    capability = torch.backends.cpu.get_cpu_capability()
    fact = f"{cpu_model()}, {capability}"
    if capability in ("AVX2", "AVX512"):
        return "ok", fact, ""
    return "warning", fact, "kernels are compiled for AVX2 and AVX512; here they are portable code, right but slower"


def _target(_: Surroundings) -> Answer:
    target = Target.current("cpu")
    fact = f"{target.name}: {target.origin}"
    if vendor() in _MEASURED_VENDORS:
        return "ok", fact, ""
    remedy = "kernels are right all the same; their predicted times, and with them what is fused, may be off"
    return "warning", f"{fact}; there are no figures for this CPU", remedy


def _gpu(around: Surroundings) -> Answer:
    if not torch.cuda.is_available():
        return "ok", "none that torch can use", ""
    found = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    fact = f"{', '.join(found)}; torch is built for CUDA {torch.version.cuda}"
    if not supports_cuda():
        return "warning", f"{fact}; there is no Triton, which weft writes code for GPUs in", "`pip install triton`"
    try:
        known = Target.current("cuda")
    except ValueError as error:
        return "warning", f"{fact}; {error}", "models on it are left to TorchInductor"
    if (measured := calibration.kept(known, around.options)) is not None:
        return "ok", f"{fact}; {measured}", ""
    if known.measured:
        return "ok", f"{fact}; its constants come with weft", ""
    return "ok", f"{fact}; it is measured when it is first compiled for, or by `weft calibrate`", ""


def _cache(around: Surroundings) -> Answer:
    store = Cache(around.options.cache_dir, around.options.cache_bytes)
    sizes = [entry.size_bytes for entry in store.entries()]
    fact = f"{store.folder}: {_files(sizes)} of at most {decimal(store.limit_bytes)}"
    status, fact, remedy = _folder(store.folder, fact, "WEFT_CACHE_DIR")
    if status == "ok" and (damaged := len(store.damaged())):
        remedy = "`weft cache verify --repair` removes them; they are never loaded, and compiled again when needed"
        return "warning", f"{fact}, {damaged} damaged", remedy
    return status, fact, remedy


def _inductor_cache(around: Surroundings) -> Answer:
    folder = Path(chosen_inductor_folder(around.environment) or default_cache_dir()).absolute()
    sizes: list[int] = []
    for place, _, names in os.walk(folder):
        for name in names:
            with suppress(OSError):
                sizes.append(os.lstat(os.path.join(place, name)).st_size)
        if len(sizes) > MOST_FILES:
            break
    more = "more than " if len(sizes) > MOST_FILES else ""
    return _folder(folder, f"{folder}: {more}{_files(sizes)}", "TORCHINDUCTOR_CACHE_DIR")


def _files(sizes: Sequence[int]) -> str:
    return f"{count_text(len(sizes), 'file')}, {decimal(sum(sizes))}"


def _folder(folder: Path, fact: str, variable: str) -> Answer:
    """Whether a cache can be kept in a folder. It is not created."""
    remedy = f"set {variable} to a folder that only you can write to"
    place = folder
    while not place.exists() and place != place.parent:
        place = place.parent
    if place == folder and (refusal := check_folder(folder)) is not None:
        have = "" if refusal.have is None else f" ({refusal.have})"
        return "warning", f"{fact}, not trusted: {refusal.message}{have}", remedy
    if not os.access(place, os.W_OK | os.X_OK):
        return "warning", f"{fact}, {place} is read only", remedy
    if (free := shutil.disk_usage(place).free) < LEAST_FREE_BYTES:
        return "warning", f"{fact}, {decimal(free)} free on its disk", f"make room, or {remedy}"
    return "ok", fact if place == folder else f"{folder}: not there yet, can be created", ""


CHECKS: dict[str, Callable[[Surroundings], Answer]] = {
    "weft": lambda _: ("ok", f"{weft.__version__} in {Path(weft.__file__).parent}", ""),
    "python": lambda _: ("ok", f"{platform.python_implementation()} {platform.python_version()}", ""),
    "system": lambda _: ("ok", platform.platform(), ""),
    "torch": _torch,
    "triton": _triton,
    "nvrtc": _nvrtc,
    "packages": _packages,
    "settings": _settings,
    "compiler": _compiler,
    "kernel": _kernel,
    "launcher": _launcher,
    "threads": _threads,
    "cpu": _cpu,
    "target": _target,
    "gpu": _gpu,
    "weft's cache": _cache,
    "inductor's cache": _inductor_cache,
}
"""In the order in which they are shown."""
