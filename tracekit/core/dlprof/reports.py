"""Compute the reports of DLProf, and write them as CSV that equals DLProf's CSV byte for byte.

Each report has a title, printed columns, and a function that computes its rows from a ``ModelSummary``. In DLProf's
CSV, the title is above the header, strings are quoted, and averages and percentages have one decimal.
"""

from __future__ import annotations

import itertools
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, BinaryIO, NamedTuple

import polars as pl

from tracekit.core.dlprof import DlprofDatabase
from tracekit.core.dlprof.model import ModelSummary
from tracekit.core.rollup import METRICS
from tracekit.core.rollup.measures import PARTS

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from tracekit.core.rollup import Rollup

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
_BATCH_ROWS = 1 << 16
_METRIC_TITLES = {"cpu": "CPU Time", "gpu": "GPU Time", "overhead": "CPU Overhead", "idle": "GPU Idle"}
_KERNEL_TITLES = {"kernel_gpu": "GPU Time", "kernel_api": "API Time"}
KEY_TITLES = frozenset(
    {
        *("Name", "Op Name", "Kernel Name", "Problem", "Recommendation"),
        *("Total GPU Time (ns)", "GPU Duration (ns)", "TC Utilization (%)"),
    }
)
"""Titles of the columns that are the point of the reports that have them."""
SUMMARY = "summary"
DOCS: Mapping[str, str] = {
    SUMMARY: "The machine, the iterations, and the time of ops and kernels by category.",
    "detailed": "Each op with its calls, times and use of Tensor Cores.",
    "iteration": "Each kernel of each iteration, with its op, GPU time and API time.",
    "kernel": "Each kernel of each op, with counts and times.",
    "tensor-core": "Each op that is eligible for Tensor Cores, with its kernels.",
    "op-type": "Times of ops, summed by op type.",
    "group-op": "Times of ops, summed by enclosing scope.",
    "expert-systems": "Problems that DLProf's rules find, with recommendations.",
}


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


def format_shapes(formats: pl.Series, shapes: pl.Series) -> pl.Series:
    """Format the tensor shapes of each row with the names of their dimensions.

    Args:
        formats: For each row, the names of the dimensions of its tensors, such as ``N,C,H,W;K,C,R,S``.
        shapes: For each row, the shapes of its tensors as a JSON list of lists.

    Returns:
        One string per row. The string is empty if the shapes are missing or invalid.
    """
    rows = pl.DataFrame({"format": formats, "shapes": shapes})
    distinct = rows.unique(maintain_order=True)
    strings = [_format_tensors(*row) for row in distinct.cast(pl.String).iter_rows()]
    formatted = distinct.with_columns(string=pl.Series(strings, dtype=pl.String))
    return rows.join(formatted, on=["format", "shapes"], how="left", maintain_order="left", nulls_equal=True)["string"]


def _format_tensors(formats: str | None, shapes: str | None) -> str:
    names = [f.split(",") for f in formats.split(";")] if formats else []
    try:
        tensors = json.loads(shapes) if shapes else []
    except (ValueError, RecursionError):
        return ""
    return "; ".join(_format_tensor(names[i] if i < len(names) else [], t or []) for i, t in enumerate(tensors))


def _format_tensor(dimension_names: list[str], shape: list[int]) -> str:
    named = (
        [f"{n}:{s}" for n, s in zip(dimension_names, shape, strict=True)]
        if len(dimension_names) == len(shape)
        else map(str, shape)
    )
    return f"<{', '.join(named)}>"


class PrintedColumn(NamedTuple):
    """One printed column of a report.

    Attributes:
        title: Title in the header.
        source: Name of the column in ``DlprofReport.data``.
        style: Style of the values: ``quoted`` (strings in quotes), ``plain`` (strings and numbers as they are),
            ``tenths`` (numbers with one decimal), ``yes`` (Booleans as yes or no).
    """

    title: str
    source: str
    style: str = "plain"


