"""Functions of the runtimes of all makers count alike."""

from __future__ import annotations

import re

import polars as pl
import pytest
from tests.exporters.test_chrome_trace import QUEUE, call, trace
from tracekit.core.runtimes import API_PREFIX, COLLECTIVE_KERNEL


@pytest.mark.parametrize("prefix", ["cu", "cuda", "hip", "mu", "musa"])
def test_prefixes_of_functions(prefix: str) -> None:
    assert re.match(f"{API_PREFIX}GraphLaunch", f"{prefix}GraphLaunch")
    assert not re.match(f"{API_PREFIX}GraphLaunch", f"x{prefix}GraphLaunch")


@pytest.mark.parametrize("prefix", ["cuda", "hip", "musa"])
def test_rules_apply_to_every_runtime(prefix: str) -> None:
    calls = [
        call(10, 20, name=f"{prefix}Memcpy", correlation_id=1),
        call(30, 40, name=f"{prefix}StreamSynchronize", correlation_id=2),
        call(50, 60, name=f"{prefix}MemcpyAsync", correlation_id=3),
    ]
    kinds = {"copy_kind": "Device-to-Host", "src_memory_kind": "Device", "dst_memory_kind": "Pageable"}
    copies = [
        {"start_ns": 12, "end_ns": 18, **QUEUE, "correlation_id": n, "memcpy_id": n, "bytes": 1 << 20, **kinds}
        for n in (1, 3)
    ]
    analyzed = trace(api_calls=calls, memcpys=copies)
    for rule in ("cuda_memcpy_sync", "cuda_memcpy_async", "cuda_api_sync"):
        assert analyzed.analyze(rule).height == 1, rule


@pytest.mark.parametrize(
    ("name", "is_collective"),
    [
        ("ncclDevKernel_Generic_4", True),
        ("_Z39ncclDevKernel_AllReduce", True),
        ("hcom_allReduce__123", True),
        ("rcclGenericKernel", True),
        ("gemm_nccl", False),
    ],
)
def test_kernels_of_collectives(name: str, is_collective: bool) -> None:
    assert pl.select(pl.lit(name).str.contains(COLLECTIVE_KERNEL)).item() is is_collective
