"""``weft.fuse``: one function, no model needed."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar

import torch

from weft.errors import RefusedError
from weft.integration.backend import weft_backend
from weft.options import Options

F = TypeVar("F", bound=Callable[..., Any])


def fuse(fn: F, *, strict: bool = False, dynamic: bool | None = None, **options: Any) -> F:
    """A function that computes what ``fn`` does, its reductions and the pointwise work around them in one pass.

    fn: any function of tensors; the result is differentiable if ``fn`` is. strict: raise RefusedError, with every
    reason, if an operation of the forward or (when it is first run) the backward would be left out, instead of leaving
    it to Inductor. dynamic: as in torch.compile. options: fields of ``weft.options.Options``; ValueError for others.
    """
    Options.read({"strict": strict, **options})  # an unknown option is an error here, not at the first call
    compiled = torch.compile(fn, fullgraph=True, dynamic=dynamic, backend=_Backend({"strict": strict, **options}))

    @wraps(fn)
    def fused(*args: Any, **kwargs: Any) -> Any:
        try:
            return compiled(*args, **kwargs)
        except Exception as error:
            refused = _cause(error)
            if refused is not None:
                raise refused from None
            raise

    return fused  # type: ignore[return-value]


class _Backend:
    """The backend with its options; comparable, so that two calls with the same options share compiled code."""

    def __init__(self, options: dict[str, Any]) -> None:
        self.options = options

    def __call__(self, gm: Any, example_inputs: Any) -> Any:
        return weft_backend(gm, example_inputs, options=dict(self.options))


def _cause(error: BaseException) -> RefusedError | None:
    """The refusal behind whatever dynamo wrapped it in."""
    seen: BaseException | None = error
    while seen is not None:
        if isinstance(seen, RefusedError):
            return seen
        inner = getattr(seen, "inner_exception", None)
        seen = inner if isinstance(inner, BaseException) else seen.__cause__ or seen.__context__
    return None
