"""Triton kernels: that they compile, and results under Triton's interpreter, with every access to memory checked."""

from __future__ import annotations

import functools
import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cases import NAMES, often
from tests.fuzz.pool import run_seeds
from tests.triton_programs import PROGRAMS
from weft.backends.binary import Job, Variant
from weft.backends.listed import backend_named
from weft.backends.triton import text as triton
from weft.ir.parser import parse
from weft.options import Options
from weft.plan.kernel import Kernel, Plan
from weft.plan.planner import plan_split
from weft.plan.split import Split
from weft.runtime.gpu.builds import binaries
from weft.target import Target

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("triton") is None, reason="triton is not installed; it has wheels for Linux only"
)
OF_RUN_TIME_ROWS = NAMES[1::4]
"""Workloads whose kernels of any number of rows are run each time, as ``tests/triton_kernels.py`` has them."""
SLOW = pytest.mark.slow
FUZZ_MINUTES = 0.06
TOGETHER = (("shapes", "schedules"), ("looped", "early", "overwriting", "wide"), ("rows", "layouts", "programs"))
"""Groups that share a process, which takes seconds to start. The slow ones have each their own."""


def findings(group: str) -> dict[str, str | None]:
    return findings_of(next((groups for groups in TOGETHER if group in groups), (group,)))[group]


@functools.cache
def findings_of(groups: tuple[str, ...]) -> dict[str, dict[str, str | None]]:
    root = Path(__file__).parent.parent
    environment = os.environ | {"TRITON_INTERPRET": "1"}
    command = [sys.executable, "-m", "tests.triton_kernels", *groups]
    done = subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True, timeout=1500)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def wrong(group: str, name: str = "") -> dict[str, str]:
    """What was found wrong, of all cases or of one workload's; something must have been looked at."""
    looked_at = {case: text for case, text in findings(group).items() if name in ("", case, case.split(" ")[0])}
    assert looked_at
    return {case: text for case, text in looked_at.items() if text is not None}


@pytest.mark.parametrize("group", ["shapes", pytest.param("more_shapes", marks=SLOW)])
@pytest.mark.parametrize("name", NAMES)
def test_a_workload_is_right_under_the_schedule_that_is_chosen(name: str, group: str) -> None:
    assert wrong(group, name) == {}


@pytest.mark.parametrize("group", ["schedules", pytest.param("more_schedules", marks=SLOW)])
@pytest.mark.parametrize("name", NAMES)
def test_exact_inputs_give_equal_bits_under_any_schedule(name: str, group: str) -> None:
    assert wrong(group, name) == {}


def test_long_rows_are_right_in_loops_and_in_pieces() -> None:
    assert wrong("looped") == {}


@pytest.mark.parametrize("group", ["early", pytest.param("more_early", marks=SLOW)])
def test_rows_that_begin_between_sectors_are_right_from_where_these_do(group: str) -> None:
    assert wrong(group) == {}


def test_an_output_that_is_written_too_early_is_found_where_it_lies_in_the_place_of_an_input() -> None:
    """As all kernels are watched here."""
    assert wrong("overwriting") == {}


@pytest.mark.parametrize("name", often(NAMES, OF_RUN_TIME_ROWS))
def test_one_kernel_serves_every_number_of_rows(name: str) -> None:
    assert wrong("rows" if name in OF_RUN_TIME_ROWS else "more_rows", name) == {}


@pytest.mark.parametrize("group", ["layouts", pytest.param("more_layouts", marks=SLOW)])
def test_inputs_may_lie_in_any_way(group: str) -> None:
    assert wrong(group) == {}


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_is_right_under_several_schedules(name: str) -> None:
    assert wrong("programs", name) == {}


def test_indices_are_of_64_bits_where_they_have_to_be() -> None:
    assert findings("wide") == {"64 bits": None, "32 bits": None}


SHARE = "  input x: f32 [m:64, n:1]\n  top: f32{m} = max[n](x)\n  share: f32{m, n} = div(x, top)\n"
FIFTEEN = "  fifteen: f32{} = const[15.0]()\n  scaled: f32{m, n} = mul(share, fifteen)\n"


@pytest.mark.parametrize(
    ("rest", "exact"),
    [
        ("  y: bf16{m, n} = cast(share)\n  output o: bf16 [m:64, n:1] = y\n", False),
        ("  output o: f32 [m:64, n:1] = share\n", True),
        ("  one: f32{} = const[1.0]()\n  y: bool{m, n} = ge(share, one)\n  output o: bool [m:64, n:1] = y\n", True),
        (f"{FIFTEEN}  y: i8{{m, n}} = cast(scaled)\n  output o: i8 [m:64, n:1] = y\n", True),
        (f"{FIFTEEN}  low: f32{{m, n}} = floor(scaled)\n  y: bf16{{m, n}} = cast(low)\n"
         "  output o: bf16 [m:64, n:1] = y\n", True),
    ],
    ids=["rounded to bf16", "f32", "compared", "an integer", "cut off"],
)  # fmt: skip
def test_a_quotient_is_a_product_only_where_a_last_place_makes_no_difference(rest: str, exact: bool) -> None:
    program = parse(f"program p()\n  dim m = 300\n  dim n = 64\n{SHARE}{rest}end\n")
    plan = plan_split(program, ("m",), ("n",), Target.named("h200"), {})
    assert isinstance(plan, Plan)
    text = triton.render(plan.kernels[0]).text
    assert ("* tl.div_rn(1.0, max)" in text) == (not exact)
    assert ("tl.div_rn(x_tile, max)" in text) == exact


