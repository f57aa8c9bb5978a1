"""Artefacts made by TorchInductor's compile workers, and what happens where these are not there, refuse or die."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch._inductor.async_compile

pytest.importorskip("triton")

import triton

from tests.triton_by_hand import SEPARATE, SOURCE, TEXT
from weft import planning
from weft.backends.binary import Job, Variant
from weft.backends.cpp.schedule import CppSchedule
from weft.backends.listed import render
from weft.backends.resource_usage import ResourceUsage
from weft.backends.source import Source
from weft.capture.trace import trace
from weft.compiler import CompiledRegion, compile_graph
from weft.errors import BuildError
from weft.options import Options
from weft.plan.kernel import Kernel
from weft.runtime import compile_workers, head_start
from weft.runtime.compile_workers import Task, Tasks, WorkerLostError
from weft.runtime.counters import counters
from weft.runtime.gpu import builds
from weft.runtime.gpu import calls as gpu
from weft.runtime.gpu.builds import all_binaries, artefacts_in_worker, binaries
from weft.target import Target

ALIGNED, H100 = Variant((True, True, True), (True,)), 90
H200, USED = Target.named("h200"), ResourceUsage(32, 8, 0, 8)
INDUCTOR = "torch._inductor.async_compile"
Answer = Callable[[Callable[..., Any], tuple[Any, ...]], Future[Any]]


class Pool:
    """A pool in this process. asked: names of the jobs. answer: what becomes of one."""

    def __init__(self, answer: Answer, exit_code: int | None = None) -> None:
        self.answer, self.process = answer, SimpleNamespace(poll=lambda: exit_code)
        self.asked: list[str] = []

    def submit(self, function: Callable[..., Any], *arguments: Any) -> Future[Any]:
        self.asked.append(arguments[0].source.name if function is artefacts_in_worker else function.__name__)
        return self.answer(function, arguments)


def done(function: Callable[..., Any], arguments: tuple[Any, ...]) -> Future[Any]:
    future: Future[Any] = Future()
    future.set_result(function(*arguments))
    return future


def failed(error: Exception) -> Answer:
    def answer(function: Callable[..., Any], arguments: tuple[Any, ...]) -> Future[Any]:
        future: Future[Any] = Future()
        future.set_exception(error)
        return future

    return answer


def silent(function: Callable[..., Any], arguments: tuple[Any, ...]) -> Future[Any]:
    return Future()


def closed(function: Callable[..., Any], arguments: tuple[Any, ...]) -> Future[Any]:
    raise BrokenPipeError(32, "Broken pipe")


@pytest.fixture(autouse=True)
def _apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(builds, "_BEGUN", Tasks())
    counters.reset()


@pytest.fixture
def options(tmp_path: Path) -> Options:
    return Options.read({"cache_dir": str(tmp_path / "cache"), "build_threads": 2}, {})


@pytest.fixture
def use(monkeypatch: pytest.MonkeyPatch) -> Callable[[Pool | None], Pool | None]:
    """Takes a pool for TorchInductor's."""

    def take(pool: Pool | None) -> Pool | None:
        monkeypatch.setattr(compile_workers, "_pool", lambda: pool)
        return pool

    return take


