"""The CUDA driver as weft calls it, played by functions with its types."""

from __future__ import annotations

import ctypes
from typing import Any

import pytest

from weft.errors import BuildError
from weft.runtime.gpu import driver

MODULE, FUNCTION, CONTEXT = 0x10, 0x20, 0x30
MOST_SHARED, STATIC_SHARED = 232448, 1024


class Library:
    """libcuda. called: names, in order, with what each was given. fails: the function that returns an error."""

    def __init__(self) -> None:
        self.called: list[tuple[str, list[Any]]] = []
        self.fails, self.context = "", CONTEXT
        self.words: list[int] = []

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("cu"):
            raise AttributeError(name)

        def call(*given: Any) -> int:
            self.called.append((name, [getattr(g, "value", g) for g in given]))
            answers = {
                "cuModuleLoadData": MODULE,
                "cuModuleGetFunction": FUNCTION,
                "cuCtxGetCurrent": self.context,
                "cuDeviceGetAttribute": MOST_SHARED,
                "cuFuncGetAttribute": STATIC_SHARED,
                "cuOccupancyMaxActiveBlocksPerMultiprocessor": 9,
            }
            if name == "cuGetErrorString":
                ctypes.cast(given[1], ctypes.POINTER(ctypes.c_char_p))[0] = b"out of memory"
            elif name in answers:
                kind = ctypes.c_int if "Attribute" in name or "Occupancy" in name else ctypes.c_size_t
                ctypes.cast(given[0], ctypes.POINTER(kind))[0] = answers[name]
            if name.startswith("cuLaunch"):
                self.words = [ctypes.c_int64.from_address(place).value for place in given[9]]
            return 2 if name == self.fails else 0

        return call

    def names(self) -> list[str]:
        return [name for name, _ in self.called]


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> Library:
    played = Library()
    monkeypatch.setattr(driver, "_driver", lambda: played)
    return played


def test_a_function_is_loaded_from_a_binary(library: Library) -> None:
    assert driver.load_function(b"\x7fELF", "weft_p", 2048, 3) == FUNCTION
    assert library.names() == ["cuInit", "cuCtxGetCurrent", "cuModuleLoadData", "cuModuleGetFunction"]
    assert library.called[2][1][1] == b"\x7fELF"
    assert library.called[3][1][1:] == [MODULE, b"weft_p"]


@pytest.mark.parametrize(("shared_bytes", "is_told"), [(49152, False), (49153, True), (231424, True)])
def test_a_function_with_much_shared_memory_is_told_that_it_may_have_it(
    shared_bytes: int, is_told: bool, library: Library
) -> None:
    driver.load_function(b"", "weft_p", shared_bytes, 3)
    told = [given for name, given in library.called if name == "cuFuncSetAttribute"]
    assert told == ([[FUNCTION, 8, MOST_SHARED - STATIC_SHARED]] if is_told else [])
    assert ("cuFuncSetCacheConfig" in library.names()) is is_told


def test_more_shared_memory_than_there_is_is_an_error(library: Library) -> None:
    with pytest.raises(BuildError, match=r"^weft_p takes 231425 bytes of shared memory, the GPU has 232448$"):
        driver.load_function(b"", "weft_p", MOST_SHARED - STATIC_SHARED + 1, 3)


def test_a_thread_without_a_context_takes_pytorchs(library: Library) -> None:
    library.context = 0
    driver.ensure_context(3)
    assert library.names() == ["cuInit", "cuCtxGetCurrent", "cuDevicePrimaryCtxRetain", "cuCtxSetCurrent"]
    assert library.called[2][1][1] == 3


@pytest.mark.parametrize("cooperative", [False, True])
def test_a_function_is_started_with_its_words_and_null_behind_them(cooperative: bool, library: Library) -> None:
    driver.start(FUNCTION, (264, 2), 128, 2048, 77, [2**63 + 5, 7, -3], cooperative)
    ((name, given),) = library.called
    assert name == ("cuLaunchCooperativeKernel" if cooperative else "cuLaunchKernel")
    assert given[:9] == [FUNCTION, 264, 2, 1, 128, 1, 1, 2048, 77]
    assert given[10:] == ([] if cooperative else [None])
    assert library.words == [2**63 + 5 - 2**64, 7, -3, *[0] * driver.SPARE_WORDS]


def test_the_driver_says_how_many_programs_fit(library: Library) -> None:
    assert driver.programs_per_unit(FUNCTION, 128, 2048) == 9
    assert library.called[0][1][1:] == [FUNCTION, 128, 2048]


@pytest.mark.parametrize("name", ["cuModuleLoadData", "cuOccupancyMaxActiveBlocksPerMultiprocessor", "cuLaunchKernel"])
def test_what_the_driver_refuses_is_an_error_with_its_words(name: str, library: Library) -> None:
    library.fails = name

    def use() -> None:
        driver.load_function(b"", "weft_p", 0, 0)
        driver.programs_per_unit(FUNCTION, 128, 0)
        driver.start(FUNCTION, (1, 1), 128, 0, 0, [], False)

    with pytest.raises(BuildError, match=rf"^{name}: out of memory \(error 2 of the CUDA driver\)$"):
        use()


def test_the_driver_is_looked_for_when_it_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> Any:
        raise OSError(f"{name}: cannot open shared object file")

    driver._driver.cache_clear()
    monkeypatch.setattr(driver.ctypes, "CDLL", missing)
    with pytest.raises(BuildError, match=r"^no CUDA driver: libcuda\.so\.1: cannot open"):
        driver.programs_per_unit(5, 128, 0)