@dataclass(frozen=True, slots=True)
class DlprofReport:
    """A computed DLProf report.

    Attributes:
        name: Name of the report, such as ``op-type``.
        title: First line of the CSV.
        columns: The printed columns, in order.
        data: The rows. They contain the source columns of all printed columns, and may contain further columns.
    """

    name: str
    title: str
    columns: tuple[PrintedColumn, ...]
    data: pl.DataFrame

    @property
    def rows(self) -> int:
        """Number of rows of the report."""
        return self.data.height

    @property
    def key_titles(self) -> list[str]:
        """Titles of the columns that are the point of the report. On a terminal, they are omitted last."""
        return [c.title for c in self.columns if c.title in KEY_TITLES]

    @property
    def machine_titles(self) -> list[str]:
        """Titles of the columns that only programs read. A report of DLProf has no such columns."""
        return []

    def frame(self) -> pl.DataFrame:
        """Return the printed columns under DLProf's titles. Unlike in the CSV, averages are not rounded."""
        return self.data.select(pl.col(c.source).alias(c.title) for c in self.columns)

    def csv(self, sink: BinaryIO) -> None:
        """Write the report as CSV that equals the CSV of DLProf byte for byte.

        The report ``summary`` is divided into sections, which are separated by empty lines.
        """
        if self.name == SUMMARY:
            sink.write(_format_sections(self.data).encode())
            return
        sink.write((f"{self.title}\n" + ",".join(c.title for c in self.columns) + "\n").encode())
        for batch in self.data.iter_slices(_BATCH_ROWS) if self.rows else ():
            cells = [_format_cells(batch[c.source], c.style) for c in self.columns]
            lines = pl.DataFrame({str(i): c for i, c in enumerate(cells)}).select(
                pl.concat_str(pl.all(), separator=",")
            )
            sink.write(("\n".join(lines.to_series().to_list()) + "\n").encode())


def compute_dlprof_report(rollup: Rollup, name: str) -> DlprofReport:
    """Compute one of DLProf's reports. ``name`` is a key of ``REPORTS``, such as ``op-type``."""
    title, columns, build_rows = REPORTS[name]
    return DlprofReport(name, title, columns, build_rows(ModelSummary(rollup)))


def _format_cells(values: pl.Series, style: str) -> pl.Series:
    if style == "yes":
        return values.replace_strict({True: "yes", False: "no"}, return_dtype=pl.String)
    if style == "tenths":
        distinct = values.unique().to_frame("v")
        strings = distinct.with_columns(s=pl.Series([f"{v:.1f}" for v in distinct["v"]], dtype=pl.String))
        return values.to_frame("v").join(strings, on="v", how="left", maintain_order="left")["s"]
    text = values.cast(pl.String).fill_null("")
    return '"' + text.str.replace_all('"', '""', literal=True) + '"' if style == "quoted" else text


def _format_sections(rows: pl.DataFrame) -> str:
    sections = []
    for (section,), lines in rows.group_by("section", maintain_order=True):
        titles = TABLE_SECTIONS.get(str(section), ())
        header = [f",{','.join(titles)}"] if titles else []
        rows_by_name = lines.group_by("name", maintain_order=True).agg(pl.col("value").str.join(","))
        sections.append(
            [str(section), *header, *rows_by_name.select(pl.concat_str("name", "value", separator=",")).to_series()]
        )
    return "\n\n".join("\n".join(lines) for lines in sections) + "\n"


def _declare_statistic_columns(
    titles_by_metric: Mapping[str, str], average_title: str = "Avg."
) -> tuple[PrintedColumn, ...]:
    """Return the printed columns for the total, average, minimum and maximum of each metric."""
    return tuple(
        PrintedColumn(f"{word} {title} (ns)", f"{metric}_{statistic}", "tenths" if statistic == "avg" else "plain")
        for metric, title in titles_by_metric.items()
        for word, statistic in (("Total", "sum"), (average_title, "avg"), ("Min", "min"), ("Max", "max"))
    )


def _add_averages(rows: pl.DataFrame, metrics: tuple[str, ...]) -> pl.DataFrame:
    """Add a column ``{metric}_avg`` for the average of each metric, which is 0 if the metric has no values."""
    count = {m: pl.col(f"{m}_count") for m in metrics}
    averages = {m: pl.when(count[m] > 0).then(pl.col(f"{m}_sum") / count[m]).otherwise(0.0) for m in metrics}
    return rows.with_columns(average.alias(f"{m}_avg") for m, average in averages.items())


