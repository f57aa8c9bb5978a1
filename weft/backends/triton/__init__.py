"""Triton, for NVIDIA's GPUs from compute capability 8.0 on."""
