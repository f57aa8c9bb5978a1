"""torch.compile(backend="weft") and weft.fuse: gradients, caches, options, failures."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import textwrap
import warnings
from dataclasses import dataclass
from importlib.metadata import entry_points
from pathlib import Path
from queue import Queue
from threading import Thread, current_thread
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, fx
from torch._inductor import compile_fx
from torch._inductor.runtime import triton_compat
from torch._subclasses.fake_tensor import FakeTensorMode

import weft
from tests.cases import SMALL_MODELS, often
from tests.forked import run_forked
from weft import target
from weft.backends.triton import build as triton_build
from weft.bench.models import MODELS
from weft.integration import backend
from weft.options import Options
from weft.runtime.cache import Cache
from weft.runtime.executable import Executable, digest_of
from weft.runtime.gpu import calls as gpu_calls

ROOT = Path(__file__).parent.parent


@pytest.fixture(autouse=True)
def fresh() -> None:
    torch._dynamo.reset()
    weft.counters.reset()
    weft.clear_reports()


def run_python(
    code: str, folder: Path, *, with_launcher: bool = True, forked: bool = False, **environment: str
) -> dict[str, Any]:
    """Run a script in a process of its own, with caches in ``folder`` unless the environment names others, where the
    precompiled header is and, if asked for, the launcher, which take seconds to make; it prints one line of JSON last.
    forked: the process has its imports from one that others share, for a second one that finds what a first has made.
    """
    start_cache(folder / "weft", with_launcher)
    env = {
        **os.environ,
        "TORCHINDUCTOR_CACHE_DIR": str(folder / "inductor"),
        "WEFT_CACHE_DIR": str(folder / "weft"),
        "PYTHONPATH": str(ROOT),
        **environment,
    }
    code = textwrap.dedent(code)
    if forked:
        done = run_forked(code, env)
    else:
        done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1]) | {"stderr": done.stderr}


def start_cache(folder: Path, with_launcher: bool) -> None:
    """What kernels are compiled and started with, from the cache of this process."""
    if folder.exists():
        return
    folder.mkdir(mode=0o700)
    options = Options.read()
    for entry in Cache(options.cache_dir, options.cache_bytes).entries():
        if entry.kind == "header" or (with_launcher and entry.name == "weft_launcher"):
            (folder / entry.path.parent.name).mkdir(mode=0o700, exist_ok=True)
            os.link(entry.path, folder / entry.path.parent.name / entry.path.name)


BLOCK = """
    import json, torch, weft
    import torch.nn.functional as F
    torch.manual_seed(0)
    w = torch.randn(96, requires_grad=True)
    x = torch.randn(40, 96, requires_grad=True)

    def block(x, w):
        return F.layer_norm(x, (96,), w).sin()

    compiled = torch.compile(block, backend="weft", fullgraph=True)
    compiled(x, w).sum().backward()
    expected = torch.autograd.grad(block(x, w).sum(), (x, w))
    assert torch.allclose(x.grad, expected[0], atol=1e-5) and torch.allclose(w.grad, expected[1], atol=1e-4)
    print(json.dumps(weft.counters.to_dict() | {"report": weft.last_reports()[-1].text()}))
"""


@dataclass(frozen=True)
class First:
    """What a first process printed, and the folder with its caches, of which others have copies of weft's."""

    printed: dict[str, Any]
    folder: Path

    def then(self, code: str, folder: Path, without: str = "") -> dict[str, Any]:
        """What another process prints that has the first one's caches, but for weft's files of some names."""
        shutil.copytree(self.folder / "weft", folder / "weft")
        for file in (folder / "weft").rglob(without) if without else ():
            file.unlink()
        return run_python(code, folder, forked=True, TORCHINDUCTOR_CACHE_DIR=str(self.folder / "inductor"))


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory) -> First:
    folder = tmp_path_factory.mktemp("first")
    return First(run_python(BLOCK, folder), folder)


