"""Where in the user's program a node comes from: its line, its module, and both of many nodes in few words."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import fx, nn

from weft.capture.sources import Place, compact, dotted, origin, place, places, texts, user_line


def node(trace: str = "", **stacks: dict[str, tuple[str, object]]) -> fx.Node:
    """A node with what dynamo and AOTAutograd note on it."""
    made = fx.Graph().call_function(torch.sin)
    made.meta |= {"stack_trace": trace, **stacks}
    return made


def chain(length: int) -> list[fx.Node]:
    """Nodes that say nothing, each of which reads the one before."""
    graph = fx.Graph()
    nodes = [graph.call_function(torch.sin)]
    while len(nodes) < length:
        nodes.append(graph.call_function(torch.sin, (nodes[-1],)))
    return nodes


def frame(file: str | Path, code: str) -> str:
    return f'  File "{file}", line 7, in forward\n    {code}\n'


IN_TORCH = frame(Path(torch.__file__).parent / "nn" / "modules" / "normalization.py", "return F.layer_norm(input)")


def test_the_line_is_that_of_the_innermost_frame_outside_torch() -> None:
    outer, inner = frame("/home/user/train.py", "loss = model(x)"), frame("/home/user/model.py", "x = self.norm(x)")
    assert user_line(node(outer + inner + IN_TORCH)) == "model.py:7: x = self.norm(x)"
    assert user_line(node(IN_TORCH)) is None


def test_a_users_folder_may_be_called_torch() -> None:
    assert user_line(node(frame("/home/user/torch/model.py", "return x"))) == "model.py:7: return x"


@pytest.mark.parametrize("key", ["nn_module_stack", "fwd_nn_module_stack"])
def test_a_node_without_a_line_of_the_users_has_its_module(key: str) -> None:
    stack: dict[str, tuple[str, object]] = {
        "1": ("L['fn']", nn.TransformerEncoderLayer),
        "2": ("L['fn'].norm1", nn.LayerNorm),
    }
    assert place(node(IN_TORCH, **{key: stack})) == Place("norm1")
    assert origin(node(**{key: stack})) == "norm1"


def test_a_line_of_a_library_has_the_module_beside_it() -> None:
    line = frame("/venv/lib/python3.11/site-packages/transformers/modeling_llama.py", "return self.weight * x")
    found = node(line, nn_module_stack={"1": ("L['self'].layers.0.input_layernorm", nn.RMSNorm)})
    assert origin(found) == "layers.0.input_layernorm (modeling_llama.py:7: return self.weight * x)"


def test_the_model_itself_has_no_path_but_a_class() -> None:
    root: dict[str, tuple[str, object]] = {"1": ("L['self']", nn.LayerNorm)}
    assert place(node(nn_module_stack=root)) == Place("LayerNorm")
    assert place(node(nn_module_stack={"1": ("L['self']", "torch.nn.modules.normalization.LayerNorm")})).module == (
        "LayerNorm"
    )
    line = frame("model.py", "return x")
    assert place(node(line, nn_module_stack=root)) == Place("", "model.py:7: return x")


def test_a_number_alone_is_not_the_name_of_a_module() -> None:
    stack: dict[str, tuple[str, object]] = {"1": ("L['fn']", nn.Sequential), "2": ("L['fn'].1", nn.LayerNorm)}
    assert place(node(nn_module_stack=stack)) == Place("Sequential.1")


def test_what_inductor_made_of_others_has_the_place_of_its_reader_or_else_of_its_operand() -> None:
    first, made, read, last = chain(4)
    first.meta["stack_trace"] = frame("model.py", "x = x.exp()")
    assert origin(made) == origin(read) == origin(last) == "model.py:7: x = x.exp()"
    last.meta["nn_module_stack"] = {"1": ("L['fn'].norm1", nn.LayerNorm)}
    assert place(made) == place(read) == Place("norm1")


def test_a_module_of_torch_has_no_line_of_its_neighbours() -> None:
    norm, read = chain(2)
    norm.meta["nn_module_stack"] = {"1": ("L['fn'].norm1", nn.LayerNorm)}
    read.meta["stack_trace"] = frame("model.py", "return x")
    assert place(norm) == Place("norm1")


def test_several_nodes_have_their_own_places_or_the_one_nearest_to_the_last() -> None:
    first, second, third = chain(3)
    third.meta["stack_trace"] = frame("model.py", "return x")
    assert places([first, second]) == (Place("", "model.py:7: return x"),)
    first.meta["stack_trace"] = frame("model.py", "x = x.exp()")
    assert places([first, second]) == (Place("", "model.py:7: x = x.exp()"),)
    assert places([]) == ()


def test_nothing_is_said_where_the_graph_says_nothing() -> None:
    assert origin(node()) is None
    assert places([node(), node()]) == ()


@pytest.mark.parametrize(
    ("source", "name"),
    [
        ("L['dy']", "dy"),
        ("L['self']._modules['norm']._parameters['weight']", "norm.weight"),
        ("L['self']._modules['blocks']._modules['0']._modules['attn']._parameters['scale']", "blocks.0.attn.scale"),
        ("L['fn']._buffers['table']", "table"),
        ("L['self'].blocks.0.norms.a_b", "blocks.0.norms.a_b"),
        ("G['teacher']._modules['norm']._parameters['weight']", "teacher.norm.weight"),
        ("L['pair'][1]", "pair.1"),
        ("L['batch']['tokens']", "batch.tokens"),
        ("L['self']", ""),
    ],
)
def test_sources_of_dynamo_become_names_of_the_users(source: str, name: str) -> None:
    assert dotted(source) == name


@pytest.mark.parametrize(
    ("names", "short"),
    [
        (["norm1", "norm2", "norm1"], ["norm1", "norm2"]),
        ([f"layers.{i}.norm.weight" for i in range(12)], ["layers.0-11.norm.weight"]),
        (["layers.4.norm", "layers.0.norm", "layers.2.norm", "layers.3.norm"], ["layers.{0,2-4}.norm"]),
        (["0.1", "1.1", "0.2"], ["0-1.1", "0.2"]),
        (["a.3", "x", "a.3.b"], ["a.3", "x", "a.3.b"]),
        ([], []),
    ],
)
def test_names_that_differ_in_a_number_are_one(names: list[str], short: list[str]) -> None:
    assert compact(names) == short


def test_places_of_one_line_are_one_text() -> None:
    line = "model.py:12: x = x + linear(norm(x))"
    found = [Place("norms.0", line), Place("linear", line), Place("norms.1", line), Place("", "model.py:9: y = x + 1")]
    assert texts(found) == (f"norms.0-1, linear ({line})", "model.py:9: y = x + 1")
    assert texts([Place("dropout1"), Place("norm1")]) == ("dropout1, norm1",)
