"""Which of the options that torch.compile was given are weft's; the others are TorchInductor's."""

from __future__ import annotations

from dataclasses import fields
from difflib import get_close_matches
from typing import Any

import torch
from torch._inductor import config

from weft.options import Options

_OWN = [field.name for field in fields(Options)]


def split(options: dict[str, Any], mode: str | None = None) -> tuple[dict[str, Any], dict[str, Any]]:
    """Options of weft, and what the others and the mode change in TorchInductor's configuration.

    Names may have dashes in them, as TorchInductor's. Raises ValueError for a name that is neither's, and what
    TorchInductor raises for a value of a wrong type.
    """
    by_name = {given.replace("-", "_"): value for given, value in options.items()}
    own = {name: value for name, value in by_name.items() if name in _OWN}
    others = {name: value for name, value in by_name.items() if name not in _OWN}
    try:
        return own, dict(torch._TorchCompileInductorWrapper(mode, others, None).config)
    except RuntimeError:
        if unknown := sorted(others.keys() - _inductors()):
            raise ValueError("\n".join(_neither(name) for name in unknown)) from None
        raise


def _inductors() -> set[str]:
    return set(config.get_config_copy())  # pyright: ignore[reportAttributeAccessIssue]


def _neither(name: str) -> str:
    owners = {"weft": _OWN, "TorchInductor": sorted(_inductors())}
    near = [f"{each} of {owner}" for owner, known in owners.items() for each in get_close_matches(name, known, n=1)]
    known = f"weft knows {', '.join(sorted(_OWN))}; those of TorchInductor are in torch._inductor.config"
    return f"unknown option {name}; " + (f"did you mean {' or '.join(near)}?" if near else known)
