"""The reports of ``nsys stats``, computed from declared tables and printed to the byte; and reports of our own.

A new report is a function decorated with ``@report`` in the module of its subject (``gpu``, ``api``, ``nvtx``, ``ncu``)
and a name in ``REPORTS`` below, or in ``OWN`` if nsys has none like it. ``sources`` has the rows that reports start
from, ``summary`` the statistics they share, ``table`` how columns are printed, ``numbers`` how they are rounded.

Differences from nsys, where exports lack tables: labels of enums and unnamed threads do not make a report stop.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tracekit.core.reports import advise, api, gpu, graph, ncu, nvtx
from tracekit.core.reports.report import Frames, Prefetch, Reads, Report, Request, has_legacy_rounding
from tracekit.core.reports.table import ReportTable
from tracekit.errors import UnknownFormatError, choices

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["ALIASES", "OWN", "REPORTS", "Frames", "Reads", "Report", "ReportTable", "is_known", "run"]

REPORTS: dict[str, Report] = {
    r.name: r
    for r in (
        gpu.cuda_gpu_kern_sum,
        gpu.cuda_gpu_kern_gb_sum,
        gpu.cuda_gpu_trace,
        gpu.cuda_gpu_sum,
        gpu.cuda_gpu_mem_time_sum,
        gpu.cuda_gpu_mem_size_sum,
        api.cuda_api_sum,
        api.cuda_api_trace,
        gpu.cuda_api_gpu_sum,
        api.cuda_kern_exec_sum,
        api.cuda_kern_exec_trace,
        nvtx.nvtx_sum,
        nvtx.nvtx_pushpop_sum,
        nvtx.nvtx_pushpop_trace,
        nvtx.nvtx_startend_sum,
        nvtx.nvtx_kern_sum,
        nvtx.nvtx_gpu_proj_sum,
        nvtx.nvtx_gpu_proj_trace,
        api.osrt_sum,
    )
}

OWN: dict[str, Report] = {r.name: r for r in (ncu.ncu_roofline, ncu.ncu_limiter, advise.advise, graph.graph_summary)}
"""Reports that nsys does not have."""

ALIASES = {
    "gpukernsum": "cuda_gpu_kern_sum",
    "gputrace": "cuda_gpu_trace",
    "gpusum": "cuda_gpu_sum",
    "gpumemtimesum": "cuda_gpu_mem_time_sum",
    "gpumemsizesum": "cuda_gpu_mem_size_sum",
    "gpumemsum": "cuda_gpu_mem_size_sum",
    "cudaapisum": "cuda_api_sum",
    "cudaapitrace": "cuda_api_trace",
    "apigpusum": "cuda_api_gpu_sum",
    "kernexecsum": "cuda_kern_exec_sum",
    "kernexectrace": "cuda_kern_exec_trace",
    "nvtxsum": "nvtx_sum",
    "nvtxppsum": "nvtx_pushpop_sum",
    "nvtxpptrace": "nvtx_pushpop_trace",
    "nvtxsesum": "nvtx_startend_sum",
    "nvtxsssum": "nvtx_startend_sum",
    "nvtxkernsum": "nvtx_kern_sum",
    "nvtxgpuproj": "nvtx_gpu_proj_trace",
    "osrtsum": "osrt_sum",
}
"""Names that nsys before 2023 used."""

_NSYS_ONLY = (
    *("dx11", "dx12", "khrdebug", "mpi_", "network_", "nvvideo_", "openacc", "opengl", "openmp", "syscall"),
    *("um_", "umcpu", "unifiedmemory", "vulkan", "wddm"),
)


def run(frames: Frames, name: str, prefetch: Prefetch | None = None) -> ReportTable:
    """Make one report.

    Args:
        frames: Gives a declared table by name, as ``Trace.frame`` does.
        prefetch: Is told which columns of which tables will be read, as ``Trace.prefetch``.
        name: Name of the report, or its old name, with nsys's options after colons: ``cuda_gpu_kern_sum:base``.

    Returns:
        The report; without rows where the capture has nothing to show.

    Raises:
        UnknownFormatError: There is no such report, or it does not take such an option.
    """
    base, *options = name.split(":")
    report = _named(base)
    unknown = [o for o in options if o not in report.options]
    if unknown:
        hint = choices("options", report.options, unknown[0])
        raise UnknownFormatError(f"report {report.name!r} has no option {unknown[0]!r}", hint=hint)
    if {"base", "mangled"} <= set(options):
        raise UnknownFormatError(f"report {report.name!r} was asked for base and mangled names", hint="take one")
    request = Request(frames, frozenset(options), has_legacy_rounding(frames))
    if prefetch is not None:
        prefetch(report.reads_with(request))
    return report(request)


def is_known(name: str) -> bool:
    """Whether there is a report of that name, or old name, with or without options."""
    base = name.partition(":")[0]
    return ALIASES.get(base, base) in REPORTS | OWN


def unknown(name: str, others: Iterable[str] = ()) -> UnknownFormatError:
    """Return the error for a name that no report has.

    Args:
        name: The name.
        others: Names of reports that are made elsewhere.
    """
    hint = choices("reports", [*REPORTS, *OWN, *others], name)
    if name.startswith(_NSYS_ONLY):
        return UnknownFormatError(f"report {name!r} of nsys is not among those that tracekit makes", hint=hint)
    return UnknownFormatError(f"no report is called {name!r}", hint=hint)


def _named(name: str) -> Report:
    known = REPORTS | OWN
    try:
        return known[ALIASES.get(name, name)]
    except KeyError:
        raise unknown(name) from None
