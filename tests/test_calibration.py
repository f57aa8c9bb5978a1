"""GPUs that no constants were fitted on: what is known of them, measured, kept, and said."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import asdict, replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from tests.devices import plug_in, properties
from weft import cli
from weft.backends import backend
from weft.backends.triton import probes
from weft.backends.triton.constants import constants, fitted_constants
from weft.errors import BuildError, Refusal, warn_once
from weft.explain import checks
from weft.machines import target_of
from weft.options import Options
from weft.runtime import calibration
from weft.runtime.layout import Fitting
from weft.target import Found, Target, of_properties

CUDA = torch.device("cuda", 0)
FOUND = Found(261.5, 0.9, 1.3, 1.08, 17)


@pytest.fixture(name="options")
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Options:
    monkeypatch.setenv("WEFT_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(calibration, "_FAILED", {})
    monkeypatch.setattr(backend, "find_spec", lambda name: object())  # Triton is there
    warn_once.cache_clear()
    return Options.read()


@pytest.fixture(name="measured")
def measurements(monkeypatch: pytest.MonkeyPatch) -> list[Target]:
    """What was measured, by a measurement that finds ``FOUND``."""
    seen: list[Target] = []

    def measure(target: Target, device: torch.device, options: Options) -> Found:
        seen.append(target)
        return FOUND

    monkeypatch.setattr(probes, "measure", measure)
    return seen


def failing(error: Exception) -> Callable[..., Found]:
    def measure(*_: object) -> Found:
        raise error

    return measure


# what the driver says


def test_limits_are_those_of_the_device() -> None:
    found = of_properties(properties("NVIDIA L4"))
    assert (found.name, found.device, found.architecture) == ("nvidia_l4", "NVIDIA L4", 89)
    assert (found.units, found.most_warps, found.most_programs, found.shared_bytes) == (58, 48, 24, 101376)
    assert found.bandwidth_gbps == pytest.approx(0.87 * 300, rel=0.01)
    assert found.instruction_ratio == pytest.approx(1.98 / 2.04, rel=0.001)
    assert not found.measured
    assert "unmeasured" in found.origin


@pytest.mark.parametrize(
    ("device", "name", "architecture", "units", "measured"),
    [
        ("NVIDIA H200", "h200", 90, 132, True),
        ("NVIDIA H200 MIG 1g.18gb", "h200", 90, 16, False),
        ("NVIDIA H100 80GB HBM3", "h100", 90, 132, True),
        ("NVIDIA H100 NVL", "h100", 90, 132, False),
        ("NVIDIA H100 PCIe", "h100", 90, 114, False),
        ("NVIDIA A100-SXM4-40GB", "a100", 80, 108, False),
        ("NVIDIA GeForce RTX 4090 Laptop GPU", "rtx4090", 89, 76, False),
        ("NVIDIA B200", "b200", 100, 148, False),
        ("NVIDIA GB200", "gb200", 100, 152, False),
        ("NVIDIA B300 SXM6 AC", "nvidia_b300_sxm6_ac", 103, 148, False),
    ],
)
def test_models_of_gpus_have_names(device: str, name: str, architecture: int, units: int, measured: bool) -> None:
    """And those that figures were measured on are of that model, whole and with its memory."""
    found = of_properties(properties(device))
    assert (found.name, found.architecture, found.units, found.measured) == (name, architecture, units, measured)


def test_a_gpu_with_fitted_constants_is_taken_as_it_is() -> None:
    found = of_properties(properties("NVIDIA H200"))
    assert found == Target.named("h200")
    assert found.measured
    assert constants(found) == fitted_constants()


@pytest.mark.parametrize("is_known", [True, False])
def test_what_the_driver_does_not_say_is_that_of_the_nearest(is_known: bool) -> None:
    given = properties("NVIDIA L4", memory=(0, 0), clock_rate=0)
    if not is_known:
        del given.clock_rate, given.memory_clock_rate, given.memory_bus_width
    found = of_properties(given)
    l40s = Target.named("l40s")
    assert found.bandwidth_gbps == pytest.approx(l40s.bandwidth_gbps * 58 / 142)
    assert found.instruction_ratio == l40s.instruction_ratio


def test_older_gpus_are_no_target() -> None:
    with pytest.raises(ValueError, match=r"Tesla T4 has compute capability 7\.5; weft's kernels need 8\.0"):
        of_properties(properties("Tesla T4"))


# the model of time


def test_constants_are_scaled_by_what_is_known() -> None:
    fitted, h200 = fitted_constants()["STREAM"], Target.named("h200")
    own = constants(replace(h200, instruction_ratio=2.0, start_ratio=3.0, bandwidth_gbps=h200.bandwidth_gbps / 4))
    found = own["STREAM"]
    assert found.issue_ns == pytest.approx(2 * fitted.issue_ns)
    assert found.start_us == pytest.approx(3 * fitted.start_us)
    assert found.in_flight_bytes == pytest.approx(3 / 4 * fitted.in_flight_bytes)
    assert found.cached == pytest.approx(2 / 4 * fitted.cached)
    assert found.bandwidth == fitted.bandwidth


@pytest.mark.parametrize("name", ["a100", "l40s", "h200", "rtx5090"])
@pytest.mark.parametrize(("instructions", "starts"), [(1.0, 1.0), (1.5, 0.7), (0.6, 1.8)])
def test_ratios_are_found_from_times(name: str, instructions: float, starts: float) -> None:
    """Of kernels that take the predicted time of a GPU with these ratios, whatever the events around them add."""
    known = Target.named(name)
    found = probes.probes(known)
    assert len(found) >= 14
    ratios = {
        "instruction_ratio": instructions * known.instruction_ratio,
        "start_ratio": starts * known.start_ratio,
    }
    there = constants(replace(known, **ratios))
    times = [1.3 + float(probe.load.us(there[probe.way])) for probe in found]
    fitted = probes.fit(known, found, times)
    assert fitted.instruction_ratio == pytest.approx(ratios["instruction_ratio"], rel=0.13)
    assert fitted.start_ratio == pytest.approx(ratios["start_ratio"], rel=0.2)
    assert fitted.error < 1.03
    assert fitted.kernels == len(found)


def test_no_probe_waits_for_programs_of_others() -> None:
    found = probes.probes(replace(Target.named("h200"), exclusive=False))
    assert {probe.kernel.schedule.finish for probe in found} == {"none", "separate"}


def test_a_measurement_times_every_probe_on_tensors_like_its_own(
    options: Options, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All but the GPU itself, on a CPU."""
    called: list[list[tuple[int, ...]]] = []

    def call(function: str, fitting: Fitting, inputs: list[Tensor], outputs: list[Tensor], sm_margin: int) -> bool:
        called.append([tuple(t.shape) for t in (*inputs, *outputs)])
        return True

    def times_of(runs: list[Callable[[], object]], device: torch.device) -> list[float]:
        for run in runs:
            run()
        return [20.0 + i for i in range(len(runs))]

    monkeypatch.setattr(probes, "ONE_SHOT", ((2, 1024), (64, 256)))
    monkeypatch.setattr(probes, "STREAM", ((64, 1024),))
    monkeypatch.setattr(probes, "copied_gbps", lambda _: 300.0)
    monkeypatch.setattr(probes, "times_of", times_of)
    monkeypatch.setattr(probes.gpu, "build_all", lambda kernels, sources, hints, options: [k.name for k in kernels])
    monkeypatch.setattr(probes.gpu, "call", call)
    monkeypatch.setattr(torch.cuda, "device", lambda _: nullcontext())
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
    found = probes.measure(Target.named("l40s"), torch.device("cpu"), options)
    assert (found.bandwidth_gbps, found.kernels) == (300.0, len(called))
    assert called[0] == [(2, 1024), (1024,), (2, 1024)]
    assert called[-1] == [(64, 1024), (1024,), (64, 1024), (1024,)]


