"""Workloads, models and the measurements and demonstrations made with them."""
