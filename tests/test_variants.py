"""Kernels in CUDA C++ beside themselves with changes to their text."""

from __future__ import annotations

import pytest

from tests.cuda_kernels import needs_nvrtc, split_of
from tools import variants
from weft.backends.cuda import choice

pytestmark = pytest.mark.where_changed("tools", "weft/backends")

WORDS = ["--workload", "layer_norm_backward", "--columns", "5003"]


@needs_nvrtc
def test_changes_are_compiled_beside_the_kernel(capsys: pytest.CaptureFixture[str]) -> None:
    changes = ["--change", "no turns", "int turn = [0-9]+", "int turn = 0", "--change", "deep", "stage", "floor"]
    changes += ["--change", "deep", "floor", "stage"]
    assert variants.main([*WORDS, *changes, "--even"]) == 0
    lines = [line.split("│")[1:3] for line in capsys.readouterr().out.splitlines() if line.startswith("│")]
    assert [name.strip() for name, _ in lines] == [variants.PLAIN, "no turns", "deep", "5000 columns"]
    registers = [int(count) for _, count in lines]
    assert registers[0] == registers[2]
    assert min(registers) > 32


def test_a_change_of_what_is_not_there_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        variants.main([*WORDS, "--change", "nothing", "no such text", ""])
    assert ended.value.code == 2
    assert "nothing: 'no such text' is not in the text of the kernel" in capsys.readouterr().err


@pytest.mark.parametrize("field", ["stages=many", "tiles=4", "stages"])
def test_a_field_that_no_schedule_has_is_an_error(field: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        variants.main([*WORDS, "--schedule", field])
    assert ended.value.code == 2
    assert "python -m tools.variants: error: " in capsys.readouterr().err


def test_some_fields_of_the_schedule_may_be_given() -> None:
    chosen = choice.chosen(split_of("layer_norm_backward", 2**26 // 5003, 5003))
    assert chosen is not None
    found = variants.with_fields(chosen, ["stages=5", "weights=registers"])
    assert found == chosen.but(stages=5, weights="registers")
