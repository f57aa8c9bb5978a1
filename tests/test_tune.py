"""Tuning of kernels: which schedule is taken, in which time, and what harm candidates can do."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch

from tests import tune_faults
from tests.tune_cases import CPU, H200, PROGRAM, ROWS, Fake, job_of, kernel_of, tuned_with
from weft.backends.listed import supports
from weft.bench import tune, tune_measurer, tune_report
from weft.bench.kernel_run import input_tensors, nearly_equal, output_tensors, what_is_wrong
from weft.bench.tune import Attempt, Tuning, final_of, mean_regret
from weft.bench.tune_measurer import ProcessMeasurer
from weft.bench.tune_worker import Bench
from weft.bench.worker import OutOfTimeError, Worker, WorkerError
from weft.ir.interpret import interpret
from weft.ir.parser import parse
from weft.options import Options
from weft.plan.kernel import Kernel, Plan, parse_kernel
from weft.plan.planner import plan_split
from weft.plan.schedule import Schedule
from weft.plan.schedules import candidates
from weft.target import Target


def with_chunk(kernel: Kernel, rows: int) -> Kernel:
    return replace(kernel, schedule=replace(kernel.schedule, rows_per_tile=4, rows_per_chunk=rows))


# candidates


@pytest.mark.parametrize("target", [CPU, H200])
def test_candidates_are_different_and_begin_with_the_kernels_own(target: Target) -> None:
    kernel = kernel_of(target)
    found = candidates(kernel, target, {"s": ROWS})
    assert found[0] == kernel.schedule
    assert len(set(found)) == len(found) > 10
    for schedule in found:
        same = replace(kernel, schedule=schedule)
        assert parse_kernel(str(same)) == same
        assert supports(same) is None
        assert (schedule.rows, schedule.columns) == (("m",), ("n",))
        assert schedule.scheme == "STREAM" or (schedule.scheme == "CLUSTER" and target is H200)


def test_candidates_keep_the_chains_of_sums_that_are_exact_enough() -> None:
    found = candidates(kernel_of(), CPU, {"s": ROWS})
    assert max(s.rows_per_chunk // s.rows_per_tile for s in found) == 16  # sums that are stored in float32


def test_candidates_of_a_gpu_are_those_of_the_planner_first() -> None:
    found = candidates(kernel_of(H200), H200, {"s": ROWS})
    assert {s.scheme for s in found} == {"STREAM", "CLUSTER"}
    program = parse(str(PROGRAM).replace("dim n = 48", "dim n = 16384").replace(":48", ":16384"))
    wide = plan_split(program, ("m",), ("n",), H200, {"s": ROWS})
    assert isinstance(wide, Plan)
    for kernel in wide.kernels:
        assert candidates(kernel, H200, {"s": ROWS})[0] == kernel.schedule


# which schedule is taken


def best_is(chunk: int, us: float, others: float = 120.0) -> Callable[[Schedule], float]:
    return lambda schedule: us if (schedule.rows_per_tile, schedule.rows_per_chunk) == (4, chunk) else others


def test_the_fastest_candidate_is_taken_and_its_regret_reported() -> None:
    found = tuned_with(Fake(best_is(32, 80.0)))
    assert (found.chosen.rows_per_tile, found.chosen.rows_per_chunk) == (4, 32)
    assert (found.is_taken, found.untuned_us, found.best_us) == (True, 100.0, 80.0)
    assert found.regret == pytest.approx(0.25)
    assert (found.timed, found.not_tried, found.margin) == (found.candidates, 0, 0.05)
    record = found.record({"weft": "1"})
    assert record is not None
    assert (record.us, record.untuned_us, record.regret) == (80.0, 100.0, pytest.approx(0.25))
    assert (record.target, record.sizes, record.timed) == ("cpu", {"p0": ROWS}, found.candidates)
    assert record.kernel.startswith("schedule STREAM rows=(d0) columns=(d1) segments=() rows_per_tile=4")


@pytest.mark.parametrize(("us", "noise", "taken"), [(94.0, 0.0, True), (96.0, 0.0, False), (94.0, 0.04, False)])
def test_the_untuned_choice_stays_unless_the_margin_is_exceeded(us: float, noise: float, taken: bool) -> None:
    """Five per cent on a CPU, and twice what the untuned choice differs from itself."""
    found = tuned_with(Fake(best_is(32, us), noise=noise))
    assert found.is_taken == taken
    assert found.regret == pytest.approx(100 * (1 + noise / 2) / us - 1)
    assert (found.chosen == found.job.kernel.schedule) != taken
    record = found.record({})
    assert record is not None
    assert (record.us == record.untuned_us) != taken


def test_a_schedule_has_to_be_faster_in_three_of_four_rounds() -> None:
    kernel = kernel_of()
    other = with_chunk(kernel, 32).schedule
    times = [[100.0] * 8, [100.0] * 8, [50.0] * 5 + [101.0] * 3]
    final = final_of([kernel.schedule, other], times)
    assert (final.schedule, final.ratio, final.third) == (other, 0.5, 1.01)
    assert not Tuning(job_of(), 2, (), final, 0.05).is_taken
    final = final_of([kernel.schedule, other], [*times[:2], [50.0] * 7 + [101.0]])
    assert Tuning(job_of(), 2, (), final, 0.05).is_taken


def test_where_the_untuned_choice_is_the_best_there_is_no_regret() -> None:
    found = tuned_with(Fake(best_is(32, 130.0)))
    assert (found.regret, found.best_us, found.is_taken) == (0.0, 100.0, False)
    assert tune_report.chosen_text(found) == "untuned: the best"


def test_a_wrong_candidate_is_never_taken() -> None:
    fast = [s for s in candidates(kernel_of(), CPU, {"s": ROWS}) if best_is(32, 0.0)(s) == 0.0]
    found = tuned_with(Fake(best_is(32, 10.0), wrong=set(fast)))
    assert fast
    assert found.chosen == found.job.kernel.schedule
    assert [a.schedule for a in found.attempts if a.status == "wrong"] == fast
    report = tune_report.TuneReport({}, {}, "cpu", 60.0, 1.0, (found,))
    assert report.wrong
    assert any("WRONG, never taken; the first with rows_per_chunk=32" in s for s in tune_report.lines_of(report))


def test_a_wrong_untuned_choice_is_not_tuned() -> None:
    wrong = Attempt(kernel_of().schedule, "wrong", reason="out1: largest error")
    found = tuned_with(Fake(best_is(32, 10.0), opened=wrong))
    assert (found.problem, found.wrong, found.regret, found.record({})) == ("out1: largest error", True, None, None)
    assert found.attempts == ()


def test_the_budget_is_kept_and_what_was_not_tried_is_counted() -> None:
    fake = Fake(best_is(32, 80.0))
    found = tuned_with(fake, budget_s=11.0)
    assert len(fake.asked) == 7  # of 11 s the first is for the reference and a fifth for the final
    assert found.not_tried == found.candidates - 8
    assert fake.now <= 11.0
    assert fake.asked == list(candidates(kernel_of(), CPU, {"s": ROWS}))[1:8]
    lines = tune_report.lines_of(tune_report.TuneReport({}, {}, "cpu", 11.0, 11.0, (found,)))
    assert f"not tried: {found.not_tried} candidates; the budget of 11 s was over" in lines


def test_where_no_candidate_was_timed_nothing_is_known() -> None:
    found = tuned_with(Fake(best_is(32, 80.0)), budget_s=2.0)
    assert (found.problem, found.regret, found.record({}), found.timed) == ("no candidate was timed", None, None, 0)
    found = tuned_with(Fake(best_is(32, 80.0)), budget_s=0.5)
    assert found.not_tried == found.candidates - 1


def test_kernels_share_what_is_left_of_the_budget() -> None:
    fake = Fake(best_is(32, 80.0))
    jobs = [job_of(), replace(job_of(), kernel=kernel_of())]
    first, second = tune.tune(jobs, 20.0, fake, clock=fake.clock)
    assert [len(first.attempts), len(second.attempts)] == [7, 8]  # the first left 12 s of 20
    assert fake.now <= 20.0
    regret = mean_regret([first, replace(second, final=None)])
    assert regret == first.regret
    assert mean_regret([]) is None


def test_the_longest_kernels_are_tuned_first_where_there_is_no_time_for_all() -> None:
    fake = Fake(best_is(32, 80.0))
    jobs = [replace(job_of(), parameters=(rows,)) for rows in (ROWS, 64 * ROWS, 8 * ROWS)]
    found = tune.tune(jobs, 15.0, fake, clock=fake.clock)
    assert [job.parameters[0] // ROWS for job in fake.opened_jobs] == [64, 8, 1]
    assert [tuning.job for tuning in found] == jobs
    assert [len(tuning.attempts) for tuning in found] == [0, 7, 4]
    assert [tuning.problem for tuning in found] == ["no candidate was timed", "", ""]
    lines = tune_report.lines_of(tune_report.TuneReport({"load": 9.0}, {}, "cpu", 15.0, 15.0, tuple(found)))
    assert "norm (a test): no candidate was timed" in lines
    assert "NOT QUIET: the load was 9.0 at the beginning; little can be told apart" in lines


def test_what_was_measured_before_is_tried_first() -> None:
    known = tuned_with(Fake(best_is(8, 80.0))).record({})
    fake = Fake(best_is(8, 80.0))
    tuned_with(fake, job=replace(job_of(), known=known))
    assert (fake.asked[0].rows_per_tile, fake.asked[0].rows_per_chunk) == (4, 8)


# processes


def said(seen: list[str], word: str) -> dict[str, Any]:
    """In the process: ``seen`` is what was said before."""
    if word == "crash":
        os.kill(os.getpid(), signal.SIGABRT)
    if word == "hang":
        threading.Event().wait()
    if word == "exit":
        print("what a library prints", flush=True)
        sys.exit("no more memory")
    if word == "raise":
        raise MemoryError("none  left")
    seen.append(word)
    return {"pid": os.getpid(), "said": seen}


@pytest.fixture
def worker() -> Iterator[Worker]:
    made = Worker(list)
    yield made
    made.close()


def test_a_process_answers_and_is_started_again_after_it_died(worker: Worker) -> None:
    def ask(word: str, timeout_s: float = 60.0) -> Any:
        return worker.ask(timeout_s, said, word=word)

    first = ask("a")
    assert ask("raise") == {"failed": "MemoryError: none left"}
    assert ask("b") == {"pid": first["pid"], "said": ["a", "b"]}
    with pytest.raises(WorkerError, match=r"^its process died of SIGABRT$"):
        ask("crash")
    second = ask("c")
    assert second["pid"] != first["pid"]
    assert second["said"] == ["c"]
    with pytest.raises(OutOfTimeError, match=r"^no result after 0 s$"):
        ask("hang", 0.05)
    assert not worker.is_alive
    with pytest.raises(WorkerError, match=r"^its process ended: no more memory$"):
        ask("exit")
    assert ask("d")["said"] == ["d"]


@pytest.fixture
def measurer() -> Iterator[ProcessMeasurer]:
    with ProcessMeasurer(Options.read(), tune_faults.FAULTY, timeout_s=60.0) as made:
        yield made


def test_candidates_that_crash_hang_or_lie_do_no_harm(measurer: ProcessMeasurer) -> None:
    """The untuned choice runs on after each of them, in a process that is started again where it has to be."""
    job = replace(job_of(), kernel=with_chunk(kernel_of(), 64))
    opened = measurer.open(job, 120.0)
    assert (opened.status, opened.reason) == ("timed", "")

    def attempt(chunk: int) -> tuple[str, str]:
        found = measurer.attempt(with_chunk(job.kernel, chunk), 120.0)
        return found.status, found.reason

    assert attempt(tune_faults.CRASHES) == ("failed", "its process died of SIGSEGV")
    assert attempt(tune_faults.RAISES) == ("failed", "MemoryError: no memory left for this one")
    status, reason = attempt(tune_faults.IS_WRONG)
    assert status == "wrong"
    assert reason == "out1: root mean square of the error (have 0.144, limit 0.0066)"
    status, reason = attempt(tune_faults.IS_UNWRITTEN)
    assert (status, reason) == (
        "wrong",
        f"out0: elements are not finite, or were never written (have {ROWS * 48}, limit 0)",
    )
    right = measurer.attempt(with_chunk(job.kernel, 24), 120.0)
    assert (right.status, right.reason) == ("timed", "")
    assert right.ratio is not None
    assert right.ratio > 0
    times = measurer.final([with_chunk(job.kernel, 24)], 7)
    assert [len(each) for each in times] == [7, 7, 7]
    measurer._timeout_s = 1.0
    assert attempt(tune_faults.HANGS) == ("failed", "no result after 1 s; it was stopped")
    measurer._timeout_s = 60.0
    with pytest.raises(TimeoutError):
        measurer.attempt(with_chunk(job.kernel, tune_faults.HANGS), 1.0)


def test_kernels_of_gpus_are_compiled_by_processes_ahead_of_the_one_that_times(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[dict[str, Any]] = []

    class Recorder:
        is_alive = True

        def __init__(self, *_: Any) -> None: ...

        def ask(self, timeout_s: float, function: Callable[..., Any], **given: Any) -> dict[str, Any]:
            asked.append({"do": function.__name__, **given})
            if function is Bench.compile and given["kernel"].schedule.stages == 3:
                raise WorkerError("its process died of SIGSEGV")
            return {"us": [[10.0] * 5, [8.0] * 5]} if function is Bench.attempt else {}

        def kill(self) -> None: ...

        close = kill

    monkeypatch.setattr(tune_measurer, "Worker", Recorder)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda *_: (9, 0))
    job = job_of(H200)
    kernels = [replace(job.kernel, schedule=s) for s in candidates(job.kernel, H200, job.hints)[1:]]
    with ProcessMeasurer(Options.read()) as measurer:
        assert measurer.open(job, 60.0).status == "timed"
        measurer.expect(kernels)
        found = [measurer.attempt(kernel, 60.0) for kernel in kernels]
    assert asked[0]["device"] == "cuda"
    compiled = [request for request in asked if request["do"] == "compile"]
    assert [request["kernel"] for request in compiled if request["arch"] == 90] != []
    assert {request["kernel"] for request in compiled} == set(kernels)
    assert compiled[0]["hints"] == {"s": ROWS}
    assert {a.schedule.stages for a in found if a.status == "failed"} == {3}
    assert {a.reason for a in found if a.status == "failed"} == {"its process died of SIGSEGV"}
    assert 3 not in {a.schedule.stages for a in found if a.status == "timed"}
    assert {a.ratio for a in found if a.status == "timed"} == {0.8}


# tensors and checks


def test_results_are_compared_closely_enough_to_find_a_lost_row() -> None:
    cpu = torch.device("cpu")
    inputs, outputs = input_tensors(PROGRAM, (4096,), cpu), output_tensors(PROGRAM, (4096,), cpu)
    right = [t.float() for t in interpret(PROGRAM, inputs, (4096,))]
    for output, tensor in zip(outputs, right, strict=True):
        output.copy_(tensor)
    assert what_is_wrong(PROGRAM, inputs, outputs, (4096,)) == ""
    outputs[1] -= right[0][17]
    assert not nearly_equal(outputs[1], right[1])
    assert what_is_wrong(PROGRAM, inputs, outputs, (4096,), right).startswith("out1: ")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_another_order_of_summation_is_nearly_equal_and_a_lost_row_is_not(dtype: torch.dtype) -> None:
    rows = torch.randn(16384, 64)
    total, other = rows.sum(0), rows.flip(0).cumsum(0)[-1]
    assert nearly_equal(total.to(dtype), other.to(dtype))
    assert not nearly_equal(total.to(dtype), rows[1:].sum(0).to(dtype))
    missing = torch.full((64,), float("nan"))
    assert not nearly_equal(missing.to(dtype), total.to(dtype))
    assert nearly_equal(missing.to(dtype), missing.to(dtype))
