"""Convert the source tables of any Nsight Systems format to declared tables."""
