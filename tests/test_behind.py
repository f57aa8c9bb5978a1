"""Row tiles that overlap: what the rewrite makes of a nest, and that what is used of it was made before."""

from __future__ import annotations

from dataclasses import replace
from itertools import takewhile
from typing import Any

import pytest

from tests.cuda_kernels import WORKLOADS_OF_ROWS, kernel_of, of_rows
from weft.backends.cuda import launches
from weft.errors import VerificationError
from weft.lowering.behind import overlapped
from weft.lowering.nest import (
    Accumulate,
    Arrive,
    Behind,
    Chunks,
    ColumnLoop,
    Compute,
    Copy,
    EachRow,
    Keep,
    Load,
    Nest,
    Receive,
    Reduce,
    Release,
    Role,
    Send,
    Start,
    Statement,
    Tile,
    Tiles,
    flat,
)
from weft.lowering.verify import verify_nest

SCHEDULE: dict[str, Any] = {"warps": 4, "vectors": 2, "stages": 3}


def nest_of(name: str, lag: int) -> Nest:
    _, kernel = kernel_of(name, (512, 2048), **SCHEDULE, lag=lag)
    return launches.lowered(kernel)[1][0]


def tile_of(nest: Nest) -> Tile:
    (tile,) = (each for each in nest.statements() if isinstance(each, Tile))
    return tile


def role(*body: Statement) -> Role:
    return Role((Chunks((Load("w"), Tiles((Tile(body),), "chunk", ahead=True), Keep("s"))),), "consumers")


# the rewrite


def test_what_follows_from_the_last_row_reductions_of_a_tile_comes_behind() -> None:
    start, loop, store = Start("a", lanes=True), ColumnLoop((EachRow((Load("x"),)),)), ColumnLoop((EachRow(()),))
    before = role(start, Arrive(), loop, Reduce(("a",)), loop, Reduce(("b", "c")), EachRow((Compute("d"),)), store)
    assert overlapped(before) == role(
        start, Arrive(), loop, Reduce(("a",)), loop, Send(("b", "c")),
        Behind((Receive(("b", "c")), EachRow((Compute("d"),)), store)),
    )  # fmt: skip


def test_loops_and_what_stands_around_tiles_stay_as_they_are() -> None:
    copies = (Tiles((Copy(("x",)),), "chunk"),)
    assert overlapped(Role(copies, "producer")) == Role(copies, "producer")
    (chunks,) = overlapped(role(Reduce(("a",)))).body
    assert isinstance(chunks, Chunks)
    tiles = Tiles((Tile((Send(("a",)), Behind((Receive(("a",)),)))),), "chunk", ahead=True)
    assert chunks.body == (Load("w"), tiles, Keep("s"))


def test_a_tile_without_row_reductions_has_nothing_to_wait_for() -> None:
    with pytest.raises(ValueError, match="a tile without row reductions has nothing to wait for"):
        overlapped(role(Arrive(), ColumnLoop((EachRow((Accumulate("s"),)),)), Release()))


def test_the_nest_is_printed_with_both_parts() -> None:
    lines = str(nest_of("layer_norm_forward", 1)).splitlines()
    (at,) = (i for i, each in enumerate(lines) if each.strip() == "behind")
    depth = len(lines[at]) - len("behind")
    assert lines[at - 1] == f"{' ' * depth}send sum, m2"
    behind = [line[depth:] for line in takewhile(lambda line: line.startswith(" " * (depth + 2)), lines[at + 1 :])]
    assert behind == [
        "  receive sum, m2",
        "  each row",
        "    compute mul: f32{m} = mul(sum, const_)",
        "    compute mul_1: f32{m} = mul(m2, const_)",
        "    compute add: f32{m} = add(mul_1, const_1)",
        "    compute rsqrt: f32{m} = rsqrt(add)",
        "    compute mul_2: f32{m} = mul(mul, rsqrt)",
        "  column loop",
        "    each row",
        "      load x",
        "      compute cast again=True: f32{m, n} = cast(x)",
        "      compute mul_3 again=True: f32{m, n} = mul(cast, rsqrt)",
        "      compute sub again=True: f32{m, n} = sub(mul_3, mul_2)",
        "      compute cast_1 again=True: f32{n} = cast(weight)",
        "      compute mul_4 again=True: f32{m, n} = mul(sub, cast_1)",
        "      compute cast_2 again=True: f32{n} = cast(bias)",
        "      compute add_1 again=True: f32{m, n} = add(mul_4, cast_2)",
        "      compute cast_3 again=True: bf16{m, n} = cast(add_1)",
        "      store out0",
        "  release",
    ]
    assert [line.strip() for line in lines].count("send sum, m2") == 1


@pytest.mark.parametrize("name", WORKLOADS_OF_ROWS)
def test_a_tile_does_the_same_in_the_same_order(name: str) -> None:
    """But for the last row reductions, which are two statements."""
    plain, found = tile_of(nest_of(name, 0)), tile_of(nest_of(name, 1))
    *first, send, behind = found.body
    assert isinstance(send, Send)
    assert isinstance(behind, Behind)
    receive, *second = behind.body
    assert receive == Receive(send.values)
    assert plain.body == (*first, Reduce(send.values), *second)
    assert not any(isinstance(each, Reduce | Send | Receive) for each in flat(second))


def test_the_other_role_is_the_same() -> None:
    plain, found = (nest_of("rms_norm_backward", lag) for lag in (0, 1))
    assert plain.body[1] == found.body[1]
    assert isinstance(plain.body[1], Role)
    assert plain.body[1].of == "producer"
    assert plain.body[3:] == found.body[3:]


# what is made before it is used


def with_tile(nest: Nest, *body: Statement) -> Nest:
    return replace(nest, body=(Tile(body),))


def test_what_is_sent_was_computed_and_what_is_used_was_received() -> None:
    nest = nest_of("softmax_forward", 1)
    *first, send, behind = tile_of(nest).body
    assert isinstance(behind, Behind)
    verify_nest(with_tile(nest, *first, send, behind))
    loads = [each for each in first if not isinstance(each, ColumnLoop)]
    with pytest.raises(VerificationError, match=r"softmax_forward: send max_, sumexp: \w+ is not there yet"):
        verify_nest(with_tile(nest, *loads, send, behind))
    receive, *rest = behind.body
    with pytest.raises(VerificationError, match=r"max_, sumexp is not there yet|max_ is not there yet"):
        verify_nest(with_tile(nest, *first, send, *rest))
    with pytest.raises(VerificationError, match="is not there yet"):
        verify_nest(with_tile(nest, *first, send, *rest, receive))


def test_what_is_sent_is_not_there_before_it_is_received() -> None:
    body = (
        "  input x: f32 [m:16, n:1]\n  sum: f32{m} = sum[n](x)\n  twice: f32{m} = add(sum, sum)\n"
        "  output y: f32 [m:1] = twice\n"
    )
    nest = launches.lowered(of_rows(body, cluster=2))[1][0]
    verify_nest(with_tile(nest, Load("x"), Send(("sum",)), Receive(("sum",)), Compute("twice")))
    with pytest.raises(VerificationError, match=r"compute twice: sum is not there yet"):
        verify_nest(with_tile(nest, Load("x"), Send(("sum",)), Compute("twice"), Receive(("sum",))))
    with pytest.raises(VerificationError, match=r"send sum: x is not there yet"):
        verify_nest(with_tile(nest, Send(("sum",)), Receive(("sum",)), Compute("twice")))
