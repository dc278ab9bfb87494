"""The summary report: the machine, the shares of time, the iterations, ops and kernels by category."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import polars as pl

from tracekit.core.dlprof import Database
from tracekit.core.rollup.breakdown import PARTS

if TYPE_CHECKING:
    from tracekit.core.dlprof.model import Model

SECTIONS = {
    "All Ops": ("GPU Time (ns)", "CPU Time (ns)", "# Ops"),
    "All Kernels": ("GPU Time (ns)", "CPU Time (ns)", "# Kernels"),
}
"""Sections that are tables, and their columns."""
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


def summary_rows(model: Model) -> pl.DataFrame:
    """Make the rows: ``section``, ``name``, ``label``, ``value``; of a table, one row a cell in its order.

    The label says also which column of the table it is.
    """
    parts = {
        "System Config": _system(model),
        "Summary Report": _shares(model),
        "Iterations": _iterations(model),
        "All Ops": _ops(model),
        "All Kernels": _kernels(model),
    }
    rows = [
        (section, name, name if title is None else f"{name}: {title}", value)
        for section, lines in parts.items()
        for (name, value), title in zip(lines, itertools.cycle(SECTIONS.get(section, (None,))), strict=False)
    ]
    return pl.DataFrame(rows, schema=dict.fromkeys(("section", "name", "label", "value"), pl.String), orient="row")


def _system(model: Model) -> list[tuple[str, str]]:
    made = Database(model.rollup)
    told = made.read_only_system_config.row(0, named=True)
    names = made.read_only_gpu_infos["gpu_name"].to_list()
    first = [("GPU Count", told["num_gpus"]), ("GPU Name(s)", ", ".join(names))]
    return [*first, *((n, told[c]) for n, c in _SYSTEM.items() if c != "cudnn_version" or told[c])]


def _shares(model: Model) -> list[tuple[str, str]]:
    rates = {
        "Tensor Core Kernel Utilization %": round(model.tc_utilization, 6),
        "GPU Utilization %": round(model.gpu_utilization, 6),
    }
    rates |= {f"{n} Duration %": round(model.percentages[p], 6) for n, p in zip(_PARTS, PARTS, strict=True)}
    return [("Wall Clock Time (ns)", str(model.wall_ns)), *((n, f"{v:.1f}") for n, v in rates.items())]


def _iterations(model: Model) -> list[tuple[str, str]]:
    its = model.rollup.iterations
    mean, deviation = model.iteration_ns
    counts = {
        "Total Iterations": its.frame.height,
        "Aggregated Iterations": its.chosen.height,
        "Start Iteration": its.first,
        "Stop Iteration": its.last,
    }
    lasted = {"Average Iteration Time (ns)": mean, "Iteration Time Standard Deviation": deviation}
    return [*((n, str(v)) for n, v in counts.items()), *((n, f"{round(v, 6):.1f}") for n, v in lasted.items())]


def _ops(model: Model) -> list[tuple[str, str]]:
    names = {"All ops": 0, "Ops using TC": 2, "Ops eligible for TC but not using": 1, "All other ops": 3}
    return [cell for name, row in names.items() for cell in _cells(name, model.categories.row(row, named=True))]


def _kernels(model: Model) -> list[tuple[str, str]]:
    kernels, on, off, memory = (model.categories.row(i, named=True) for i in range(4, 8))
    every = {c: kernels[c] + memory[c] for c in kernels}
    rows = {"All kernels": every, "Kernels using TC": on, "Memory": memory, "All other kernels": off}
    return [cell for name, row in rows.items() for cell in _cells(name, row)]


def _cells(name: str, row: dict[str, int]) -> list[tuple[str, str]]:
    return [(name, str(row[c])) for c in ("gpu_time", "cpu_time", "count")]
