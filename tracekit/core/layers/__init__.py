"""Layers of CUDA graphs: which ranges of the program the kernels of a replayed graph belong to."""
