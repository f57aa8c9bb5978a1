"""What weft says while it works: which log has what, and how WEFT_LOGS, TORCH_LOGS and torch's set_logs reach them."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import warnings
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import weft
from weft import logs
from weft.backends.source import Source
from weft.capture.trace import trace
from weft.compiler import compile_graph
from weft.errors import BuildError
from weft.integration import report
from weft.integration.backend import WeftPass
from weft.options import Options
from weft.plan.planner import plan_split
from weft.runtime import cache
from weft.runtime.cache import Cache
from weft.target import Target

ROOT = Path(__file__).parent.parent
KEY, OTHER = "ab" * 16, "cd" * 16


@pytest.fixture(autouse=True)
def untouched(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Nothing is turned on, and nothing was said."""
    monkeypatch.setattr(logs, "_SHOWN", set())
    monkeypatch.setattr(cache, "_UNWRITABLE", {})
    monkeypatch.setattr(cache, "_WARNED", set())
    logs.turn_on.cache_clear()
    weft.counters.reset()
    yield
    logs.turn_on.cache_clear()
    for name in logs.LOGS.values():
        logger = logging.getLogger(name)
        logger.handlers.clear()
        logger.propagate = True
        logger.setLevel(logging.NOTSET)


def in_passes(x: Tensor) -> Tensor:
    """Two means over rows, the second of what the first made: kernels that cannot be one."""
    centred = x - x.mean(0)
    return centred / centred.abs().mean(0)


def messages(caplog: pytest.LogCaptureFixture, name: str) -> list[str]:
    return [r.getMessage() for r in caplog.records if r.name == logs.LOGS[name]]


# what is said


