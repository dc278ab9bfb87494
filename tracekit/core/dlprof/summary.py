"""Compute the rows of DLProf's summary report: the machine, times, iterations, and categories of ops and kernels."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import polars as pl

from tracekit.core.dlprof import DlprofDatabase
from tracekit.core.rollup.breakdown import PARTS

if TYPE_CHECKING:
    from tracekit.core.dlprof.model import ModelSummary

TABLE_SECTIONS = {
    "All Ops": ("GPU Time (ns)", "CPU Time (ns)", "# Ops"),
    "All Kernels": ("GPU Time (ns)", "CPU Time (ns)", "# Kernels"),
}
"""Maps each section that is printed as a table to its column titles."""
_SYSTEM = {
    "CPU Model": "cpu_model",
    "GPU Driver Version": "driver_version",
    "Framework": "framework",
    "CUDA Version": "cuda_version",
    "cuDNN Version": "cudnn_version",
    "NSys Version": "nsys_version",
    "DLProf Version": "dlprof_version",
    "DLProf Build": "dlprof_build",
}
_PARTS = ("Tensor Core Kernel", "Non-Tensor Core Kernel", "Memory", "Dataloader", "IO", "CPU", "Other")


def build_summary_rows(model: ModelSummary) -> pl.DataFrame:
    """Return the rows of DLProf's summary report.

    Returns:
        One row per value or table cell, in the order of the report: ``section``, ``name``, ``label`` and ``value``
        (all String). The label of a table cell is its name followed by the title of its column.
    """
    sections = {
        "System Config": _build_system_values(model),
        "Summary Report": _build_time_values(model),
        "Iterations": _build_iteration_values(model),
        "All Ops": _format_op_cells(model),
        "All Kernels": _format_kernel_cells(model),
    }
    rows = [
        (section, name, name if title is None else f"{name}: {title}", value)
        for section, lines in sections.items()
        for (name, value), title in zip(lines, itertools.cycle(TABLE_SECTIONS.get(section, (None,))), strict=False)
    ]
    return pl.DataFrame(rows, schema=dict.fromkeys(("section", "name", "label", "value"), pl.String), orient="row")


def _build_system_values(model: ModelSummary) -> list[tuple[str, str]]:
    database = DlprofDatabase(model.rollup)
    config = database.read_only_system_config.row(0, named=True)
    names = database.read_only_gpu_infos["gpu_name"].to_list()
    first = [("GPU Count", config["num_gpus"]), ("GPU Name(s)", ", ".join(names))]
    return [*first, *((n, config[c]) for n, c in _SYSTEM.items() if c != "cudnn_version" or config[c])]


def _build_time_values(model: ModelSummary) -> list[tuple[str, str]]:
    rates = {
        "Tensor Core Kernel Utilization %": round(model.tc_utilization, 6),
        "GPU Utilization %": round(model.gpu_utilization, 6),
    }
    rates |= {f"{n} Duration %": round(model.part_percentages[p], 6) for n, p in zip(_PARTS, PARTS, strict=True)}
    return [("Wall Clock Time (ns)", str(model.wall_ns)), *((n, f"{v:.1f}") for n, v in rates.items())]


def _build_iteration_values(model: ModelSummary) -> list[tuple[str, str]]:
    its = model.rollup.iterations
    mean, deviation = model.iteration_mean_and_std_ns
    counts = {
        "Total Iterations": its.frame.height,
        "Aggregated Iterations": its.aggregated.height,
        "Start Iteration": its.first,
        "Stop Iteration": its.last,
    }
    durations = {"Average Iteration Time (ns)": mean, "Iteration Time Standard Deviation": deviation}
    return [*((n, str(v)) for n, v in counts.items()), *((n, f"{round(v, 6):.1f}") for n, v in durations.items())]


def _format_op_cells(model: ModelSummary) -> list[tuple[str, str]]:
    names = {"All ops": 0, "Ops using TC": 2, "Ops eligible for TC but not using": 1, "All other ops": 3}
    return [
        cell
        for name, row in names.items()
        for cell in _format_category_cells(name, model.categories.row(row, named=True))
    ]


def _format_kernel_cells(model: ModelSummary) -> list[tuple[str, str]]:
    kernels, with_tc, without_tc, memory = (model.categories.row(i, named=True) for i in range(4, 8))
    total = {c: kernels[c] + memory[c] for c in kernels}  # DLProf counts memory operations as kernels here
    rows = {"All kernels": total, "Kernels using TC": with_tc, "Memory": memory, "All other kernels": without_tc}
    return [cell for name, row in rows.items() for cell in _format_category_cells(name, row)]


def _format_category_cells(name: str, row: dict[str, int]) -> list[tuple[str, str]]:
    return [(name, str(row[c])) for c in ("gpu_time", "cpu_time", "count")]
