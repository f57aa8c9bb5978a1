"""What PyTorch loads when it is first told to compile a model by the name "weft".

If a GPU is in use by then, the model is taken to be on it: TorchInductor's compile processes, which take seconds to
start, do so while the model is traced.
"""

from __future__ import annotations

import torch

from weft.integration.backend import start_workers, weft_backend

__all__ = ["weft_backend"]

if torch.cuda.is_initialized():
    start_workers()
