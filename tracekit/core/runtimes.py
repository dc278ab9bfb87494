"""Declare how the runtimes of all makers name their functions, and how their kernels of collectives are named."""

from __future__ import annotations

RUNTIME_PREFIX = r"^(?:cuda|hip|musa)"
"""Regular expression that matches the prefix of the functions of a runtime: CUDA, HIP (AMD) or MUSA."""
API_PREFIX = r"^(?:cu(?:da)?|hip|mu(?:sa)?)"
"""Regular expression that matches the prefix of the functions of a runtime or driver. A capital letter follows it."""
COLLECTIVE_KERNEL = r"^(?:_Z\d+)?(?i:nccl|rccl|mccl|hcom_|oneccl)"
"""Regular expression that matches the kernels of libraries of collectives: NCCL, RCCL, MCCL, HCCL and oneCCL."""
