"""Compute the rule on memory operations of Direct3D 12.

Its rows were compared with those of nsys on synthetic exports, because no available capture has such operations. The
help of nsys also describes warnings about ``ID3D12Resource::Map`` and ``ID3D12Resource::Unmap``. nsys 2025.3 printed
none of them for any combination of heap, page property and range, so this rule does not either.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from tracekit.core.reports.summary import DURATION

if TYPE_CHECKING:
    from tracekit.core.reports.report import Request

_NOT_ZEROED = 0x1000
_UPLOAD, _READBACK = 1, 2
"""Numbers of heap types by which nsys chooses the warnings, one less than those in ``D3D12_HEAP_TYPE``."""
_WRITE_COMBINE, _WRITE_BACK = 2, 3


def dx12_mem_ops(request: Request) -> pl.DataFrame:
    """Direct3D 12 calls that zero memory unnecessarily, or that read or write memory for which this is slow."""
    calls = request.frames("graphics_calls").filter(pl.col("kind").cast(pl.String) == "dx12")
    calls = calls.select("event_id", "start_ns", "thread_id", pl.col("name").cast(pl.String), DURATION)
    columns = ("event_id", "gpu", "heap_type", "heap_flags", "cpu_page_property_id")
    operations = request.frames("dx12_memory_operations").select(columns)
    rows = operations.join(calls, on="event_id", how="inner", maintain_order="left_right")
    rows = rows.with_columns(_warning_expr().alias("warning")).drop_nulls("warning")
    return rows.sort("duration_ns", descending=True, maintain_order=True).collect()


def _warning_expr() -> pl.Expr:
    """Return an expression for the warning about each memory operation. It is null for operations without one."""
    name, heap, page = (pl.col(c) for c in ("name", "heap_type", "cpu_page_property_id"))
    is_zeroed = (pl.col("heap_flags") & _NOT_ZEROED) == 0
    reads, writes = (name == f"ID3D12Resource::{f}" for f in ("ReadFromSubresource", "WriteToSubresource"))
    warnings = {
        "HEAP_CREATED_WITH_ZEROING": (name == "ID3D12Device::CreateHeap") & is_zeroed,
        "COMMITTED_RESOURCE_CREATED_WITH_ZEROING": (name == "ID3D12Device::CreateCommittedResource") & is_zeroed,
        "READ_FROM_UPLOAD_HEAP_SUBRESOURCE": reads & (heap == _UPLOAD),
        "READ_FROM_SUBRESOURCE_TO_WRITE_COMBINE_PAGE": reads & (page == _WRITE_COMBINE),
        "WRITE_TO_READBACK_HEAP_SUBRESOURCE": writes & (heap == _READBACK),
        "WRITE_TO_SUBRESOURCE_FROM_WRITE_BACK_PAGE": writes & (page == _WRITE_BACK),
    }
    return pl.coalesce(pl.when(condition).then(pl.lit(f"D3D12_{w}")) for w, condition in warnings.items())
