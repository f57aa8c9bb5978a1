"""Passes of users over post-grad graphs run before weft's, and are cached or not, as TorchInductor does it alone."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, fx
from torch._dynamo.utils import counters
from torch._inductor import config, custom_graph_pass
from torch._inductor.custom_graph_pass import CustomGraphPass
from torch._inductor.utils import fresh_inductor_cache

import weft
from weft.integration import passes

SLOT = "post_grad_custom_post_pass"
needs_lists = pytest.mark.skipif(
    not hasattr(custom_graph_pass, "get_custom_graph_passes"), reason="TorchInductor takes one pass, no list"
)
FUNCTIONALIZED = torch.ops.higher_order.auto_functionalized_v2


@pytest.fixture(autouse=True)
def _fresh() -> None:
    torch._dynamo.reset()
    weft.counters.reset()


def is_launch(node: fx.Node) -> bool:
    return node.target is FUNCTIONALIZED and node.args[0] is torch.ops.weft.launch.default


class Named(CustomGraphPass):
    """Notes how many launches it sees."""

    def __init__(self, name: Any, seen: list[Any]) -> None:
        self.name, self.seen = name, seen

    def __call__(self, graph: fx.Graph) -> None:
        self.seen.append((self.name, sum(is_launch(node) for node in graph.nodes)))

    def uuid(self) -> Any:
        return self.name


def function_of(seen: list[Any]) -> Callable[[fx.Graph], None]:
    def look(graph: fx.Graph) -> None:
        seen.append(("function", sum(is_launch(node) for node in graph.nodes)))

    return look


MAKERS: dict[str, Callable[[list[Any]], Any]] = {
    "function": function_of,
    "cached": lambda seen: Named("cached", seen),
    "not_cached": lambda seen: Named(None, seen),
    "list": lambda seen: [Named("first", seen), Named("second", seen)],
    "list_with_function": lambda seen: (Named("first", seen), function_of(seen)),
    "none": lambda seen: None,
}


def marks_of(kind: str) -> list[pytest.MarkDecorator]:
    return [needs_lists] * ("list" in kind)


def softmax(x: Tensor) -> Tensor:
    return F.softmax(x, -1)


def compile_twice(backend: str, options: dict[str, Any]) -> dict[str, int]:
    """What became of TorchInductor's cache of graphs when a function was compiled, and then again."""
    before = dict(counters["inductor"])
    x = torch.randn(9, 33)
    with fresh_inductor_cache(), config.patch(fx_graph_cache=True):
        for _ in range(2):
            torch._dynamo.reset()
            # options that are empty would be no options
            compiled = torch.compile(softmax, backend=backend, options={"max_fusion_size": 64, **options})
            torch.testing.assert_close(compiled(x), softmax(x))
    after = dict(counters["inductor"])
    return {
        f"fxgraph_cache_{what}": after.get(f"fxgraph_cache_{what}", 0) - before.get(f"fxgraph_cache_{what}", 0)
        for what in ("hit", "miss", "bypass")
    }


GIVEN = [("config", kind) for kind in MAKERS if kind != "list"] + [("options", "list")]
"""Each kind once: those in the options are read by the same function as those in the configuration."""


@pytest.mark.parametrize(
    ("given", "kind"),
    [
        pytest.param(
            given, kind, marks=[needs_lists] * ("list" in kind) + [pytest.mark.slow] * ((given, kind) not in GIVEN)
        )
        for given, kind in product(("options", "config"), MAKERS)
    ],
)
def test_a_users_pass_is_run_and_cached_as_without_weft(kind: str, given: str) -> None:
    found = {}
    for backend in ("inductor", "weft"):
        seen: list[Any] = []
        patch = {SLOT: MAKERS[kind](seen)}
        with config.patch(patch if given == "config" else {}):
            found[backend] = (compile_twice(backend, patch if given == "options" else {}), seen)
    assert found["weft"] == found["inductor"]
    assert weft.counters.pass_calls == (1 if kind in ("cached", "list", "none") else 2)
    assert weft.counters.launches == 2


def test_a_pass_of_the_options_is_in_place_of_the_configured_one() -> None:
    seen: list[Any] = []
    with config.patch({SLOT: Named("configured", seen)}):
        torch.compile(softmax, backend="weft", options={SLOT: Named("given", seen)})(torch.randn(9, 33))
        torch._dynamo.reset()
        torch.compile(softmax, backend="weft", options={SLOT: None})(torch.randn(9, 33))
    assert seen == [("given", 0)]
    assert weft.counters.pass_calls == weft.counters.launches == 2


def test_an_option_may_be_spelt_with_dashes() -> None:
    seen: list[Any] = []
    given = {SLOT.replace("_", "-"): Named("given", seen), "cache-bytes": 10**9}
    torch.compile(softmax, backend="weft", options=given)(torch.randn(9, 33))
    assert seen == [("given", 0)]


@needs_lists
@pytest.mark.parametrize("inference", [True, False])
def test_a_pass_that_asks_for_it_is_told_whether_there_will_be_a_backward(inference: bool) -> None:
    told: list[bool] = []

    class Aware(custom_graph_pass.CustomInferenceAwareGraphPass):
        def __call__(self, graph: fx.Graph, is_inference: bool) -> None:
            told.append(is_inference)

        def uuid(self) -> Any:
            return "aware"

    x = torch.randn(9, 33, requires_grad=not inference)
    torch.compile(softmax, backend="weft", options={SLOT: Aware()})(x)
    assert told == [inference]


def test_releases_that_take_one_pass_get_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(passes, "_TAKES_LISTS", False)
    seen: list[Any] = []
    named, other = Named("named", seen), Named("other", seen)
    one = passes.in_turn([named, other])
    assert isinstance(one, CustomGraphPass)
    one(fx.Graph())
    assert seen == [("named", 0), ("other", 0)]
    assert one.uuid() == ("named", "other")
    for uncached in (function_of(seen), Named(None, seen), Named("", seen)):
        assert passes.in_turn([uncached, named]).uuid() is None
    assert passes.in_turn([named]) is named
    for kind in ("function", "not_cached", "cached"):
        seen.clear()
        compile_twice("weft", {SLOT: MAKERS[kind](seen)})
        assert len(seen) == (1 if kind == "cached" else 2)
