"""What a compiled Triton kernel holds of an SM, as the tools that come with Triton read it: no GPU is needed."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

from weft.backends.resource_usage import ResourceUsage
from weft.errors import BuildError


def resource_usage(cubin: bytes, entry: str, dynamic_shared_bytes: int, ptx: str | None, folder: Path) -> ResourceUsage:
    """Usage of the function ``entry`` of a binary. dynamic_shared_bytes: what it is started with.

    Only a function with a stack can spill: then ``ptx``, its text, is compiled once more for what ptxas says of it;
    without a text the whole stack counts. folder: for the tools' files. Raises BuildError.
    """
    from triton import knobs

    path = folder / f"{entry[:80]}.cubin"
    path.write_bytes(cubin)
    usage = parse_cuobjdump(_run([knobs.nvidia.cuobjdump.path, "-res-usage", str(path)]), entry)
    stack_bytes = usage["STACK"] + usage["LOCAL"]
    if stack_bytes == 0:
        spill_bytes = 0
    elif ptx is None:
        spill_bytes = stack_bytes
    else:
        spill_bytes = parse_ptxas(_compile_again(ptx, path.with_suffix(".ptx")), entry)
    return ResourceUsage(usage["REG"], spill_bytes, usage["SHARED"] + dynamic_shared_bytes, stack_bytes)


def parse_cuobjdump(text: str, entry: str) -> dict[str, int]:
    """The figures of one function in the output of ``cuobjdump -res-usage``. Raises BuildError if it is not there.

    REG: registers of a thread. STACK, LOCAL: bytes of a thread's memory. SHARED: static bytes of a program, of which
    the system takes 1024 from Hopper on.
    """
    found = re.search(rf"Function {re.escape(entry)}:\s*\n(.*)", text)
    figures = {name: int(number) for name, number in re.findall(r"(\w+):(\d+)", found[1])} if found else {}
    if not {"REG", "STACK", "SHARED", "LOCAL"} <= figures.keys():
        raise BuildError(f"cuobjdump says nothing of {entry}: {text.strip()[:200]}")
    return figures


def parse_ptxas(text: str, entry: str) -> int:
    """Bytes of spill stores and loads of one function in the output of ``ptxas -v``. Raises BuildError if it is not
    there."""
    found = re.search(
        rf"Function properties for {re.escape(entry)}\s*\n.*?(\d+) bytes spill stores, (\d+) bytes spill loads", text
    )
    if found is None:
        raise BuildError(f"ptxas says nothing of {entry}: {text.strip()[:200]}")
    return int(found[1]) + int(found[2])


def _compile_again(ptx: str, path: Path) -> str:
    from triton.backends.nvidia.compiler import get_ptxas, sm_arch_from_capability

    path.write_text(ptx)
    target = re.search(r"\.target\s+sm_(\d+)", ptx)
    if target is None:
        raise BuildError("a PTX text does not say what it is for")
    arch = int(target[1])
    name = sm_arch_from_capability(arch)
    return _run([get_ptxas(arch).path, "-v", f"--gpu-name={name}", str(path), "-o", str(path.with_suffix(".out"))])


def _run(command: list[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        raise BuildError(f"{Path(command[0]).name} failed: {done.stderr.strip()[:500]}")
    return done.stdout + done.stderr
