"""Benchmarks: what is timed (`points`), how (`timing`), against whom (`rivals`), where results are kept (`record`)."""
