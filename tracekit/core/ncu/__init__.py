"""Analyze Nsight Compute results: metrics as columns, the roofline, and the join to kernels of another capture."""

from tracekit.core.ncu.join import add_metric_columns

__all__ = ["add_metric_columns"]
