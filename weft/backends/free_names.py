"""Names that the language of a kernel's text leaves free."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from weft.ir.names import Names, edges_and_values
from weft.plan.kernel import Kernel


def with_free_names(
    kernel: Kernel, taken: frozenset[str], endings: Sequence[str], functions: Collection[str] = ()
) -> Kernel:
    """The same kernel, with underscores behind names that are ``taken``. endings: what a renderer puts behind the name
    of a dimension, a value or a buffer to make another. functions: names that no parameter may have either."""
    program = kernel.program
    values = edges_and_values(program)
    stems = {name.rstrip("_") for name in (*(d.name for d in program.dims), *values)}
    used: set[str] = set()

    def is_taken(name: str) -> bool:
        derived = (name.removesuffix(end) for end in endings if name.endswith(end))
        return name in taken or name in used or any(stem.rstrip("_") in stems for stem in derived)

    def free(names: Iterable[str], others: Collection[str] = ()) -> dict[str, str]:
        chosen: dict[str, str] = {}
        for name in names:
            new = name
            while is_taken(new) or new in others:
                new += "_"
            chosen[name] = new
            used.add(new)
        return chosen

    parameters = free(program.parameters, functions)
    dims = free(d.name for d in program.dims)
    return kernel.renamed(Names(parameters, dims, free(values)))