def test_a_second_process_runs_the_kernels_from_inductors_cache_without_the_pass(first: First, tmp_path: Path) -> None:
    cold, warm = first.printed, first.then(BLOCK, tmp_path)
    assert cold["pass_calls"] == cold["builds"] == cold["kernels"] == 2
    assert warm["pass_calls"] == warm["builds"] == warm["fallbacks"] == 0
    assert warm["launches"] == cold["launches"] == warm["cache_hits"] == 2
    assert "region of" in cold["report"]
    assert "2 kernel(s) of graphs from Inductor's cache" in warm["report"]


CARRIED = """
    import os, sys, torch, weft
    from pathlib import Path
    import torch.nn.functional as F
    torch.set_num_threads(2)  # TorchInductor's own part of the keys has this number
    artifacts = Path(ARTIFACTS)
    if artifacts.exists():
        assert torch.compiler.load_cache_artifacts(artifacts.read_bytes()) is not None

    def block(x, w):
        return F.layer_norm(x, (96,), w).sin()

    given = {"cache_dir": CACHE_DIR, "build_threads": THREADS}
    compiled = torch.compile(block, backend="weft", fullgraph=True, options=given)
    x, w = torch.randn(40, 96, requires_grad=True), torch.randn(96, requires_grad=True)
    compiled(x, w).sum().backward()
    torch.testing.assert_close(torch.autograd.grad(block(x, w).sum(), x)[0], x.grad)
    if not artifacts.exists():
        artifacts.write_bytes(torch.compiler.save_cache_artifacts()[0])
    import json
    from torch._dynamo.utils import counters
    print(json.dumps(weft.counters.to_dict() | {"hits": counters["aot_autograd"]["autograd_cache_hit"]}))
"""


def test_saved_artifacts_are_found_in_another_home_with_other_folders_and_cores(tmp_path: Path) -> None:
    found: list[dict[str, Any]] = []
    for process, threads in (("one", 1), ("other", 2)):
        home = tmp_path / process
        home.mkdir()
        names = {"ARTIFACTS": str(tmp_path / "artifacts"), "CACHE_DIR": str(home / "weft"), "THREADS": threads}
        code = "".join(f"    {name} = {value!r}\n" for name, value in names.items()) + CARRIED
        variables = {
            "HOME": str(home),
            "XDG_CACHE_HOME": str(home / "cache"),
            "WEFT_CACHE_BYTES": f"{threads}000000000",
        }
        found.append(run_python(code, home, forked=process == "other", **variables))
    saved, loaded = found
    assert (saved["pass_calls"], saved["hits"]) == (2, 0)
    assert (loaded["pass_calls"], loaded["hits"]) == (0, 1)
    assert loaded["launches"] == saved["launches"] == 2
    assert loaded["fallbacks"] == 0


def test_a_second_process_rebuilds_kernels_whose_files_are_gone(first: First, tmp_path: Path) -> None:
    warm = first.then(BLOCK, tmp_path, without="*.so")
    assert warm["pass_calls"] == 0
    assert warm["builds"] == warm["launches"] == 2


def test_a_warm_process_without_a_compiler_evaluates_the_program_with_one_warning(first: First, tmp_path: Path) -> None:
    code = BLOCK.replace("compiled(x, w).sum()", "compiled(x, w); compiled(x, w).sum()")
    # the backend itself looks for a compiler too: let it find one, and take it away before the first launch
    broken = code.replace(
        "compiled = torch.compile(",
        "from weft.runtime import build, launch\n    from weft.errors import CompilerNotFoundError\n"
        "    def none(options):\n        raise CompilerNotFoundError('no C++ compiler found')\n"
        "    build.find_compiler = none\n    compiled = torch.compile(",
    )
    warm = first.then(broken, tmp_path, without="*.so")
    assert warm["pass_calls"] == warm["launches"] == 0
    assert warm["fallbacks"] == 3
    assert warm["stderr"].count("runs on ATen") == 1, warm["stderr"]


