"""Decode units, labels, NVTX state and device attributes for both the reports and the CSV output of Nsight Compute."""