def _build_op_rows(model: ModelSummary) -> pl.DataFrame:
    return _add_averages(model.rollup.ops.sort("op_id"), METRICS)


def _build_op_type_rows(model: ModelSummary) -> pl.DataFrame:
    return _add_averages(model.rollup.op_types, METRICS)


def _build_group_rows(model: ModelSummary) -> pl.DataFrame:
    is_root = pl.col("level") == 0
    rows = model.rollup.dlprof_groups.with_columns(
        path=pl.when(is_root).then(pl.lit("_CompleteModel_")).otherwise("path")
    )
    return _add_averages(rows.sort(is_root, maintain_order=True), METRICS)


def _build_kernel_rows(model: ModelSummary) -> pl.DataFrame:
    ops = model.rollup.ops.select("op", "op_id", "op_name", "direction")
    rows = model.rollup.kernel_summaries.join(ops, on="op", how="left", maintain_order="left")
    return _add_averages(rows.sort("op", "name"), tuple(_KERNEL_TITLES))


def _build_iteration_rows(model: ModelSummary) -> pl.DataFrame:
    rollup = model.rollup
    rows = rollup.kernels.sort("iteration", maintain_order=True)
    ops = rollup.ops.select("op_id", "op_name", "op_type", "direction", "data_type", "data_format", "output_format")
    sizes = [f"{w}_{c}" for w in ("grid", "block") for c in "xyz"]
    launch_sizes = rollup.measures.ops.frames("kernels").select(sizes).collect()
    shapes = rollup.measures.instances.select("input_shapes").hstack(
        rollup.measures.formats_and_output_shapes.select("output_shapes")
    )
    rows = rows.hstack(ops.select(pl.all().gather(rows["op"])))
    rows = rows.hstack(launch_sizes.select(pl.all().gather(rows["activity"])))
    rows = rows.hstack(shapes.select(pl.all().gather(rows["instance"])))
    inputs, outputs = (
        format_shapes(rows[f], rows[s])
        for f, s in (("data_format", "input_shapes"), ("output_format", "output_shapes"))
    )
    return rows.with_columns(inputs=inputs, outputs=outputs, parameters=pl.lit(""))


def _build_tensor_core_rows(model: ModelSummary) -> pl.DataFrame:
    used, names = pl.col("uses_tc"), pl.col("name").cast(pl.String)

    def joined_names_expr(condition: pl.Expr) -> pl.Expr:
        return names.filter(condition).unique().sort().str.join(", ")

    kernels = (
        model.rollup.select_kernels("op", "name", "uses_tc")
        .group_by("op")
        .agg(
            total=pl.col("kernel_gpu").sum(),
            tc_total=pl.col("kernel_gpu").filter("uses_tc").sum(),
            kernels=names.n_unique(),
            tc_kernels=names.filter("uses_tc").n_unique(),
            other_kernels=names.filter(~used).n_unique(),
            tc_names=joined_names_expr(used),
            other_names=joined_names_expr(~used),
        )
    )
    numbers = ["total", "tc_total", "kernels", "tc_kernels", "other_kernels"]
    rows = model.rollup.ops.filter("eligible").sort("op_id").join(kernels, on="op", how="left", maintain_order="left")
    rows = rows.with_columns(pl.col(numbers).fill_null(0), pl.col("tc_names", "other_names").fill_null(""))
    share = pl.when(pl.col("total") > 0).then(100 * pl.col("tc_total") / pl.col("total")).otherwise(0.0)
    return rows.with_columns(other_total=pl.col("total") - pl.col("tc_total"), share=share)


def _build_expert_rows(model: ModelSummary) -> pl.DataFrame:
    return DlprofDatabase(model.rollup).expert_systems_feedback


