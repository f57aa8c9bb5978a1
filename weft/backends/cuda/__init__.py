"""CUDA C++, compiled by NVRTC, for NVIDIA's GPUs from compute capability 8.0 on."""