def test_the_plan_of_each_region_is_said_when_it_is_taken(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    found = compile_graph(trace(in_passes, (torch.randn(2048, 64),)).graph)
    assert messages(caplog, "plan") == [str(region.plan) for region in found.regions]
    assert len(found.regions) == 1


def test_a_graph_is_said_with_what_is_fused_and_what_is_refused(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    weft.clear_reports()

    def function(x: Tensor) -> Tensor:
        return torch.softmax(x, -1).cumsum(0)

    WeftPass(Options.read())(trace(function, (torch.randn(64, 32),)).graph)
    (said,) = messages(caplog, "fusion")
    assert said == f"graph:\n{weft.last_reports()[-1].text()}"
    assert said.splitlines()[-1] == "left out: 1 x unsupported_op: aten.cumsum.default is no operation weft fuses"


def test_a_graph_without_regions_is_said_too(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    WeftPass(Options.read())(torch.fx.Graph())
    assert messages(caplog, "fusion") == ["graph:\nnothing to fuse"]


def test_cuts_are_counted_by_rule(monkeypatch: pytest.MonkeyPatch) -> None:
    compilation = compile_graph(trace(in_passes, (torch.randn(2048, 64),)).graph)
    (region,) = compilation.regions
    plan = plan_split(region.program, ("m",), ("n",), Target.named("cpu"), {})
    rules = [refusal.rule for refusal in plan.cuts]  # type: ignore[union-attr]
    assert rules
    assert set(rules) == {"outer_dependency"}
    replacement = report.Compilation((report.CompiledRegion(region.region, region.program, plan, ()),) * 2, ())  # type: ignore[arg-type]
    monkeypatch.setattr(WeftPass, "_replace_regions", lambda *_: replacement)
    WeftPass(Options.read())(torch.fx.Graph())
    assert weft.counters.cuts == {"outer_dependency": 2 * len(rules)}
    assert weft.counters.to_dict()["cuts"] == {"outer_dependency": 2 * len(rules)}
    assert weft.counters.refusals == {}
    weft.counters.reset()
    assert weft.counters.cuts == {}


def test_the_cache_says_misses_builds_hits_damage_and_evictions(
    caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    caplog.set_level(logging.INFO)
    store = Cache(tmp_path / "cache", 100)
    store.get(KEY, "kernel", "norm", lambda: b"x" * 80)
    store.get(KEY, "kernel", "norm", lambda: b"")
    store.entries()[0].path.write_bytes(b"damaged")
    store.get(KEY, "kernel", "norm", lambda: b"x" * 80)
    store.get(OTHER, "kernel", "softmax", lambda: b"y" * 90)
    shown = [m.partition(" in ")[0] for m in messages(caplog, "cache")]
    assert shown == [
        "miss: kernel norm (abababababab)",
        "built: kernel norm, 80 bytes",
        "hit: kernel norm (abababababab)",
        "damaged: kernel norm (abababababab)",
        "miss: kernel norm (abababababab)",
        "built: kernel norm, 80 bytes",
        "miss: kernel softmax (cdcdcdcdcdcd)",
        "built: kernel softmax, 90 bytes",
        "evicted: kernel norm (abababababab), 80 bytes",
    ]


def test_the_cache_says_what_fails(caplog: pytest.LogCaptureFixture, tmp_path: Path) -> None:
    caplog.set_level(logging.INFO)

    def fail() -> bytes:
        raise BuildError("no")

    with pytest.raises(BuildError):
        Cache(tmp_path / "cache", 100).get(KEY, "kernel", "norm", fail)
    assert messages(caplog, "cache")[-1] == "failed: kernel norm: no"
    (tmp_path / "file").write_text("")
    with pytest.warns(UserWarning, match="not kept"):
        Cache(tmp_path / "file", 100).get(KEY, "kernel", "norm", lambda: b"x")
    not_kept, built = messages(caplog, "cache")[-2:]
    assert not_kept.startswith("not kept: kernel norm: [Errno 17] File exists")
    assert built.startswith("built: kernel norm, 1 bytes")


def test_a_source_is_said_once_and_only_to_those_who_ask(caplog: pytest.LogCaptureFixture) -> None:
    one, two = Source("cpp", "f", "int f;"), Source("cpp", "g", "int g;")
    caplog.set_level(logging.INFO)
    logs.log_sources([one])
    assert messages(caplog, "source") == []
    caplog.set_level(logging.DEBUG)
    logs.log_sources([one, two, one])
    logs.log_sources([two])
    assert messages(caplog, "source") == ["int f;", "int g;"]


# where it goes


def test_logs_go_to_standard_error_under_their_names(capsys: pytest.CaptureFixture[str]) -> None:
    logs.turn_on(("plan", "source"))
    logging.getLogger("weft.plan").info("one\ntwo")
    logging.getLogger("weft.backends.source").debug("int f;")
    logging.getLogger("weft.runtime.cache").info("not asked for")
    logs.turn_on(("plan",))
    logging.getLogger("weft.plan").info("once")
    assert capsys.readouterr().err == "weft plan: one\nweft plan: two\nint f;\nweft plan: once\n"


def test_a_logger_with_a_handler_keeps_that_one_alone(capsys: pytest.CaptureFixture[str]) -> None:
    kept: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: kept.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("weft.plan").addHandler(handler)
    logs.turn_on(("plan",))
    logging.getLogger("weft.plan").info("one")
    assert (kept, capsys.readouterr().err) == (["one"], "")


def test_unknown_names_are_one_warning_that_lists_the_known_ones() -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(2):
            logs.turn_on(("colour", "plan", "size"))
    assert [str(w.message) for w in caught] == [
        "weft: no log named colour, size (WEFT_LOGS); known: cache, fusion, plan, source"
    ]
    assert logging.getLogger("weft.plan").level == logging.DEBUG


@pytest.mark.parametrize(
    ("given", "environment", "expected"),
    [
        ({}, {}, ()),
        ({}, {"WEFT_LOGS": ""}, ()),
        ({}, {"WEFT_LOGS": " plan, ,cache,plan"}, ("plan", "cache")),
        ({"logs": "fusion"}, {"WEFT_LOGS": "plan"}, ("fusion",)),
        ({"logs": ["fusion", "plan"]}, {}, ("fusion", "plan")),
        ({}, {"WEFT_PRINT_SOURCE": "1"}, ("source",)),
        ({}, {"WEFT_PRINT_SOURCE": "1", "WEFT_LOGS": "source,plan"}, ("source", "plan")),
        ({}, {"WEFT_PRINT_SOURCE": "0"}, ()),
        ({}, {"WEFT_PRINT_SOURCE": ""}, ()),
    ],
)
def test_logs_are_options(given: dict[str, Any], environment: dict[str, str], expected: tuple[str, ...]) -> None:
    assert Options.read(given, environment).logs == expected


def test_logs_are_no_part_of_the_key_of_a_compiled_graph() -> None:
    assert WeftPass(Options.read({}, {"WEFT_LOGS": "plan"})).uuid() == WeftPass(Options.read({}, {})).uuid()


def test_every_logger_is_a_module_so_that_torch_knows_it() -> None:
    assert [name for name in logs.LOGS.values() if find_spec(name) is None] == []


# in processes of their own

SCRIPT = """
x = torch.randn(64, 48)
assert torch.allclose(weft.fuse(lambda x: torch.softmax(x, -1))(x), torch.softmax(x, -1), atol=1e-6)
"""


def run_python(code: str, folder: Path, **environment: str) -> list[str]:
    """Lines that a script writes to standard error."""
    own = {"TORCHINDUCTOR_CACHE_DIR": str(folder / "inductor"), "PYTHONPATH": str(ROOT)}
    names = ("WEFT_LOGS", "WEFT_PRINT_SOURCE", "TORCH_LOGS")
    env = {k: v for k, v in os.environ.items() if k not in names} | own | environment
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stderr.splitlines()


def test_variables_print_what_a_fresh_process_compiles_and_what_the_next_one_finds(tmp_path: Path) -> None:
    code = f"import torch, weft{SCRIPT}"
    asked = {"WEFT_LOGS": "fusion,plan,cache", "WEFT_PRINT_SOURCE": "1"}
    cold = run_python(code, tmp_path, **asked)
    assert [line for line in cold if line.startswith("weft fusion: region of")]
    assert [line for line in cold if line.startswith("weft plan: plan for cpu")]
    assert [line for line in cold if line.startswith(("weft cache: built: kernel", "weft cache: hit: kernel"))]
    entry = 'extern "C" void weft_'
    assert sum(line.startswith(entry) for line in cold) == 1
    warm = run_python(code, tmp_path, **asked)  # the graph is in Inductor's cache: no stage but the cache's runs
    assert not [line for line in warm if line.startswith(("weft fusion", "weft plan", "weft cache: built"))]
    assert [line for line in warm if line.startswith("weft cache: hit: kernel row_")]
    assert sum(line.startswith(entry) for line in warm) == 1


@pytest.mark.parametrize("first", ["torch", pytest.param("weft", marks=pytest.mark.slow)])
def test_torch_logs_knows_the_modules(tmp_path: Path, first: str) -> None:
    wanted = "weft.plan,weft.runtime.cache" if first == "torch" else "+weft"
    shown = run_python(f"import {first}\nimport torch, weft{SCRIPT}", tmp_path, TORCH_LOGS=wanted)
    assert sum("plan for cpu" in line for line in shown) == 1
    assert [line for line in shown if "hit: kernel" in line or "built: kernel" in line]
    sources = sum('extern "C" void weft_' in line for line in shown)
    assert (sources, sum("region of" in line for line in shown)) == ((0, 0) if first == "torch" else (1, 1))


@pytest.mark.slow
def test_set_logs_knows_the_modules(tmp_path: Path) -> None:
    code = "import logging, torch, weft\ntorch._logging.set_logs(modules={'weft.plan': logging.INFO})\n"
    shown = run_python(code + SCRIPT, tmp_path)
    assert sum("plan for cpu" in line for line in shown) == 1
    assert not [line for line in shown if "region of" in line or "hit: kernel" in line]
