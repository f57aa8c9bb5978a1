"""Which kernels run in place of others that their compiler made spill, for processes that have no plan: a process that
takes a graph from TorchInductor's cache knows its kernels by their text alone."""

from __future__ import annotations

import hashlib
from contextlib import suppress
from dataclasses import replace

import torch

from weft.backends.listed import backend_of
from weft.options import Options
from weft.plan.kernel import Kernel
from weft.plan.schedule import parse_schedule
from weft.runtime.cache import Cache
from weft.runtime.package import package_digest


def keep(kernel: Kernel, other: Kernel, options: Options) -> None:
    """Keep that another kernel, of the same program, runs in place of one on the GPU at hand. Others are not kept."""
    if backend_of(kernel).compiler:
        content = str(other.schedule).encode()
        _cache(options).get(_key(kernel), "runner_up", kernel.name, lambda: content)


def known(kernel: Kernel, options: Options) -> Kernel:
    """What is kept for a kernel, or else the kernel."""
    with suppress(Exception):  # no GPU, or from a release whose schedules have other fields
        if backend_of(kernel).compiler and (content := _cache(options).find(_key(kernel))) is not None:
            return replace(kernel, schedule=parse_schedule(content.decode()))
    return kernel


def _cache(options: Options) -> Cache:
    return Cache(options.cache_dir, options.cache_bytes)


def _key(kernel: Kernel) -> str:
    """Of a kernel and what decides whether it spills: the GPU, and the releases of its compiler and of weft. Raises an
    error where there is no GPU or no compiler."""
    parts = (kernel, torch.cuda.get_device_name(), backend_of(kernel).compiler, package_digest())
    return hashlib.sha256("\0".join(map(str, parts)).encode()).hexdigest()[:32]