@pytest.fixture
def made_here(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the artefacts that were made in this process, with a text in place of each."""
    seen: list[str] = []

    def make(job: Job) -> bytes:
        seen.append(job.source.name)
        if "broken" in job.source.name:
            raise BuildError(f"Triton refused {job.source.name}: a reason")
        return job.source.name.encode()

    monkeypatch.setattr(builds, "artefact", make)
    monkeypatch.setattr(builds, "unpack", lambda content: content)
    return seen


def job(name: str) -> Job:
    kernel = replace(SEPARATE, program=replace(SEPARATE.program, name=name))
    return Job(kernel, Source("triton", name, TEXT.replace("weft_p", f"weft_{name}")), ALIGNED, H100)


JOBS = [job("a"), job("b")]


# real ones


def test_workers_make_the_same_bytes(real_pool: Any, options: Options, monkeypatch: pytest.MonkeyPatch) -> None:
    assert compile_workers.count() >= 2
    here = [builds.artefact(one) for one in JOBS]
    monkeypatch.setattr(triton, "compile", None)  # nothing is compiled in this process
    assert all_binaries(JOBS, options) == [builds.unpack(content) for content in here]
    keys = [builds.key_of(one) for one in JOBS]
    tasks = [compile_workers.submit(artefacts_in_worker, one, key) for one, key in zip(JOBS, keys, strict=True)]
    assert [task.result() for task in tasks if task is not None] == [{k: c} for k, c in zip(keys, here, strict=True)]
    assert (counters.builds, counters.cache_hits) == (2, 0)


def test_what_triton_says_in_a_worker_is_the_error(real_pool: Any, options: Options) -> None:
    wrong = replace(JOBS[0], source=Source("triton", "a", TEXT.replace("def weft_p(", "def weft_q(")))
    with pytest.raises(BuildError) as here:
        builds.artefact(wrong)
    builds.begin([wrong], options)
    assert builds.key_of(wrong) in builds._BEGUN
    with pytest.raises(BuildError) as there:
        binaries(wrong, options)
    assert str(there.value) == str(here.value) == "Triton refused a: KeyError: 'weft_a'"


def test_another_environment_than_the_workers_makes_its_own(
    real_pool: Any, options: Options, monkeypatch: pytest.MonkeyPatch, made_here: list[str]
) -> None:
    monkeypatch.setenv("DISABLE_LLVM_OPT", "1")  # the pool was started without
    assert all_binaries(JOBS, options) == [b"a", b"b"]
    assert sorted(made_here) == ["a", "b"]


# a pool that is played


def test_several_artefacts_are_made_by_workers(
    options: Options, use: Callable[[Pool], Pool], made_here: list[str]
) -> None:
    pool = use(Pool(done))
    assert all_binaries(JOBS, options) == [b"a", b"b"]
    assert (pool.asked, made_here) == (["a", "b"], ["a", "b"])  # this pool is in this process
    assert all_binaries(JOBS, options) == [b"a", b"b"]  # from the cache
    assert (pool.asked, len(made_here)) == (["a", "b"], 2)
    assert (counters.builds, counters.cache_hits) == (2, 2)


@pytest.mark.parametrize("threads", [1, 2])
def test_one_artefact_or_one_thread_needs_no_worker(
    threads: int, options: Options, use: Callable[[Pool], Pool], made_here: list[str]
) -> None:
    pool = use(Pool(done))
    given = JOBS if threads == 1 else JOBS[:1]
    all_binaries(given, replace(options, build_threads=threads))
    assert pool.asked == []
    assert sorted(made_here) == [one.source.name for one in given]


@pytest.mark.parametrize(
    ("pool", "said"),
    [
        (Pool(failed(RuntimeError("a child process terminated abruptly"))), "RuntimeError: a child process terminated"),
        (Pool(silent, exit_code=None), "the pool of compile workers is gone"),
        (Pool(closed), ""),
        (Pool(silent, exit_code=-9), ""),
        (None, ""),
    ],
    ids=["a worker dies", "the pool dies", "the pipe is closed", "the pool is dead", "no pool"],
)
def test_what_no_worker_makes_is_made_here(
    pool: Pool | None,
    said: str,
    options: Options,
    use: Callable[[Pool | None], Pool | None],
    made_here: list[str],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    use(pool)
    monkeypatch.setattr(compile_workers, "LOOK_S", 0.001)
    if pool is not None and said.startswith("the pool"):
        codes = iter([None, None, None])  # it lives while it is asked, and once more
        pool.process = SimpleNamespace(poll=lambda: next(codes, -9))
    with caplog.at_level(logging.INFO, "weft.runtime"):
        assert all_binaries(JOBS, options) == [b"a", b"b"]
    assert sorted(made_here) == ["a", "b"]
    again = [r.message for r in caplog.records if r.message.startswith("compiled again in this process: ")]
    assert len(again) == (2 if said else 0)
    assert all(said in message for message in again)


def test_a_worker_that_would_make_another_artefact_makes_none(
    options: Options, use: Callable[[Pool], Pool], made_here: list[str]
) -> None:
    assert artefacts_in_worker(JOBS[0], "0" * 32) is None
    assert made_here == []
    use(Pool(lambda function, arguments: done(function, (arguments[0], "0" * 32))))
    assert all_binaries(JOBS, options) == [b"a", b"b"]
    assert sorted(made_here) == ["a", "b"]


def test_what_a_worker_was_refused_is_refused_here(
    options: Options, use: Callable[[Pool], Pool], made_here: list[str]
) -> None:
    use(Pool(done))
    with pytest.raises(BuildError, match=r"^Triton refused broken: a reason$"):
        all_binaries([job("broken"), *JOBS], options)
    assert made_here.count("broken") == 1  # not compiled once more


# a head start


def test_what_was_begun_is_fetched(options: Options, use: Callable[[Pool], Pool], made_here: list[str]) -> None:
    pool = use(Pool(done))
    builds.begin(JOBS[:1], options)
    builds.begin(JOBS[:1], options)  # the blocks of a model are the same kernel again
    assert pool.asked == ["a"]
    assert binaries(JOBS[0], options) == b"a"
    assert made_here == ["a"]
    builds.begin(JOBS, options)  # one is in the cache
    assert pool.asked == ["a", "b"]


def test_runners_up_of_a_miss_are_made_where_it_is_found(
    options: Options, use: Callable[[Pool], Pool], made_here: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    other = replace(JOBS[0], kernel=SEPARATE, source=render(SEPARATE))
    asked: list[tuple[Any, ...]] = []

    def missed(kernel: Kernel, used: ResourceUsage, target: Target, hints: Any, built: Callable[[Kernel], Any]) -> None:
        asked.append((kernel, used, target, hints))
        assert built(other.kernel) == USED

    monkeypatch.setattr(builds, "_usage", lambda content: USED)
    monkeypatch.setattr(builds, "without_miss", missed)
    pool = use(Pool(done))
    builds.begin(JOBS[:1], options, H200, [{"s0": 33}])
    assert asked == [(JOBS[0].kernel, USED, H200, {"s0": 33})]
    assert (pool.asked, made_here) == (["a"], ["a", "p"])
    assert binaries(JOBS[0], options) == b"a"
    assert binaries(other, options) == b"p"
    assert made_here == ["a", "p"]  # neither again


def test_a_runner_up_that_cannot_be_built_is_left_to_whoever_asks_for_it(
    options: Options, use: Callable[[Pool], Pool], made_here: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = job("broken").kernel
    monkeypatch.setattr(builds, "_usage", lambda content: USED)
    found: list[Any] = []
    monkeypatch.setattr(builds, "without_miss", lambda *given: found.append(given[-1](broken)))
    use(Pool(done))
    builds.begin(JOBS[:1], options, H200, [{}])
    assert found == [None]
    assert binaries(JOBS[0], options) == b"a"


def test_tasks_that_nobody_fetches_are_forgotten(use: Callable[[Pool], Pool], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compile_workers, "MOST_KEPT", 2)
    use(Pool(lambda function, arguments: done(len, ("xx",))))
    tasks = Tasks()
    for key in "abc":
        tasks.submit(key, artefacts_in_worker, JOBS[0], key)
    assert [key in tasks for key in "abc"] == [False, True, True]
    assert isinstance(tasks.take("b"), Task)
    assert tasks.take("b") is None
    for key in "de":
        tasks.put(key, key)
    assert [key in tasks for key in "cde"] == [False, True, True]


def test_kernels_of_a_gpu_are_begun_as_they_will_be_asked_for(
    options: Options, use: Callable[[Pool], Pool], made_here: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pool = use(Pool(done))
    monkeypatch.setattr(gpu, "architecture_of", lambda _: H100)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(gpu.launcher, "load", lambda _: None)
    on_cpu = replace(SEPARATE, schedule=CppSchedule("STREAM", ("m",), ("n",)))
    given = ([SEPARATE, on_cpu], [SOURCE, SOURCE], [{"s0": 33}, {}])
    head_start.begin(*given, options)
    assert (pool.asked, made_here) == (["p"], ["p"])
    (function,) = gpu.build_all([SEPARATE], [SOURCE], [{"s0": 33}], options)
    assert function.built() == [b"p"]
    assert made_here == ["p"]  # not once more: it is the same artefact


def test_a_head_start_that_fails_is_none(options: Options) -> None:
    if not torch.cuda.is_available():
        head_start.begin([SEPARATE], [SOURCE], [{}], options)  # no CUDA
    head_start.begin([SEPARATE], [], [{}], options)


def test_regions_are_begun_one_after_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each before the next one is planned."""
    happened: list[str] = []
    plan = planning.plan
    monkeypatch.setattr(planning, "plan", lambda program, *rest: happened.append("planned") or plan(program, *rest))

    def norms(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.softmax(x, -1), (y * torch.rsqrt(y.square().mean(-1, keepdim=True))).sum(0)

    def rendered(region: CompiledRegion) -> None:
        happened.append(f"{len(region.sources)} source(s)")

    graph = trace(norms, [torch.randn(512, 64), torch.randn(512, 128)]).graph
    assert len(compile_graph(graph, rendered=rendered).regions) == 2
    assert happened == ["planned", "1 source(s)"] * 2


# which pool


def inductor(**names: Any) -> SimpleNamespace:
    """TorchInductor's module with a pool of two workers."""
    pool = Pool(done)
    process_pool: Any = lambda: pool  # noqa: E731
    process_pool.cache_info = lambda: SimpleNamespace(currsize=names.get("started", 1))
    workers = SimpleNamespace(process_pool=process_pool, use_process_pool=lambda: names.get("ready", True))
    return SimpleNamespace(AsyncCompile=workers, get_compile_threads=lambda: 2, pool=pool)


@pytest.mark.parametrize(
    ("module", "count"),
    [
        (inductor(), 2),
        (inductor(started=0), 0),
        (inductor(ready=False), 0),
        (SimpleNamespace(), 0),
        (None, 0),
    ],
    ids=["ready", "not started", "not ready", "another release", "not imported"],
)
def test_only_a_pool_that_is_ready_is_used(
    module: SimpleNamespace | None, count: int, options: Options, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, INDUCTOR, module)
    assert compile_workers.count() == count
    task = compile_workers.submit(len, "xx")
    assert (None if task is None else task.result()) == (2 if count else None)
    builds.wake_workers(options)
    builds.wake_workers(replace(options, build_threads=1))
    if count:
        assert module is not None
        assert module.pool.asked == ["len", "compilers", "compilers"]


def test_workers_are_started_as_inductor_would(monkeypatch: pytest.MonkeyPatch, caplog: Any) -> None:
    module = torch._inductor.async_compile
    started: list[str] = []
    monkeypatch.setattr(module, "maybe_warm_pool", lambda: started.append("pool"))
    compile_workers.start()
    assert started == ["pool"]
    monkeypatch.delattr(module, "maybe_warm_pool")
    with caplog.at_level("INFO", "weft.runtime"):
        compile_workers.start()
    assert "compile workers are not started: ImportError" in caplog.text


def test_a_task_that_raises_is_lost() -> None:
    with pytest.raises(WorkerLostError, match=r"^TimeoutError: late$|^the pool of compile workers is gone$"):
        Task(failed(TimeoutError("late"))(len, ()), Pool(done)).result()
    with pytest.raises(WorkerLostError, match=r"^ValueError: x$"):
        Task(failed(ValueError("x"))(len, ()), Pool(done)).result()
