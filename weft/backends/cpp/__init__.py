"""C++ with OpenMP and the vectors of PyTorch's own kernels, for any CPU."""
