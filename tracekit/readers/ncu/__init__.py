"""Decode units, labels, NVTX state and device attributes for both Nsight Compute reports and CSV output."""
