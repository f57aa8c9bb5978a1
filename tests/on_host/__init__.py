"""Kernels in CUDA C++, whose threads are fibers of one thread of this machine."""