# first use


def test_a_gpu_is_measured_once(options: Options, measured: list[Target], monkeypatch: pytest.MonkeyPatch) -> None:
    plug_in(monkeypatch, "NVIDIA L4")
    assert calibration.digest(options) == ""
    first, again = (calibration.at_hand(CUDA, options) for _ in range(2))
    assert first == again
    assert [target.name for target in measured] == ["nvidia_l4"]
    assert (first.bandwidth_gbps, first.instruction_ratio, first.start_ratio) == (261.5, 0.9, 1.3)
    assert first.measured
    assert first.origin.startswith(
        "calibrated: copies at 262 GB/s, instructions 0.90 and starts 1.30 times those of an"
    )
    assert len(calibration.digest(options)) == 64


def test_a_gpu_with_fitted_constants_is_not_measured(
    options: Options, measured: list[Target], monkeypatch: pytest.MonkeyPatch
) -> None:
    plug_in(monkeypatch, "NVIDIA H200")
    assert calibration.at_hand(CUDA, options) == Target.named("h200")
    assert measured == []


@pytest.mark.parametrize("name", ["NVIDIA L4", "NVIDIA H200"])
def test_kernels_of_ranks_do_not_wait_for_each_other(
    name: str, options: Options, measured: list[Target], monkeypatch: pytest.MonkeyPatch
) -> None:
    plug_in(monkeypatch, name)
    assert calibration.as_known(CUDA, options).exclusive
    assert measured == []
    monkeypatch.setattr(calibration, "is_distributed", lambda: True)
    assert not calibration.as_known(CUDA, options).exclusive
    found = calibration.at_hand(CUDA, options)
    assert not found.exclusive
    assert calibration.as_known(CUDA, options) == found


