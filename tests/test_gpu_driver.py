"""The CUDA driver as weft calls it, played by functions with its types."""

from __future__ import annotations

import ctypes
from typing import Any

import pytest

from weft.errors import BuildError
from weft.runtime.gpu import driver

MODULE, FUNCTION, CONTEXT = 0x10, 0x20, 0x30
COOPERATIVE, CLUSTER_DIMENSION = 2, 4  # of CUlaunchAttributeID
MOST_SHARED, STATIC_SHARED = 232448, 1024


class Library:
    """libcuda. called: names, in order, with what each was given. fails: the function that returns an error. configs:
    the numbers that a CUlaunchConfig begins with, up to the stream, and the bytes of each of its attributes."""

    def __init__(self) -> None:
        self.called: list[tuple[str, list[Any]]] = []
        self.fails, self.context = "", CONTEXT
        self.words: list[int] = []
        self.configs: list[tuple[list[int], list[bytes]]] = []

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
                "cuOccupancyMaxActiveClusters": 31,
            }
            if name == "cuGetErrorString":
                ctypes.cast(given[1], ctypes.POINTER(ctypes.c_char_p))[0] = b"out of memory"
            elif name in answers:
                kind = ctypes.c_int if "Attribute" in name or "Occupancy" in name else ctypes.c_size_t
                ctypes.cast(given[0], ctypes.POINTER(kind))[0] = answers[name]
            if name == "cuLaunchKernelEx":
                self.configs.append(config_at(ctypes.addressof(given[0]._obj)))
                self.words = [ctypes.c_int64.from_address(place).value for place in given[2]]
            if name == "cuOccupancyMaxActiveClusters":
                self.configs.append(config_at(ctypes.addressof(given[2]._obj)))
            return 2 if name == self.fails else 0

        return call

    def names(self) -> list[str]:
        return [name for name, _ in self.called]


def config_at(address: int) -> tuple[list[int], list[bytes]]:
    """What is in a CUlaunchConfig, read where cuda.h has it."""
    counts = (ctypes.c_uint * 7).from_address(address)
    stream, attributes = (ctypes.c_uint64.from_address(address + at).value for at in (32, 40))
    count = ctypes.c_uint.from_address(address + 48).value
    return [*counts, stream], [ctypes.string_at(attributes + 72 * at, 72) for at in range(count)]


def attribute(kind: int, *values: int) -> bytes:
    """A CUlaunchAttribute: its kind, and a union of 64 bytes at the eighth, which begins with values of 32 bits."""
    return kind.to_bytes(8, "little") + b"".join(v.to_bytes(4, "little") for v in values).ljust(64, b"\0")


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


@pytest.mark.parametrize(("cluster", "is_told"), [(1, False), (8, False), (16, True)])
def test_a_function_with_a_large_cluster_is_told_that_it_may_have_it(
    cluster: int, is_told: bool, library: Library
) -> None:
    driver.load_function(b"", "weft_p", 2048, 3, cluster)
    told = [given for name, given in library.called if name == "cuFuncSetAttribute"]
    assert told == ([[FUNCTION, 14, 1]] if is_told else [])


def test_more_shared_memory_than_there_is_is_an_error(library: Library) -> None:
    with pytest.raises(BuildError, match=r"^weft_p takes 231425 bytes of shared memory, the GPU has 232448$"):
        driver.load_function(b"", "weft_p", MOST_SHARED - STATIC_SHARED + 1, 3)


def test_a_thread_without_a_context_takes_pytorchs(library: Library) -> None:
    library.context = 0
    driver.ensure_context(3)
    assert library.names() == ["cuInit", "cuCtxGetCurrent", "cuDevicePrimaryCtxRetain", "cuCtxSetCurrent"]
    assert library.called[2][1][1] == 3


@pytest.mark.parametrize("cluster", [1, 4, 16])
@pytest.mark.parametrize("cooperative", [False, True])
def test_a_function_is_started_with_its_words_and_null_behind_them(
    cooperative: bool, cluster: int, library: Library
) -> None:
    driver.start(FUNCTION, (264, 2), 128, 2048, 77, [2**63 + 5, 7, -3], cooperative, cluster)
    ((name, given),) = library.called
    assert (name, given[1], given[3]) == ("cuLaunchKernelEx", FUNCTION, None)
    ((numbers, attributes),) = library.configs
    assert numbers == [264, 2, 1, 128, 1, 1, 2048, 77]
    together = [attribute(COOPERATIVE, 1)] if cooperative else []
    assert attributes == [*together, *([attribute(CLUSTER_DIMENSION, cluster, 1, 1)] if cluster > 1 else [])]
    assert library.words == [2**63 + 5 - 2**64, 7, -3, *[0] * driver.SPARE_WORDS]


def test_structures_are_as_cuda_has_them() -> None:
    """The sizes and offsets that a C compiler gives those of cuda.h, of CUDA 12.8 and 13.0, in bytes."""
    made = {kind: (ctypes.sizeof(kind), ctypes.alignment(kind)) for kind in (driver._Config, driver._Attribute)}
    assert made == {driver._Config: (56, 8), driver._Attribute: (72, 8)}
    fields = ("grid", "block", "shared_bytes", "stream", "attributes", "attribute_count")
    assert [getattr(driver._Config, name).offset for name in fields] == [0, 12, 24, 32, 40, 48]
    assert [getattr(driver._Attribute, name).offset for name in ("kind", "value")] == [0, 8]
    assert [getattr(driver._Value, name).offset for name in ("cooperative", "cluster")] == [0, 0]


def test_the_driver_says_how_many_programs_fit(library: Library) -> None:
    assert driver.programs_per_unit(FUNCTION, 128, 2048) == 9
    assert library.called[0][1][1:] == [FUNCTION, 128, 2048]


def test_the_driver_says_how_many_clusters_fit(library: Library) -> None:
    assert driver.max_clusters(FUNCTION, 4, 128, 2048) == 31
    assert library.called[0][1][1] == FUNCTION
    assert library.configs == [([4, 1, 1, 128, 1, 1, 2048, 0], [attribute(CLUSTER_DIMENSION, 4, 1, 1)])]


@pytest.mark.parametrize(
    "name",
    [
        "cuModuleLoadData",
        "cuOccupancyMaxActiveBlocksPerMultiprocessor",
        "cuOccupancyMaxActiveClusters",
        "cuLaunchKernelEx",
    ],
)
def test_what_the_driver_refuses_is_an_error_with_its_words(name: str, library: Library) -> None:
    library.fails = name

    def use() -> None:
        driver.load_function(b"", "weft_p", 0, 0)
        driver.programs_per_unit(FUNCTION, 128, 0)
        driver.max_clusters(FUNCTION, 2, 128, 0)
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
