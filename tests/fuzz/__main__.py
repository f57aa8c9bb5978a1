"""``python -m tests.fuzz programs|functions|modules|triton``."""

from __future__ import annotations

import argparse
import json
import os
import sys
from importlib import import_module
from pathlib import Path

from tests.fuzz.pool import OF_KINDS, run_seeds
from tests.fuzz.shrink import failure_of, shrink
from tests.fuzz.worker import quiet

KINDS = ("programs", "functions", "modules", "triton")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description="Random cases against float64.")
    parser.add_argument("kind", choices=KINDS)
    parser.add_argument("--seed", type=int, help="run this case alone, here, and print it")
    parser.add_argument("--shrink", type=float, default=60.0, metavar="SECONDS", help="time to make a failure smaller")
    parser.add_argument("--start", type=int, default=0, help="the first seed")
    parser.add_argument("--count", type=int, default=1000, help="how many seeds")
    parser.add_argument("--jobs", type=int, default=2, help="worker processes")
    parser.add_argument("--minutes", type=float, default=30.0, help="no new case after that time")
    parser.add_argument("--json", type=Path, help="write a summary to this file")
    parser.add_argument("--scripts", type=Path, default=Path("build/fuzz"), help="folder for scripts of failures")
    given = parser.parse_args()
    if given.seed is not None:
        return one(given.kind, given.seed, given.shrink)
    seeds = range(given.start, given.start + given.count)
    summary = run_seeds(given.kind, seeds, given.jobs, given.minutes, shrink_seconds=given.shrink, folder=given.scripts)
    for failure in summary.failures:
        print(f"--- {given.kind} --seed {failure.seed}: {failure.place}  {failure.script}\n{failure.message}\n")
    print(summary.line())
    if given.json is not None:
        given.json.write_text(json.dumps(summary.to_dict(), indent=2) + "\n")
    return 1 if summary.failures else 0


def one(name: str, seed: int, seconds: float) -> int:
    """Run one case in this process; a failure is made smaller and printed as a script."""
    quiet()
    os.environ |= OF_KINDS.get(name, {})
    kind = import_module(f"tests.fuzz.{name}")
    case = kind.make(seed)
    print(kind.describe(case), flush=True)
    failure = failure_of(kind, case)
    if failure is None:
        print("passes")
        return 0
    place, message = failure
    print(f"FAILS: {place}\n{message}", flush=True)
    if seconds > 0:
        case, smaller = shrink(kind, case, place, seconds)
        print(f"\nAs a script:\n\n{kind.script(case, smaller or message)}")
    return 1


if __name__ == "__main__":
    sys.exit(main())