def test_without_a_compiler_the_model_runs_and_says_what_to_install(tmp_path: Path) -> None:
    code = BLOCK.replace("weft.last_reports()[-1].text()", "''")
    result = run_python(code, tmp_path, CXX="/nowhere/g++")
    assert result["launches"] == 0
    assert "no C++ compiler found" in result["stderr"]
    assert "apt-get install g++" in result["stderr"]


LEAST_MIXED = {"plain": 1, "residual_mix": 3}
"""Kernels with row and column reductions in a training step of one block, for models where that is known."""


@pytest.mark.parametrize("autocast", [True, pytest.param(False, marks=pytest.mark.slow)], ids=["bf16", "f32"])
@pytest.mark.parametrize("name", often(MODELS, ("scale_shift_table",)))
def test_a_model_trains_as_in_eager_mode(name: str, autocast: bool) -> None:
    torch.manual_seed(0)
    sizes = {**SMALL_MODELS[name], "dim": 64}
    model = MODELS[name](**(sizes if "blocks" not in sizes else {**sizes, "blocks": 1}))
    with torch.no_grad():
        for parameter in model.parameters():  # as after some training: nothing is zero, no two norms are the same
            parameter.add_(0.02 * torch.randn_like(parameter))
    batch = model.make_batch(2, 32, 0)

    def gradients(step: Any) -> tuple[float, list[Tensor]]:
        model.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            loss = step(*batch)
        loss.backward()
        return loss.item(), [p.grad.clone() for p in model.parameters()]

    loss, mine = gradients(torch.compile(model, backend="weft", fullgraph=True))
    eager_loss, theirs = gradients(model)
    assert abs(loss - eager_loss) < (2e-3 if autocast else 1e-5)
    for ours, reference, (parameter, _) in zip(mine, theirs, model.named_parameters(), strict=True):
        error = ((ours - reference).norm() / reference.norm()).item()
        assert error < (0.02 if autocast else 1e-4), f"{parameter}: {error}"
    assert weft.counters.pass_calls == 2
    assert weft.counters.kernels > 5
    assert weft.counters.launches == weft.counters.kernels
    mixed = [k for r in weft.last_reports() for c in r.regions for k in c.plan.kinds if k == "mixed-order"]
    assert len(mixed) == weft.counters.mixed_order_kernels >= LEAST_MIXED.get(name, 1)


@pytest.mark.parametrize(("batch", "conditions"), often([(1, 1), (2, 2), (2, 1)], [(1, 1)]))
def test_a_table_of_modulations_gets_the_gradients_of_float64(batch: int, conditions: int) -> None:
    """Its slices broadcast over positions, and over the batch where there is one condition for all."""
    torch.manual_seed(0)
    model = MODELS["scale_shift_table"](dim=96, tables=1)
    x, condition, target = model.make_batch(batch, 160, 0)
    inputs = (x, condition[:conditions], target)
    torch.compile(model, backend="weft", fullgraph=True)(*inputs).backward()
    exact = MODELS["scale_shift_table"](dim=96, tables=1).double()
    exact.load_state_dict(model.state_dict())
    exact(*(value.double() for value in inputs)).backward()
    for (name, ours), reference in zip(model.named_parameters(), exact.parameters(), strict=True):
        assert ours.grad is not None
        assert reference.grad is not None
        error = ((ours.grad - reference.grad).norm() / reference.grad.norm()).item()
        assert error < 1e-5, f"{name}: {error}"
    assert weft.counters.launches == weft.counters.kernels > 0


def test_changing_batch_and_sequence_compiles_nothing_new() -> None:
    def block(x: Tensor, w: Tensor) -> Tensor:
        return F.rms_norm(x, (64,), w) * 2

    w = torch.randn(64, requires_grad=True)
    fused = weft.fuse(block, dynamic=True)
    for batch, sequence in ((2, 3), (4, 5), (7, 11), (3, 130), (16, 2)):
        x = torch.randn(batch, sequence, 64, requires_grad=True)
        mine = torch.autograd.grad(fused(x, w).square().sum(), (x, w))
        eager = torch.autograd.grad(block(x, w).square().sum(), (x, w))
        for a, b in zip(mine, eager, strict=True):
            torch.testing.assert_close(a, b, rtol=2e-4, atol=2e-4)
    assert weft.counters.pass_calls == 2
    assert weft.counters.launches == 10


