"""Options and fixtures of all tests."""

from __future__ import annotations

import json
import logging
import os
import sys
import tempfile
from collections.abc import Callable, Generator, Iterator
from functools import cache, partial, wraps
from pathlib import Path
from threading import Thread
from typing import Any, NamedTuple

import pytest
import torch
import torch._functorch.config
import torch._inductor.config
from filelock import FileLock
from torch._inductor import cpu_vec_isa

from tests import only_triton
from tests.changed import have_changed
from tests.together import build_together, build_what_is_asked_for_together
from weft.backends import listed
from weft.options import Options
from weft.runtime import build, failures, launcher
from weft.runtime.cache import Cache

_SHARED = {path.stem for path in Path(__file__).parent.glob("[a-z]*.py") if not path.stem.startswith("test_")}
# modules that tests share say what they compared, too
pytest.register_assert_rewrite(*(f"tests.{name}" for name in sorted(_SHARED - {"changed", "conftest", "together"})))

GENERATED_WITH = "2.13"
"""The release of torch that the golden files and the pages' outputs are kept for: others trace other graphs."""


def pytest_addoption(parser: pytest.Parser) -> None:
    text = "write golden files and the outputs shown in the documentation anew instead of comparing with them"
    parser.addoption("--update-golden", action="store_true", help=text)
    text = "leave tests out that are marked with paths, where no file of these has changed, nor that of the test"
    parser.addoption("--where-changed", action="store_true", help=text)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Tests that are left out are counted as deselected."""
    if not config.getoption("--where-changed"):
        return
    changed = cache(lambda *paths: have_changed(paths, config.rootpath))
    kept: list[pytest.Item] = []
    left_out: list[pytest.Item] = []
    for item in items:
        mark = item.get_closest_marker("where_changed")
        needed = mark is None or changed(*mark.args, str(item.path))
        (kept if needed else left_out).append(item)
    config.hook.pytest_deselected(items=left_out)
    items[:] = kept


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """A module of tests is compiled by the first process that comes to it, and read by the others: ten seconds of each
    where nothing has been compiled yet."""
    if not isinstance(collector, pytest.Module) or "PYTEST_XDIST_WORKER" not in os.environ or sys.dont_write_bytecode:
        return (yield)
    with FileLock(f"{Options.read().cache_dir}.{collector.path.stem}.collected.lock"):
        return (yield)


@pytest.fixture(autouse=True)
def _planned_for(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.node.get_closest_marker("only_triton"):
        monkeypatch.setattr(listed, "backends", only_triton.backends)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """One more than there are cores: tests wait for processes that they start."""
    return (os.cpu_count() or 1) + 1


def pytest_configure(config: pytest.Config) -> None:
    """Compiled kernels stay in pytest's own cache between runs, unless the environment names a folder."""
    if "WEFT_CACHE_DIR" not in os.environ:
        cache = getattr(config, "cache", None)  # absent with `-p no:cacheprovider`
        folder = tempfile.mkdtemp(prefix="weft-tests-") if cache is None else str(cache.mkdir("weft") / "kernels")
        # a folder that weft creates: pytest's own may be writable by a group, which weft does not trust
        os.environ["WEFT_CACHE_DIR"] = folder
    _precompile_the_header_once()
    build_what_is_asked_for_together()
    # a graph that a run before has left in Inductor's cache would never come to weft
    torch._inductor.config.fx_graph_cache = False
    torch._functorch.config.enable_autograd_cache = False
    if getattr(config.option, "numprocesses", None):  # of pytest-xdist
        # the header, for which all processes wait, while this one looks at instructions and those start
        Thread(target=build.warm_up, args=(Options.read(),)).start()
        _check_vector_instructions_once()
    # torch's structured trace would put hundreds of empty lines into the report of a failure
    logging.getLogger("torch.__trace").disabled = "TORCH_TRACE" not in os.environ


def _precompile_the_header_once() -> None:
    """Kernels of tests are in many folders, each of which needs the precompiled header, four seconds of g++: it is made
    for one of them, and is the same in the others."""
    precompile, options = build._precompile, Options.read()
    if hasattr(precompile, "__wrapped__"):  # pytest ran in this process before
        return
    kept = Cache(options.cache_dir, options.cache_bytes)

    @wraps(precompile)
    def precompiled(compiler: str) -> bytes:
        key = build._key("header for tests", (build._header_folder() / build.HEADER).read_text(), compiler)
        made = kept.get(key, "header", "header for tests", lambda: precompile(compiler))
        # nothing is read of a header that was there already
        return made.path.read_bytes() if made.path is not None else made.content

    build._precompile = precompiled


def _check_vector_instructions_once() -> None:
    """A process in which TorchInductor compiles C++ first compiles up to three programs to see which instructions there
    are, some four seconds where its cache is new. Where all of them work, processes that are started here need not."""
    tried = cpu_vec_isa.valid_vec_isa_list()
    with torch._inductor.config.patch({"cpp.vec_isa_ok": True}):
        taken_on_trust = cpu_vec_isa.valid_vec_isa_list.__wrapped__()
    if tried == taken_on_trust:
        os.environ["TORCHINDUCTOR_VEC_ISA_OK"] = "1"


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)
    failures.forget()
    launcher.forget()


@pytest.fixture(scope="module", autouse=True)
def _built(request: pytest.FixtureRequest) -> None:
    """Kernels of the tests of a module that are marked so, compiled together; by one process, for which others wait."""
    cases: list[tuple[Callable[[], object], int]] = []
    for item in request.session.items:
        if isinstance(item, pytest.Function) and item.module is request.module:
            for mark in item.iter_markers("built_together"):
                given = item.callspec.params if hasattr(item, "callspec") else {}
                cases.append((partial(item.obj, **given), *mark.args))
    if cases:
        with FileLock(f"{Options.read().cache_dir}.{request.module.__name__}.lock"):
            build_together(cases)


class CommandResult(NamedTuple):
    """What a command of ``weft`` came to."""

    code: int
    out: str
    err: str

    def json(self) -> Any:
        return json.loads(self.out)


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Callable[..., CommandResult]:
    """Runs the command line in this process."""
    from weft import cli

    def run_command(*arguments: str) -> CommandResult:
        capsys.readouterr()
        with pytest.raises(SystemExit) as exit_info:
            cli.main(arguments)
        captured = capsys.readouterr()
        return CommandResult(int(exit_info.value.code or 0), captured.out, captured.err)

    return run_command


@pytest.fixture
def update_golden(request: pytest.FixtureRequest) -> bool:
    """Whether generated text is written anew. Skips the test with another torch than the one the text is kept for."""
    if not torch.__version__.startswith(f"{GENERATED_WITH}."):
        pytest.skip(f"generated text is kept for torch {GENERATED_WITH}, this is {torch.__version__}")
    return bool(request.config.getoption("--update-golden"))


@pytest.fixture(scope="module")
def real_pool() -> Iterator[Any]:
    """TorchInductor's pool of compile workers, ready."""
    from torch._inductor import async_compile

    if async_compile.get_compile_threads() <= 1:
        pytest.skip("TorchInductor compiles in one process here")
    async_compile.AsyncCompile.warm_pool()
    async_compile.AsyncCompile.wait_pool_ready()
    yield async_compile.AsyncCompile.process_pool()
    async_compile.shutdown_compile_workers()
