"""Decode units, labels, NVTX state and device attributes of Nsight Compute, for both its reports and its CSV output."""
