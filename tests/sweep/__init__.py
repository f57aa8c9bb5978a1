"""Every workload over dtypes, sizes and layouts in memory, against the float64 interpreter and eager.

``python -m tests.sweep`` runs all of it in worker processes; ``--case TEXT`` runs one case here.
"""
