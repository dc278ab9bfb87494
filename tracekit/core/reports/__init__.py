"""Compute reports from declared tables: the reports of ``nsys stats``, with byte-for-byte equal CSV, and other reports.

To add a report, write a function decorated with ``@report`` in the module of its subject, such as ``gpu`` or ``nvtx``.
Add its name to ``REPORTS``, or to ``EXTRA_REPORTS`` if nsys does not have the report. These modules help:

- ``sources`` reads the kernels, memory operations, API calls and NVTX ranges on which several reports are based.
- ``summary`` computes statistics.
- ``table`` declares and prints columns.
- ``numbers`` rounds numbers.

Unlike in nsys, no report fails if an export lacks the tables of enum labels or thread names.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from importlib import import_module
from typing import TYPE_CHECKING

from tracekit.core.reports.report import Frames, Prefetch, Report, Request, Window, Without, has_legacy_rounding
from tracekit.core.reports.table import ReportTable
from tracekit.errors import UnknownFormatError, create_choices_hint

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from tracekit.core.rollup import Rollup

__all__ = [
    "ALIASES",
    "EXTRA_REPORTS",
    "OF_ROLLUP",
    "REPORTS",
    "Frames",
    "Report",
    "ReportTable",
    "compute_report",
    "compute_report_of_recorded_steps",
    "compute_report_of_rollup",
    "is_known_report",
    "is_report_of_nsys",
]

OF_ROLLUP = ("advise", "steps")
"""The reports that are computed from a roll-up."""

_GPU, _API, _NVTX, _PARALLEL, _MEMORY, _GRAPHICS = "gpu", "api", "nvtx", "parallel", "memory", "graphics"
_MAX_DIGITS = 9


class _LazyReports(Mapping[str, Report]):
    """A mapping from names to reports. The module of a report is imported when the report is first looked up."""

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


REPORTS: Mapping[str, Report] = _LazyReports(
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
        "openmp_sum": _PARALLEL,
        "mpi_event_sum": _PARALLEL,
        "mpi_event_trace": _PARALLEL,
        "mpi_msg_size_sum": _PARALLEL,
        "syscall_sum": _API,
        "um_sum": _MEMORY,
        "um_total_sum": _MEMORY,
        "um_cpu_page_faults_sum": _MEMORY,
        "openacc_sum": _GRAPHICS,
        "vulkan_api_sum": _GRAPHICS,
        "vulkan_api_trace": _GRAPHICS,
        "vulkan_marker_sum": _GRAPHICS,
        "vulkan_gpu_marker_sum": _GRAPHICS,
        "opengl_khr_range_sum": _GRAPHICS,
        "opengl_khr_gpu_range_sum": _GRAPHICS,
        "dx11_pix_sum": _GRAPHICS,
        "dx12_pix_sum": _GRAPHICS,
        "dx12_gpu_marker_sum": _GRAPHICS,
        "nvvideo_api_sum": _GRAPHICS,
        "wddm_queue_sum": "wddm",
        "network_congestion": "network",
    }
)
"""The reports that nsys also has, keyed by name."""

EXTRA_REPORTS: Mapping[str, Report] = _LazyReports(
    {
        "ncu_roofline": "ncu",
        "ncu_limiter": "ncu",
        "advise": "advise",
        "steps": "steps",
        "graph_summary": "graph",
        "gpu_memory_peak": _MEMORY,
        "gpu_memory_alive": _MEMORY,
        "gpu_memory_usage": _MEMORY,
    }
)
"""The reports that nsys does not have, keyed by name."""

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
    "openmpevtsum": "openmp_sum",
    "unifiedmemory": "um_sum",
    "unifiedmemorytotals": "um_total_sum",
    "umcpupagefaults": "um_cpu_page_faults_sum",
    "openaccsum": "openacc_sum",
    "khrdebugsum": "opengl_khr_range_sum",
    "khrdebuggpusum": "opengl_khr_gpu_range_sum",
    "wddmqueuesdetails": "wddm_queue_sum",
    "vulkanmarkerssum": "vulkan_marker_sum",
    "vulkangpumarkersum": "vulkan_gpu_marker_sum",
    "dx11pixsum": "dx11_pix_sum",
    "dx12pixsum": "dx12_pix_sum",
    "dx12gpumarkersum": "dx12_gpu_marker_sum",
}
"""Maps the name of a report in nsys before 2023 to its current name."""


def compute_report(
    frames: Frames,
    name: str,
    prefetch: Prefetch | None = None,
    *,
    window: Window = (None, None),
    without: Without | None = None,
) -> ReportTable:
    """Compute the report with a given name and options.

    Args:
        frames: Function that returns the declared table with a given name, such as ``Trace.frame``.
        name: Name or old name of the report, optionally followed by options after colons, as in nsys:
            ``cuda_gpu_kern_sum:base``.
        prefetch: Function that is called before the computation, with the computation as its argument. It may read
            all required data in one pass over the file.
        window: The time window ``[a, b)`` in ns to which the tables of ``frames`` are limited. Either bound may be
            None.
        without: Function that returns a function like ``frames`` for the tables without some conditions on rows, for
            reports that depend on rows that are not selected. If None, ``frames`` is used.

    Returns:
        The computed report. It has no rows if the capture has no data for the report.

    Raises:
        UnknownFormatError: The report or one of the options is unknown, the value of an option is invalid, or two
            options are mutually exclusive.
    """
    base, *options = name.split(":")
    report = _find_report(base)
    request = Request(
        frames,
        frozenset(options),
        has_legacy_rounding(frames),
        _parse_parameters(report, options),
        window,
        without,
    )
    if prefetch is not None:
        prefetch(lambda tables: report(request.with_frames(tables)))
    return replace(report(request), standard_quotes=not is_report_of_nsys(name))


def compute_report_of_rollup(rollup: Rollup, name: str) -> ReportTable:
    """Compute a report over the aggregated iterations of a roll-up. ``name`` is one of ``OF_ROLLUP``."""
    report = _find_report(name)
    rows = import_module(f"{__name__}.{name}").build_rows(rollup)
    return ReportTable(report.name, report.columns, rows, standard_quotes=True)


def compute_report_of_recorded_steps(frames: Frames) -> ReportTable:
    """Compute the report ``steps`` of a capture that contains the iterations of DLProf."""
    from tracekit.core.reports.steps import build_recorded_rows

    report = _find_report("steps")
    return ReportTable(report.name, report.columns, build_recorded_rows(frames), standard_quotes=True)


def _parse_parameters(report: Report, options: list[str]) -> dict[str, int]:
    """Return the values of the options of a report that have values, and check all options.

    Raises:
        UnknownFormatError: An option is unknown, a value is invalid, or two options are mutually exclusive.
    """
    parameters: dict[str, int] = {}
    for option in options:
        parameter, _, value = option.partition("=")
        if parameter in report.parameter_defaults:
            parameters[parameter] = _parse_parameter_value(report, parameter, value)
        elif option not in report.options:
            hint = create_choices_hint(
                "options", [*report.options, *(f"{p}=N" for p in report.parameter_defaults)], option
            )
            raise UnknownFormatError(f"report {report.name!r} has no option {option!r}", hint=hint)
    if {"base", "mangled"} <= set(options):
        raise UnknownFormatError(
            f"report {report.name!r}: options 'base' and 'mangled' are mutually exclusive",
            hint="use either base or mangled",
        )
    return parameters


def _parse_parameter_value(report: Report, parameter: str, text: str) -> int:
    """Parse the integer value of an option of a report.

    Raises:
        UnknownFormatError: The value is not an integer of at most nine digits, or is 0 for the option ``rows``. Despite
            its name, this error also reports invalid options.
    """
    minimum, maximum = 1 if parameter == "rows" else 0, 10**_MAX_DIGITS - 1
    if not (text.isascii() and text.isdecimal() and len(text) <= _MAX_DIGITS and int(text) >= minimum):
        raise UnknownFormatError(
            f"report {report.name!r}: the value of option '{parameter}={text}' "
            f"is not an integer from {minimum} to {maximum}",
            hint=f"write, for example, {parameter}={report.parameter_defaults[parameter]}",
        )
    return int(text)


def is_known_report(name: str) -> bool:
    """Return whether a report with the given name or old name exists. Options after colons are ignored."""
    return _find_current_report_name(name) in {*REPORTS, *EXTRA_REPORTS}


def list_required_tables(name: str) -> tuple[str, ...]:
    """Return the tables without which a report has no rows, given its name or old name and options."""
    base, *options = name.split(":")
    return _find_report(base).list_required_tables(options)


def is_report_of_nsys(name: str) -> bool:
    """Return whether nsys has a report with the given name or old name. Options after colons are ignored."""
    return _find_current_report_name(name) in REPORTS


def _find_current_report_name(name: str) -> str:
    """Return the current name of a report, without its options."""
    base = name.partition(":")[0]
    return ALIASES.get(base, base)


def create_unknown_report_error(name: str, other_names: Iterable[str] = ()) -> UnknownFormatError:
    """Return the error for an unknown report.

    Args:
        name: The unknown name.
        other_names: Further names of reports to list in the hint.
    """
    hint = create_choices_hint("reports", [*REPORTS, *EXTRA_REPORTS, *other_names], name)
    return UnknownFormatError(f"unknown report {name!r}", hint=hint)


def _find_report(name: str) -> Report:
    name = ALIASES.get(name, name)
    for reports in (REPORTS, EXTRA_REPORTS):
        if name in reports:
            return reports[name]
    raise create_unknown_report_error(name)
