"""Makes a failing case smaller, as long as it fails in the same way."""

from __future__ import annotations

import time
import traceback
from typing import Any


def failure_of(kind: Any, case: Any) -> tuple[str, str] | None:
    """What goes wrong with a case: where or how, and the whole message. None if nothing does."""
    try:
        kind.check(case)
    except Exception as error:
        own = getattr(error, "kind", None)
        frames = traceback.extract_tb(error.__traceback__)
        place = own or f"{type(error).__name__} in {frames[-1].filename}:{frames[-1].lineno}"
        text = str(error) if own else "".join(traceback.format_exception(error)[-6:])
        return place, text
    return None


def shrink(kind: Any, case: Any, place: str, seconds: float) -> tuple[Any, str | None]:
    """The smallest case found in that time that fails at the same place, and its message if it is another case."""
    end, message, progress = time.monotonic() + seconds, None, True
    while progress:
        progress = False
        for candidate in kind.smaller(case):
            if time.monotonic() > end:
                return case, message
            try:
                if not kind.is_valid(candidate):
                    continue
            except Exception:  # a candidate that makes no sense
                continue
            found = failure_of(kind, candidate)
            if found is not None and found[0] == place:
                case, message, progress = candidate, found[1], True
                break
    return case, message