_ID_COLUMNS = (
    PrintedColumn("Op ID", "op_id", "quoted"),
    PrintedColumn("Op Name", "op_name", "quoted"),
    PrintedColumn("Direction", "direction"),
)
_TYPE_COLUMN = PrintedColumn("Op Type", "op_type", "quoted")
REPORTS: Mapping[str, tuple[str, tuple[PrintedColumn, ...], Callable[[ModelSummary], pl.DataFrame]]] = {
    SUMMARY: (
        "System Config",
        (PrintedColumn("Section", "section"), PrintedColumn("Name", "label"), PrintedColumn("Value", "value")),
        build_summary_rows,
    ),
    "detailed": (
        "All Iterations",
        (
            *_ID_COLUMNS,
            _TYPE_COLUMN,
            PrintedColumn("No. Calls", "count"),
            PrintedColumn("TC Eligible", "eligible", "yes"),
            PrintedColumn("Using TC", "uses_tc", "yes"),
            *_declare_statistic_columns(_METRIC_TITLES),
            PrintedColumn("Data Type", "data_type"),
            PrintedColumn("Stack Trace", "stack_trace", "quoted"),
        ),
        _build_op_rows,
    ),
    "iteration": (
        "Iteration Report",
        (
            PrintedColumn("Iteration", "iteration"),
            *_ID_COLUMNS,
            _TYPE_COLUMN,
            PrintedColumn("Kernel Name", "name", "quoted"),
            PrintedColumn("Device ID", "device_id"),
            PrintedColumn("GPU Start Time (ns)", "gpu_start_ns"),
            PrintedColumn("GPU Duration (ns)", "kernel_gpu"),
            PrintedColumn("API Call Start (ns)", "start_ns"),
            PrintedColumn("API Call Time (ns)", "kernel_api"),
            PrintedColumn("Uses TC", "uses_tc", "yes"),
            *(PrintedColumn(f"{w} {c.upper()}", f"{w.lower()}_{c}") for w in ("Grid", "Block") for c in "xyz"),
            PrintedColumn("Data Types", "data_type"),
            PrintedColumn("Input Shapes", "inputs", "quoted"),
            PrintedColumn("Parameters", "parameters", "quoted"),
            PrintedColumn("Output Shapes", "outputs", "quoted"),
            PrintedColumn("Long Kernel Name", "long_name", "quoted"),
        ),
        _build_iteration_rows,
    ),
    "kernel": (
        "Kernel Report",
        (
            PrintedColumn("Kernel Name", "name", "quoted"),
            *_ID_COLUMNS,
            PrintedColumn("Uses TC", "uses_tc", "yes"),
            *_declare_statistic_columns(_KERNEL_TITLES, "Avg"),
        ),
        _build_kernel_rows,
    ),
    "tensor-core": (
        "Tensor Core Report",
        (
            *_ID_COLUMNS,
            _TYPE_COLUMN,
            PrintedColumn("Uses TC", "uses_tc", "yes"),
            PrintedColumn("Total GPU Time (ns)", "total"),
            PrintedColumn("TC GPU Time (ns)", "tc_total"),
            PrintedColumn("Non-TC GPU Time (ns)", "other_total"),
            PrintedColumn("TC Utilization (%)", "share", "tenths"),
            PrintedColumn("Total Kernel Count", "kernels"),
            PrintedColumn("TC Kernel Count", "tc_kernels"),
            PrintedColumn("TC Kernel Names", "tc_names", "quoted"),
            PrintedColumn("Non-TC Kernel Count", "other_kernels"),
            PrintedColumn("Non-TC Kernel Names", "other_names", "quoted"),
        ),
        _build_tensor_core_rows,
    ),
    "op-type": (
        "Op Type Summary Report",
        (
            _TYPE_COLUMN,
            PrintedColumn("# Ops", "op_count"),
            PrintedColumn("# Calls", "count"),
            *_declare_statistic_columns(_METRIC_TITLES),
        ),
        _build_op_type_rows,
    ),
    "group-op": (
        "Group Op Report",
        (
            PrintedColumn("Name", "path", "quoted"),
            PrintedColumn("Num Calls Aggregated", "instance_count"),
            PrintedColumn("Num TC Eligible Ops", "eligible_count"),
            PrintedColumn("Num Ops Using TC", "uses_tc_count"),
            *_declare_statistic_columns(_METRIC_TITLES),
        ),
        _build_group_rows,
    ),
    "expert-systems": (
        "Expert Systems Feedback",
        (PrintedColumn("Problem", "problem", "quoted"), PrintedColumn("Recommendation", "recommendation", "quoted")),
        _build_expert_rows,
    ),
}
"""The title and printed columns of each report, and the function that computes its rows."""
