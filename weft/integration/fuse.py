"""``weft.fuse``: one function, no model needed."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial, wraps
from typing import Any, TypeVar, overload

import torch

from weft.errors import RefusedError
from weft.integration.backend import weft_backend
from weft.options import Options

F = TypeVar("F", bound=Callable[..., Any])


@overload
def fuse(fn: F, *, strict: bool = False, dynamic: bool | None = None, **options: Any) -> F: ...
@overload
def fuse(*, strict: bool = False, dynamic: bool | None = None, **options: Any) -> Callable[[F], F]: ...
def fuse(fn: Any = None, *, strict: bool = False, dynamic: bool | None = None, **options: Any) -> Any:
    """A function that computes what ``fn`` does, its reductions and the pointwise work around them in one pass.

    fn: any function of tensors; the result is differentiable if ``fn`` is. Without it, what comes back is a decorator.
    strict: raise RefusedError, with every reason, if an operation of the forward or (when it is first run) the backward
    would be left out, instead of leaving it to Inductor. dynamic: as in torch.compile. options: fields of
    ``weft.options.Options``; ValueError for others.

    The same function with the same options is compiled once, however often it is fused. As in torch.compile with
    ``fullgraph=True`` a call that needs more than ``torch._dynamo.config.recompile_limit`` (8) compiled forms of a
    function raises; those of other options count as well.
    """
    given = {"strict": strict, **options}
    Options.read(given)  # an unknown option is an error here, not at the first call
    if fn is None:
        return partial(fuse, dynamic=dynamic, **given)
    # torch compares backends by function and options: equal ones share what is compiled
    compiled = torch.compile(fn, fullgraph=True, dynamic=dynamic, backend=weft_backend, options=given)

    @wraps(fn)
    def fused(*args: Any, **kwargs: Any) -> Any:
        try:
            return compiled(*args, **kwargs)
        except Exception as error:
            refused = _cause(error)
            if refused is not None:
                raise refused from None
            raise

    return fused


def _cause(error: BaseException) -> RefusedError | None:
    """The refusal behind whatever dynamo wrapped it in."""
    seen: BaseException | None = error
    while seen is not None:
        if isinstance(seen, RefusedError):
            return seen
        inner = getattr(seen, "inner_exception", None)
        seen = inner if isinstance(inner, BaseException) else seen.__cause__ or seen.__context__
    return None
