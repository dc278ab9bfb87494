"""Analyze Nsight Compute results: metrics as columns, the roofline, and the join to kernels of another capture."""

from tracekit.core.ncu.wide import wide_metrics

__all__ = ["wide_metrics"]
