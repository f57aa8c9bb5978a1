"""Checks of a nest: what is used was made before."""

from __future__ import annotations

from weft.errors import VerificationError
from weft.lowering.nest import (
    Accumulate,
    Compute,
    Exponentials,
    Gather,
    Hold,
    Load,
    Nest,
    Receive,
    Reduce,
    Restore,
    Send,
    Store,
    Total,
    line,
)


def verify_nest(nest: Nest) -> Nest:
    """What is used was loaded or computed before. Raises VerificationError."""
    by_name, inputs = nest.program.by_name(), {b.name for b in nest.program.inputs}
    outputs = {o.buffer.name: o.value for o in nest.program.outputs}
    known = {name for name, value in by_name.items() if value.op == "const"}
    picked = {value.args[0] for value in by_name.values() if value.op == "pick"}
    sent, held, terms = set[str](), set[str](), set[str]()
    for each in nest.statements():
        needs, makes = set[str](), set[str]()
        match each:
            case Load(buffer=name):
                makes = {name}
                if name not in inputs:
                    raise VerificationError(f"{nest.program.name}: loads {name}, which is no input")
            case Compute(value=name):
                needs, makes = {*by_name[name].args} - picked, {name}
            case Reduce(values=names):
                needs, makes = {by_name[name].args[0] for name in names}, {*names}
            case Send(values=names):
                needs = {by_name[name].args[0] for name in names}
                sent |= {*names}
            case Receive(values=names):
                if unsent := {*names} - sent:
                    raise VerificationError(f"{nest.program.name}: {line(each)}: nobody has sent {', '.join(unsent)}")
                makes = {*names}
            case Accumulate(value=name):
                needs = {by_name[name].args[0]}
            case Total(value=name):
                makes = {name}
            case Gather(values=names):
                makes = {*names}
            case Hold(value=name, lanes=True):
                needs = {by_name[name].args[0]}
                held.add(name)
            case Exponentials(values=names):
                if missing := {*names} - held:
                    raise VerificationError(f"{nest.program.name}: {line(each)}: nobody holds {', '.join(missing)}")
                terms |= {*names}
            case Restore(value=name, of=total) if total:
                if total not in terms:
                    raise VerificationError(f"{nest.program.name}: {line(each)}: nobody holds the terms of {total}")
                needs, makes = {total}, {name}
            case Hold(value=name) | Restore(value=name):
                needs = {name}
            case Store(output=name):
                needs = {outputs[name]}
            case _:
                pass
        if missing := needs - known:
            raise VerificationError(f"{nest.program.name}: {line(each)}: {', '.join(sorted(missing))} is not there yet")
        known |= makes
    return nest
