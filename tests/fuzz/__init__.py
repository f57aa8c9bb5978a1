"""Random programs, functions and modules against the float64 interpreter and float64 eager mode.

``python -m tests.fuzz KIND --seed N`` runs one case again and prints it; ``--start --count --jobs --minutes`` runs many
in worker processes. A failure is made smaller and written as a script that stands alone.
"""
