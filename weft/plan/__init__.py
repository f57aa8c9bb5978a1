"""Plan: which values share a kernel and how each kernel runs. The only stage that chooses."""

from weft.plan.kernel import Decision, Estimate, Kernel, Plan, Schedule, parse_kernel
from weft.plan.planner import plan

__all__ = ["Decision", "Estimate", "Kernel", "Plan", "Schedule", "parse_kernel", "plan"]
