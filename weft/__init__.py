"""weft: fusion of row and column reductions for PyTorch.

``torch.compile(model, backend="weft")`` for models, ``weft.fuse(fn)`` for functions.
"""

import warnings as _warnings

import torch as _torch

from weft.errors import Refusal, RefusedError, WeftError
from weft.explain.explanation import Explanation, explain
from weft.integration.fuse import fuse
from weft.integration.report import clear_reports, last_reports
from weft.runtime.counters import counters
from weft.target import Target
from weft.torch_version import torch_version_supported as _torch_version_supported

__version__ = "0.1.0"
__all__ = [
    "Explanation",
    "Refusal",
    "RefusedError",
    "Target",
    "WeftError",
    "__version__",
    "clear_reports",
    "counters",
    "explain",
    "fuse",
    "last_reports",
]

if not _torch_version_supported():
    _warnings.warn(
        f"weft {__version__} is made for torch 2.11 to 2.15; this is {_torch.__version__}. "
        "It may work; if it does not, install a torch in that range.",
        stacklevel=2,
    )