def test_fuse_keeps_the_name_and_strict_mode_names_the_users_line() -> None:
    def normalised_product(x: Tensor, w: Tensor) -> Tensor:
        product = x @ w
        return F.softmax(product, -1)

    assert weft.fuse(normalised_product).__name__ == "normalised_product"
    with pytest.raises(weft.RefusedError, match=r"product = x @ w") as caught:
        weft.fuse(normalised_product, strict=True)(torch.randn(8, 16), torch.randn(16, 16))
    (refusal,) = caught.value.refusals
    assert refusal.rule == "unsupported_op"
    assert "mm" in refusal.message
    assert weft.fuse(normalised_product)(torch.randn(8, 16), torch.randn(16, 16)).shape == (8, 16)


def test_an_unknown_option_names_the_known_ones() -> None:
    known = "build_threads, cache_bytes, cache_dir, check, cxx, exact_widths, logs, max_reads"
    with pytest.raises(ValueError, match=f"unknown option colour; weft knows {known}"):
        Options.read({"colour": 1})
    with pytest.raises(ValueError, match="unknown option colour"):
        weft.fuse(torch.softmax, colour=1)


def test_an_option_that_is_nobodys_is_an_error_before_anything_is_compiled() -> None:
    def compiled(**options: Any) -> Any:
        return torch.compile(lambda x: F.softmax(x, -1), backend="weft", options=options)(torch.randn(9, 33))

    for options, said in (
        ({"cache_byte": 3}, r"unknown option cache_byte; did you mean cache_bytes of weft\?"),
        ({"cudagraphs": 1, "check": "first"}, r"option cudagraphs; did you mean triton\.cudagraphs of TorchInductor\?"),
        (
            {"compile_thread": 2},
            r"option compile_thread; did you mean \w+ of weft or compile_threads of TorchInductor\?",
        ),
        (
            {"strikt": 1, "sm_margi": 2},
            r"option sm_margi; did you mean sm_margin .*\n.* option strikt; did you mean strict",
        ),
        ({"q": 1}, r"option q; weft knows build_threads, .*; those of TorchInductor are in torch\._inductor\.config"),
    ):
        with pytest.raises(Exception, match=said):
            compiled(**options)
    with pytest.raises(Exception, match="Unexpected type of attr max_autotune, got str should be bool"):
        compiled(max_autotune="yes")
    assert weft.counters.pass_calls == 0


def test_another_custom_pass_stays_in_place() -> None:
    from torch._inductor import config
    from torch._inductor.custom_graph_pass import CustomGraphPass

    class Counting(CustomGraphPass):
        calls = 0

        def __call__(self, graph: Any) -> None:
            Counting.calls += 1

        def uuid(self) -> Any:
            return "counting"

    with config.patch(post_grad_custom_post_pass=Counting()):
        compiled = torch.compile(lambda x: F.softmax(x, -1), backend="weft", fullgraph=True)
        compiled(torch.randn(9, 33))
    assert Counting.calls == weft.counters.launches == 1


