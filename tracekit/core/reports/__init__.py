"""The reports of ``nsys stats``, computed from declared tables and printed to the byte; and reports of our own.

A new report is a function decorated with ``@report`` in the module of its subject (``gpu``, ``api``, ``nvtx``, ``ncu``)
and a name in ``REPORTS`` below, or in ``OWN`` if nsys has none like it. ``sources`` has the rows that reports start
from, ``summary`` the statistics they share, ``table`` how columns are printed, ``numbers`` how they are rounded.

Differences from nsys, where exports lack tables: labels of enums and unnamed threads do not make a report stop.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import TYPE_CHECKING

from tracekit.core.reports.report import Frames, Prefetch, Reads, Report, Request, has_legacy_rounding
from tracekit.core.reports.table import ReportTable
from tracekit.errors import UnknownFormatError, choices

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

__all__ = ["ADVISE", "ALIASES", "OWN", "REPORTS", "Frames", "Reads", "Report", "ReportTable", "is_known", "run"]

ADVISE = "advise"
_GPU, _API, _NVTX = "gpu", "api", "nvtx"


class _Reports(Mapping[str, Report]):
    """Reports by name; the module of a report is imported when the report is asked for."""

    def __init__(self, modules: Mapping[str, str]) -> None:
        self._modules = modules

    def __getitem__(self, name: str) -> Report:
        report: Report = getattr(import_module(f"{__name__}.{self._modules[name]}"), name)
        return report

    def __contains__(self, name: object) -> bool:
        return name in self._modules

    def __iter__(self) -> Iterator[str]:
        return iter(self._modules)

    def __len__(self) -> int:
        return len(self._modules)


REPORTS: Mapping[str, Report] = _Reports(
    {
        "cuda_gpu_kern_sum": _GPU,
        "cuda_gpu_kern_gb_sum": _GPU,
        "cuda_gpu_trace": _GPU,
        "cuda_gpu_sum": _GPU,
        "cuda_gpu_mem_time_sum": _GPU,
        "cuda_gpu_mem_size_sum": _GPU,
        "cuda_api_sum": _API,
        "cuda_api_trace": _API,
        "cuda_api_gpu_sum": _GPU,
        "cuda_kern_exec_sum": _API,
        "cuda_kern_exec_trace": _API,
        "nvtx_sum": _NVTX,
        "nvtx_pushpop_sum": _NVTX,
        "nvtx_pushpop_trace": _NVTX,
        "nvtx_startend_sum": _NVTX,
        "nvtx_kern_sum": _NVTX,
        "nvtx_gpu_proj_sum": _NVTX,
        "nvtx_gpu_proj_trace": _NVTX,
        "osrt_sum": _API,
    }
)
"""Reports that nsys has too: the module of each."""

OWN: Mapping[str, Report] = _Reports(
    {"ncu_roofline": "ncu", "ncu_limiter": "ncu", ADVISE: "advise", "graph_summary": "graph"}
)
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
    return ALIASES.get(base, base) in {*REPORTS, *OWN}


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
    name = ALIASES.get(name, name)
    known = next((reports for reports in (REPORTS, OWN) if name in reports), None)
    if known is None:
        raise unknown(name)
    return known[name]
