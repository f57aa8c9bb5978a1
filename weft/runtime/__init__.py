"""Runtime: compile, cache and launch kernels."""