@pytest.mark.parametrize(("options", "expected"), [({}, False), ({"triton.mix_order_reduction": True}, True)])
def test_inductors_own_mix_order_fusion_is_off_while_it_compiles_unless_asked_for(
    options: dict[str, Any], expected: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The switch as Inductor's scheduler finds it, in the forward and in the backward."""
    from torch._inductor import config, scheduler

    seen: list[bool] = []

    class Watched(scheduler.Scheduler):
        def __init__(self, nodes: Any) -> None:
            seen.append(config.triton.mix_order_reduction)
            super().__init__(nodes)

    monkeypatch.setattr(scheduler, "Scheduler", Watched)
    x = torch.randn(12, 40, requires_grad=True)
    with config.patch({"triton.mix_order_reduction": True}):
        torch.compile(lambda x: F.softmax(x.sin(), -1).cos(), backend="weft", options=options)(x).sum().backward()
        assert seen == [expected, expected]
        assert config.triton.mix_order_reduction


@pytest.mark.parametrize("known", [True, False])
def test_the_switch_of_mix_order_fusion_is_only_set_where_inductor_has_it(
    known: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    from torch._inductor import compile_fx, config

    name = "triton.mix_order_reduction"
    entries: dict[str, Any] = config._config  # type: ignore[attr-defined]
    if not known:
        monkeypatch.delitem(entries, name)
    patches: list[dict[str, Any]] = []
    monkeypatch.setattr(compile_fx, "compile_fx", lambda *_, config_patches, **__: patches.append(config_patches))
    backend.weft_backend(torch.fx.symbolic_trace(torch.nn.Softmax(-1)), [torch.randn(9, 33)])
    assert [p.get(name, "not set") for p in patches] == [False if known else "not set"]


IN_KEYS = {"strict": True, "cxx": "other-g++", "check": "always", "sm_margin": 3, "race": True} | {
    "max_reads": 10,
    "mix_order": False,
    "remat": False,
}
NOT_IN_KEYS = {"cache_dir": "a", "cache_bytes": 7, "build_threads": 3, "logs": "plan", "tuned": False}
NOT_IN_KEYS |= {"exact_widths": 0}
"""Options with other values than their defaults, where there is no table of measured schedules."""


def test_the_uuid_has_the_options_that_change_a_graph_and_no_others(tmp_path: Path) -> None:
    def uuid(**options: Any) -> Any:
        return backend.WeftPass(Options.read({"cache_dir": str(tmp_path), **options}, {})).uuid()

    assert IN_KEYS.keys() | NOT_IN_KEYS.keys() == Options.__dataclass_fields__.keys()
    for name, value in (IN_KEYS | NOT_IN_KEYS).items():
        assert (uuid(**{name: value}) != uuid()) == (name in IN_KEYS), name


def test_the_uuid_says_whose_figures_plans_are_made_with(monkeypatch: pytest.MonkeyPatch) -> None:
    found: set[Any] = set()
    for vendor in ("GenuineIntel", "AuthenticAMD"):
        monkeypatch.setattr(target, "vendor", lambda vendor=vendor: vendor)
        found.add(backend.WeftPass(Options.read()).uuid())
    assert len(found) == 2


def test_the_uuid_says_whether_kernels_may_wait_for_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beside kernels of other ranks they may not: a graph that was compiled without ranks is another one."""
    alone = backend.WeftPass(Options.read()).uuid()
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    assert backend.WeftPass(Options.read()).uuid() != alone


def test_a_failing_stage_leaves_the_graph_to_inductor_with_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any, **__: Any) -> Any:
        raise RuntimeError("planned to fail")

    monkeypatch.setattr(backend.compiler, "compile_graph", broken)
    x = torch.randn(9, 33)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        result = torch.compile(lambda x: F.softmax(x, -1) + 1, backend="weft", fullgraph=True)(x)
    torch.testing.assert_close(result, F.softmax(x, -1) + 1)
    assert weft.counters.launches == 0
    assert sum("planned to fail" in str(w.message) for w in caught) == 1


def test_a_defect_in_one_region_leaves_the_others_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    from weft.errors import VerificationError

    original = backend.compiler.compile_region

    def broken(region: Any, *rest: Any) -> Any:
        if any("amax" in node.name for node in region.members):
            raise VerificationError("planned to fail")
        return original(region, *rest)

    def two(x: Tensor, w: Tensor) -> Tensor:
        return F.rms_norm((x - x.amax(-1, keepdim=True)) @ w, (33,))

    monkeypatch.setattr(backend.compiler, "compile_region", broken)
    x, w = torch.randn(9, 33), torch.randn(33, 33)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        result = torch.compile(two, backend="weft", fullgraph=True)(x, w)
    torch.testing.assert_close(result, two(x, w))
    assert weft.counters.launches == 1
    assert weft.counters.refusals["internal_error"] == 1
    assert sum("planned to fail" in str(w.message) for w in caught) == 1


def test_an_input_that_is_mutated_is_read_before() -> None:
    def step(x: Tensor, state: Tensor) -> Tensor:
        y = F.softmax(x + state, -1)
        state.add_(1)
        return y * state

    x, state = torch.randn(8, 32), torch.randn(8, 32)
    mine, theirs = state.clone(), state.clone()
    result = torch.compile(step, backend="weft", fullgraph=True)(x, mine)
    torch.testing.assert_close(result, step(x, theirs))
    torch.testing.assert_close(mine, theirs)


def test_the_launch_operator_is_a_valid_operator() -> None:
    seen: list[tuple[Any, ...]] = []

    original = Executable.__call__

    def spy(self: Executable, inputs: Any, outputs: Any, parameters: Any, check: str) -> None:
        text = str(self.kernel)
        seen.append((digest_of(self.kernel), text, list(inputs), list(outputs), list(parameters), check))
        original(self, inputs, outputs, parameters, check)

    Executable.__call__ = spy  # type: ignore[method-assign]
    try:
        weft.fuse(lambda x: F.softmax(x, -1))(torch.randn(8, 32))
    finally:
        Executable.__call__ = original  # type: ignore[method-assign]
    (arguments,) = seen
    torch.library.opcheck(torch.ops.weft.launch.default, arguments, test_utils=("test_schema", "test_faketensor"))


@pytest.mark.parametrize("is_used", [False, True])
def test_workers_start_when_the_backend_is_loaded_if_a_gpu_is_used(
    is_used: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    happened: list[str] = []
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: is_used)
    monkeypatch.setattr(backend, "start_workers", lambda: happened.append("workers"))
    monkeypatch.delitem(sys.modules, "weft.integration.entry", raising=False)
    (entry,) = entry_points(group="torch_dynamo_backends", name="weft")
    assert entry.load() is backend.weft_backend
    assert happened == ["workers"] * is_used


def test_triton_is_hashed_beside_the_tracing(monkeypatch: pytest.MonkeyPatch) -> None:
    hashed = Queue[Thread]()
    monkeypatch.setattr(triton_compat, "HAS_TRITON", True)
    monkeypatch.setattr(triton_compat, "triton_key", lambda: hashed.put(current_thread()))
    monkeypatch.setattr(triton_build, "use_torchs_ptxas", lambda: None)
    monkeypatch.setattr(backend.compile_workers, "start", lambda: None)
    gpu_calls._hash_beside.cache_clear()
    for _ in range(2):
        backend.start_workers()
    assert hashed.get(timeout=60) is not current_thread()
    gpu_calls._hash_beside.cache_clear()
    assert hashed.empty()


def test_a_gpu_is_known_before_the_keys_of_its_graphs_are_made(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is measured of it is a part of them, and so is the release of ptxas that TorchInductor finds."""
    happened: list[str] = []
    monkeypatch.setattr(backend.launcher, "load", lambda _: None)
    monkeypatch.setattr(triton_build, "use_torchs_ptxas", lambda: happened.append("ptxas"))
    monkeypatch.setattr(backend.compile_workers, "start", lambda: happened.append("workers"))
    monkeypatch.setattr(backend, "target_of", lambda device, *_: happened.append(str(device)))
    monkeypatch.setattr(compile_fx, "compile_fx", lambda *_, **__: happened.append("compiled") or (lambda: None))
    graph = fx.symbolic_trace(lambda x, y: x + y)
    with FakeTensorMode():
        inputs = [torch.empty(4, device="cuda:0"), torch.empty(4, device="cpu")]
    backend.weft_backend(graph, inputs)
    assert happened == ["ptxas", "workers", "cuda:0", "compiled"]
    happened.clear()
    backend.weft_backend(graph, inputs[1:])
    assert happened == ["compiled"]