@pytest.mark.parametrize("dtype", ["f8e4m3", "f8e5m2", "i8", "u8", "bool", "f16"])
def test_part_of_a_tile_of_any_dtype_is_loaded(dtype: str, tmp_path: Path) -> None:
    body = f"  input x: {dtype} [m:100, n:1]\n  wide: f32{{m, n}} = cast(x)\n  sum: f32{{m}} = sum[n](wide)\n"
    text = f"program p()\n  dim m = 1000\n  dim n = 100\n{body}  output y: f32 [m:1] = sum\nend\n"
    plan = plan_split(parse(text), ("m",), ("n",), Target.named("h200"), {})
    assert isinstance(plan, Plan)
    (kernel,) = plan.kernels
    source = triton.render(kernel)
    assert "mask=" in source.text
    options = Options.read({"cache_dir": str(tmp_path / "cache")}, {})
    assert binaries(Job(kernel, source, Variant.expected(kernel, {}), 90), options)


@pytest.mark.parametrize(("rows", "wide"), [(3_000_000_000, True), (3_000_000, False)])
def test_rows_that_32_bits_cannot_count_are_counted_in_64(rows: int, wide: bool, tmp_path: Path) -> None:
    body = "  input x: bf16 [m:2, n:1]\n  wide: f32{m, n} = cast(x)\n  sum: f32{n} = sum[m](wide)\n"
    text = f"program p()\n  dim m = {rows}\n  dim n = 2\n{body}  output y: f32 [n:1] = sum\nend\n"
    plan = plan_split(parse(text), ("m",), ("n",), Target.named("h200"), {})
    assert isinstance(plan, Plan)
    (kernel,) = plan.kernels
    assert kernel.schedule.rows_per_tile > 1
    source = triton.render(kernel)
    assert ("m = tl.cast(tile, tl.int64) * " in source.text, "m = tile * " in source.text) == (wide, not wide)
    options = Options.read({"cache_dir": str(tmp_path / "cache")}, {})
    assert binaries(Job(kernel, source, Variant.expected(kernel, {}), 90), options)


@pytest.mark.parametrize(("rows", "wide"), [("rows", True), (5000, False)])
def test_where_a_row_begins_is_told_in_32_bits(rows: int | str, wide: bool, tmp_path: Path) -> None:
    """Masks of the columns are made of it, wherever rows are in memory."""
    body = "  input x: bf16 [m:1226, n:1]\n  wide: f32{m, n} = cast(x)\n  sum: f32{m} = sum[n](wide)\n"
    head, hints = ("rows", {"rows": 5000}) if wide else ("", {})
    text = f"program p({head})\n  dim m = {rows}\n  dim n = 1226\n{body}  output y: f32 [m:1] = sum\nend\n"
    schedule = backend_named("triton").choose(Split.of(parse(text), ("m",), ("n",), Target.named("h200"), hints))
    assert schedule is not None
    assert schedule.scheme == "ONE_SHOT"
    kernel = Kernel(parse(text), schedule)
    source = triton.render(kernel)
    place = "tl.cast(tl.cast(tile, tl.int64) * 1226 % 16, tl.int32)" if wide else "tile * 1226 % 16"
    assert f"early = tl.multiple_of({place}, 2)" in source.text
    options = Options.read({"cache_dir": str(tmp_path / "cache")}, {})
    assert binaries(Job(kernel, source, Variant.expected(kernel, hints), 90), options)


def test_random_programs_agree_with_float64(tmp_path: Path) -> None:
    """The same seeds each time, as many of them as there is time for."""
    summary = run_seeds("triton", range(100_000), 2, FUZZ_MINUTES, shrink_seconds=60, folder=tmp_path, progress=False)
    shown = [f"python -m tests.fuzz triton --seed {f.seed}\n{f.message}" for f in summary.failures]
    assert not shown, "\n\n".join(shown)
    assert summary.kernels > 0


@pytest.mark.parametrize(
    "name", ["expanded inputs are reduced", "statistics of columns", "results are broadcast over rows and over columns"]
)
def test_what_is_peculiar_compiles_for_a_gpu(name: str, tmp_path: Path) -> None:
    program = parse(PROGRAMS[name].text)
    chosen = plan_split(program, ("m",), ("n",), Target.named("h200"), {})
    assert isinstance(chosen, Plan)
    options = Options.read({"cache_dir": str(tmp_path / "cache")}, {})
    for kernel in chosen.kernels:
        made = binaries(Job(kernel, triton.render(kernel), Variant.expected(kernel, {}), 90), options)
        assert all(binary.content for binary in made.values())
