"""Decoders of units, labels, NVTX state and device attributes, shared by the readers of ncu reports and CSV files."""
