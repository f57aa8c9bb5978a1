"""Plan: which values share a kernel and how each kernel runs. The only stage that chooses."""
