"""Results of Nsight Compute: metrics side by side, the roofline, and which kernels of another capture they are of."""

from tracekit.core.ncu.wide import wide

__all__ = ["wide"]