def test_each_model_is_measured_by_itself(
    options: Options, measured: list[Target], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("NVIDIA L4", "NVIDIA H200 MIG 1g.18gb", "NVIDIA L4"):
        plug_in(monkeypatch, name)
        calibration.at_hand(CUDA, options)
    assert [target.device for target in measured] == ["NVIDIA L4", "NVIDIA H200 MIG 1g.18gb"]


def test_a_damaged_measurement_is_made_again(
    options: Options, measured: list[Target], monkeypatch: pytest.MonkeyPatch
) -> None:
    plug_in(monkeypatch, "NVIDIA L4")
    calibration.at_hand(CUDA, options)
    (file,) = Path(options.cache_dir).rglob("*.calibration.json")
    file.write_text(file.read_text().replace("0.9", "9.9"))
    assert calibration.at_hand(CUDA, options).instruction_ratio == 0.9
    assert len(measured) == 2


def test_without_memory_a_gpu_is_what_the_driver_says(
    options: Options, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    plug_in(monkeypatch, "NVIDIA L4")
    monkeypatch.setattr(probes, "measure", failing(RuntimeError("CUDA out of memory")))
    found = [target_of(CUDA, "norm", options) for _ in range(2)]
    assert found == [of_properties(properties("NVIDIA L4"))] * 2
    assert caplog.text.count("could not be measured, and is planned for as it says it is: CUDA out of memory") == 1


@pytest.mark.parametrize(
    ("device", "error", "message"),
    [
        ("Tesla T4", None, "Tesla T4 has compute capability 7.5; weft's kernels need 8.0"),
        ("NVIDIA L4", BuildError("Triton:\nno sm_89"), "Triton: no sm_89"),
    ],
)
def test_a_gpu_without_kernels_is_refused_and_said_once(
    device: str, error: Exception | None, message: str, options: Options, monkeypatch: pytest.MonkeyPatch
) -> None:
    plug_in(monkeypatch, device)
    if error is not None:
        monkeypatch.setattr(probes, "measure", failing(error))
    with pytest.warns(UserWarning, match="the model is left to TorchInductor") as said:
        found = [target_of(CUDA, "norm", options) for _ in range(3)]
    assert found == [Refusal("no_backend", "norm", message, device, "NVIDIA GPUs from 8.0")] * 3
    assert [str(w.message) for w in said] == [f"weft: the model is left to TorchInductor: {message}"]


def test_gpus_by_amd_are_refused(options: Options, monkeypatch: pytest.MonkeyPatch) -> None:
    plug_in(monkeypatch, "NVIDIA L4")
    monkeypatch.setattr(torch.version, "hip", "6.4")
    with pytest.warns(UserWarning, match="by AMD; weft has kernels for NVIDIA's GPUs only"):
        assert isinstance(target_of(CUDA, "norm", options), Refusal)


# what is said of it


def test_the_command_measures_again(
    options: Options, measured: list[Target], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    plug_in(monkeypatch, "NVIDIA L4")
    with pytest.raises(SystemExit, match="1"):
        cli.main(["calibrate", "--show"])
    assert capsys.readouterr().err == "weft: NVIDIA L4 was never measured\n"
    for _ in range(2):
        with pytest.raises(SystemExit, match="0"):
            cli.main(["calibrate"])
        shown = capsys.readouterr().out
        assert shown.startswith(
            "NVIDIA L4: copies at 262 GB/s, instructions 0.90 and starts 1.30 times those of an H200;"
        )
    assert len(measured) == 2
    with pytest.raises(SystemExit, match="0"):
        cli.main(["calibrate", "--show", "--json"])
    data = json.loads(capsys.readouterr().out)
    assert data["target"] == "nvidia_l4"
    assert data["calibration"]["found"] == asdict(FOUND)
    assert len(measured) == 2


def test_the_command_says_what_is_missing(
    options: Options, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="1"):
        cli.main(["calibrate"])
    assert capsys.readouterr().err == "weft: torch sees no GPU here; figures of CPUs come with weft\n"
    plug_in(monkeypatch, "NVIDIA L4")
    monkeypatch.setattr(probes, "measure", failing(RuntimeError("CUDA out of memory")))
    with pytest.raises(SystemExit, match="1"):
        cli.main(["calibrate"])
    assert capsys.readouterr().err == "weft: CUDA out of memory\n"


def test_the_doctor_says_where_figures_come_from(
    options: Options, measured: list[Target], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fact(name: str) -> str:
        plug_in(monkeypatch, name)
        monkeypatch.setattr(checks, "supports_cuda", lambda: True)
        status, fact, _ = checks._gpu(checks.Surroundings({"WEFT_CACHE_DIR": options.cache_dir}, lambda: None))  # type: ignore[arg-type, return-value]
        assert status == ("warning" if name == "Tesla T4" else "ok")
        return fact.removeprefix(f"{name}; torch is built for CUDA 13.0; ")

    monkeypatch.setattr(torch.version, "cuda", "13.0")
    assert fact("NVIDIA L4") == "it is measured when it is first compiled for, or by `weft calibrate`"
    assert fact("NVIDIA H200") == "its constants come with weft"
    assert fact("Tesla T4") == "Tesla T4 has compute capability 7.5; weft's kernels need 8.0"
    plug_in(monkeypatch, "NVIDIA L4")
    calibration.at_hand(CUDA, options)
    assert "17 kernels predicted within a factor of 1.08, measured " in fact("NVIDIA L4")
