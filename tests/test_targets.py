"""Targets, where their figures come from, and the sweep behind the constants of the CPUs."""

from __future__ import annotations

import csv
import json
import math
import re
from dataclasses import fields, replace
from functools import cache
from importlib import resources
from pathlib import Path

import pytest
import torch

from tests.plan_cases import CPUS, N, traced, workload
from tools import calibrate
from tools.swept import SWEEPS
from weft.ir import Dim
from weft.plan.cost import estimate
from weft.plan.kernel import Kernel, Plan
from weft.plan.planner import plan_split
from weft.target import TARGETS, Target, cpu_fact, vendor

CALIBRATION = resources.files("weft.plan") / "calibration"


# targets


@pytest.mark.parametrize("name", TARGETS)
def test_a_target_says_where_its_figures_come_from(name: str) -> None:
    data = json.loads((CALIBRATION / f"{name}.json").read_text())
    assert data["name"] == name
    assert type(data["measured"]) is bool
    assert data["measured"] or "unmeasured" in data["origin"]
    assert len(data["origin"]) > 20
    target = Target.named(name)
    assert {f.name: getattr(target, f.name) for f in fields(Target) if f.name not in ("exclusive", "device")} == data
    assert target.exclusive
    assert target.bandwidth_gbps > 0
    assert target.launch_us > 0
    assert target.units > 0
    for limit in ("registers", "shared_bytes", "architecture", "most_warps", "most_programs"):
        assert (getattr(target, limit) > 0) == (target.kind == "gpu"), limit


def test_there_are_no_other_targets() -> None:
    found = {Path(entry.name).stem for entry in CALIBRATION.iterdir() if entry.name.endswith(".json")}
    assert found == set(TARGETS)


@pytest.mark.parametrize("name", ["", "H200", "b300", "../cpu"])
def test_an_unknown_target_names_the_known_ones(name: str) -> None:
    with pytest.raises(
        ValueError,
        match=rf"no target named {re.escape(repr(name))}; known: a100, b200, cpu, cpu_amd, gb200, .*, rtx5090$",
    ):
        Target.named(name)


@pytest.mark.parametrize(
    "cpuinfo",
    ["processor\t: 0\nvendor_id\t: AuthenticAMD\n", "vendor_id\t: GenuineIntel\n", None],
)
def test_a_cpu_says_its_maker(cpuinfo: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    def read(path: Path) -> str:
        if cpuinfo is None:
            raise FileNotFoundError(path)
        return cpuinfo

    monkeypatch.setattr(Path, "read_text", read)
    cpu_fact.cache_clear()
    assert vendor() == ("" if cpuinfo is None else cpuinfo.split()[-1])
    monkeypatch.undo()
    cpu_fact.cache_clear()


@pytest.mark.parametrize(("found", "name"), [("AuthenticAMD", "cpu_amd"), ("GenuineIntel", "cpu"), ("", "cpu")])
def test_the_current_cpu_is_the_one_of_its_maker(found: str, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("weft.target.vendor", lambda: found)
    assert Target.current() == Target.current("cpu") == Target.named(name)


def test_a_device_without_figures_names_the_targets() -> None:
    with pytest.raises(
        ValueError, match=r"no figures for meta; plan for one of a100, b200, cpu, cpu_amd, .*, rtx5090$"
    ):
        Target.current("meta")


# the sweep behind the constants


def sweep_kernel(target: str, name: str, rows: int, columns: int) -> Kernel:
    """The kernel behind a row of the sweep. Other rows change nothing but a size: one trace serves them all."""
    if name == "segment_sum":
        given = traced(calibrate.segment_sum, torch.empty(rows, 2, columns, dtype=torch.bfloat16))
    elif rows == 1:
        given = workload(name, columns, dynamic=False, rows=1)
    else:
        free = workload(name, columns)
        given = replace(free, parameters=(), dims=(Dim("m", rows), Dim("n", columns)))
    dims = tuple(d.name for d in given.dims)
    chosen = plan_split(given, tuple(d for d in dims if d != "n"), N, Target.named(target), {})
    assert isinstance(chosen, Plan)
    (kernel,) = chosen.kernels
    return kernel


@cache
def sweep_rows(target: str) -> tuple[dict[str, str], ...]:
    return tuple(csv.DictReader((SWEEPS / f"{target}_sweep.csv").read_text().splitlines()))


@pytest.mark.parametrize("target", CPUS)
def test_the_sweep_covers_several_orders_of_magnitude(target: str) -> None:
    rows = sweep_rows(target)
    assert len(rows) >= 80
    assert len({r["workload"] for r in rows}) >= 5
    times = [float(r["measured_us"]) for r in rows]
    assert max(times) > 1000 * min(times) > 0
    assert {r["dtype"] for r in rows} == {"bf16"}


@pytest.mark.where_changed("tools", "weft/backends", "weft/ir", "weft/plan")
@pytest.mark.parametrize("target", CPUS)
def test_the_constants_predict_the_sweep_they_were_fitted_to(target: str) -> None:
    """Within a factor of two for every kernel and of 1.3 in the geometric mean, by the model as it is now."""
    factors: dict[tuple[str, str, str], float] = {}
    for row in sweep_rows(target):
        kernel = sweep_kernel(target, row["workload"], int(row["rows"]), int(row["columns"]))
        ratio = estimate(kernel, Target.named(target), {}).predicted_us / float(row["measured_us"])
        factors[row["workload"], row["rows"], row["columns"]] = max(ratio, 1 / ratio)
    far = {key: round(factor, 2) for key, factor in factors.items() if factor > 2}
    assert not far
    assert math.exp(sum(map(math.log, factors.values())) / len(factors)) <= 1.3
