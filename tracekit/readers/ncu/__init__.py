"""Facts about Nsight Compute that apply to its reports and its CSV: units, labels, NVTX state and device attributes."""
