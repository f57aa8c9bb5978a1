"""What a compiled CUDA kernel holds of an SM, as ptxas says it in the log of NVRTC: no GPU and no other tool is
needed."""

from __future__ import annotations

import re

from weft.backends.resource_usage import ResourceUsage
from weft.errors import BuildError

VERBOSE = "--verbose"
"""The option of ptxas that has it say so."""


def resource_usage(log: str, entry: str, dynamic_shared_bytes: int) -> ResourceUsage:
    """Usage of the function ``entry``. log: of a compilation with ``VERBOSE``. dynamic_shared_bytes: what the function
    is started with; the 1024 bytes that the system takes from Hopper on are not counted. Raises BuildError if nothing
    is said of the function."""
    _, _, said = log.partition(f"Compiling entry function '{entry}' for ")
    said, _, _ = said.partition("Compiling entry function ")
    memory = re.search(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads", said)
    used = re.search(r"Used (\d+) registers(.*)", said)
    if memory is None or used is None:
        raise BuildError(f"NVRTC says nothing of what {entry} uses: {log.strip()[:200]}")
    static = re.search(r"(\d+) bytes smem", used[2])
    return ResourceUsage(
        registers=int(used[1]),
        spill_bytes=int(memory[2]) + int(memory[3]),
        shared_bytes=(int(static[1]) if static else 0) + dynamic_shared_bytes,
        stack_bytes=int(memory[1]),
    )
