"""Define the libraries and kinds of communication calls."""

NCCL, MPI = "NCCL", "MPI"
SYNCHRONIZING = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "barrier")
"""Kinds of collectives that no rank can complete before all ranks have started them."""
MESSAGES = ("send", "recv")
