"""What GPU kernels are compiled to: a binary a function, for tensors and numbers of a kind."""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass

from weft.backends.resource_usage import ResourceUsage
from weft.backends.source import Source
from weft.ir.dtypes import itemsize
from weft.plan.kernel import Kernel

ALIGNMENT_BYTES = 16
"""Of vector loads and stores. Addresses and numbers that are multiples of it are compiled in as such."""
_EPOCH = (1980, 1, 1, 0, 0, 0)


@dataclass(frozen=True)
class Variant:
    """What a binary may rely on. aligned: of each tensor, inputs first, whether it starts at a multiple of 16 bytes.
    divisible: of each run-time parameter, whether it is a multiple of 16."""

    aligned: tuple[bool, ...]
    divisible: tuple[bool, ...]

    @staticmethod
    def expected(kernel: Kernel, hints: Mapping[str, int]) -> Variant:
        """What most calls are like: with the likely values of parameters and places of inputs, or multiples of 16."""
        program = kernel.program
        begins = (hints.get(b.within or b.name, 0) + b.place * itemsize(b.dtype) for b in program.inputs)
        inputs = (begin % ALIGNMENT_BYTES == 0 for begin in begins)
        divisible = (hints.get(p, 0) % ALIGNMENT_BYTES == 0 for p in program.parameters)
        return Variant((*inputs, *(True for _ in program.outputs)), tuple(divisible))

    @staticmethod
    def of_call(addresses: Iterable[int], parameters: Sequence[int]) -> Variant:
        """What one call is like. addresses: of its tensors."""
        aligned = tuple(address % ALIGNMENT_BYTES == 0 for address in addresses)
        return Variant(aligned, tuple(p % ALIGNMENT_BYTES == 0 for p in parameters))

    def without_alignment(self) -> Variant:
        """The same for tensors anywhere."""
        return Variant((False,) * len(self.aligned), self.divisible)


@dataclass(frozen=True)
class Job:
    """Binaries that are to be made. architecture: compute capability, e.g. 90 of 9.0."""

    kernel: Kernel
    source: Source
    variant: Variant
    architecture: int


@dataclass(frozen=True)
class Binary:
    """A compiled function. content: what the driver loads. shared_bytes: that a program is started with."""

    entry: str
    content: bytes
    shared_bytes: int
    usage: ResourceUsage


def pack(binaries: Iterable[Binary]) -> bytes:
    """The functions of a source as one file, which is the same for the same functions: a zip file with the content of
    each, and what is known of it."""
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as archive:
        for binary in binaries:
            known = {"shared_bytes": binary.shared_bytes, "usage": asdict(binary.usage)}
            for suffix, content in ((".cubin", binary.content), (".json", json.dumps(known).encode())):
                archive.writestr(zipfile.ZipInfo(binary.entry + suffix, _EPOCH), content, zipfile.ZIP_DEFLATED)
    return made.getvalue()


def unpack(content: bytes) -> dict[str, Binary]:
    """The functions of such a file by name."""
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        files = {name: archive.read(name) for name in archive.namelist()}
    found: dict[str, Binary] = {}
    for entry in (name.removesuffix(".cubin") for name in files if name.endswith(".cubin")):
        known = json.loads(files[f"{entry}.json"])
        usage = ResourceUsage(**known["usage"])
        found[entry] = Binary(entry, files[f"{entry}.cubin"], known["shared_bytes"], usage)
    return found
