"""``python -m tests.sweep``; exit status 1 if anything is found."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import get_args

from tests.sweep.cases import DTYPES, Mode, SweepCase, all_cases
from tests.sweep.pool import Finding, Summary, run_cases
from tests.sweep.worker import answer, quiet, settle
from weft.bench.workloads import WORKLOADS


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.sweep", description="Every workload over sizes and layouts.")
    parser.add_argument("--case", help="run this case alone, here")
    parser.add_argument("--workload", action="append", choices=WORKLOADS, help="may be given several times")
    parser.add_argument("--dtype", action="append", choices=DTYPES, help="may be given several times")
    parser.add_argument("--mode", action="append", choices=get_args(Mode), help="may be given several times")
    parser.add_argument("--layout", action="append", help="only these layouts; may be given several times")
    parser.add_argument("--jobs", type=int, default=2, help="worker processes")
    parser.add_argument("--minutes", type=float, default=60.0, help="no new case after that time")
    parser.add_argument("--json", type=Path, help="write a summary to this file")
    given = parser.parse_args()
    if given.case is not None:
        return one(given.case)
    cases = all_cases(given.workload or WORKLOADS, given.dtype or DTYPES, given.mode or get_args(Mode))
    if given.layout:
        cases = [case for case in cases if case.layout in given.layout]
    summary = run_cases(cases, given.jobs, given.minutes)
    report(summary)
    if given.json is not None:
        given.json.write_text(json.dumps(summary.to_dict(), indent=2) + "\n")
    return 1 if summary.findings else 0


def report(summary: Summary) -> None:
    for reason, count in sorted(summary.refused.items(), key=lambda item: -item[1]):
        print(f"refused {count} x {reason}\n    e.g. {summary.refused_case[reason]}")
    for finding in summary.findings:
        print(f"FOUND {finding.message}\n    {finding.command}")
    print(summary.line())


def one(text: str) -> int:
    """Run one case in this process."""
    quiet()
    settle()
    SweepCase.parse(text)
    found = answer(text)
    if found["finding"] is None:
        print(f"passes: {found}")
        return 0
    print(Finding(text, found["finding"]).message, found["trace"], sep="\n")
    return 1


if __name__ == "__main__":
    sys.exit(main())
