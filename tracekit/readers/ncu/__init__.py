"""What is known of Nsight Compute whatever file its results come from: units, labels, NVTX state, devices."""
