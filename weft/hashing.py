"""Hashes of what is never changed, found once: programs, splits and schedules are keys of many tables."""

from __future__ import annotations

from typing import Any, TypeVar

T = TypeVar("T")


def hash_once(cls: type[T]) -> type[T]:
    """A frozen dataclass whose instances keep their hash. Those of strings differ between processes, so that it does
    not travel to another one."""
    computed = cls.__hash__

    def __hash__(self: Any) -> int:
        try:
            return self.__dict__["_hash"]
        except KeyError:
            found = self.__dict__["_hash"] = computed(self)
            return found

    def __getstate__(self: Any) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_hash"}

    cls.__hash__ = __hash__
    cls.__getstate__ = __getstate__
    return cls
