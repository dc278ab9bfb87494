"""Compute the reports of DLProf, and write them as CSV that equals DLProf's CSV byte for byte.

The reports are declared in ``schemas/analyses/reports_of_dlprof.toml``. In DLProf's CSV, a title is above the header,
strings are quoted, and averages and percentages have one decimal.
"""

from __future__ import annotations

import itertools
import json
from typing import TYPE_CHECKING, BinaryIO

import polars as pl

from tracekit.core.dlprof import DlprofDatabase
from tracekit.core.dlprof.model import ModelSummary
from tracekit.core.rollup import METRICS
from tracekit.core.rollup.measures import PARTS

if TYPE_CHECKING:
    from tracekit.core.reports.report import Request
    from tracekit.core.reports.table import ReportTable
    from tracekit.registry.analyses import ResultColumn

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
SUMMARY = "summary"
_TITLES = {
    "summary": "System Config",
    "detailed": "All Iterations",
    "iteration": "Iteration Report",
    "kernel": "Kernel Report",
    "tensor-core": "Tensor Core Report",
    "op-type": "Op Type Summary Report",
    "group-op": "Group Op Report",
    "expert-systems": "Expert Systems Feedback",
}
"""The first line of the CSV of each report."""


def build_summary_rows(request: Request) -> pl.DataFrame:
    """Return the rows of DLProf's summary report.

    Returns:
        One row per value or table cell, in the order of the report: ``section``, ``name``, ``label`` and ``value``
        (all String). The label of a table cell is its name followed by the title of its column.
    """
    model = ModelSummary(request.get_rollup().for_dlprof)
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


def write_csv(report: ReportTable, sink: BinaryIO) -> None:
    """Write a report as CSV that equals the CSV of DLProf byte for byte.

    The report ``summary`` is divided into sections, which are separated by empty lines.
    """
    if report.name == SUMMARY:
        sink.write(_format_sections(report.data).encode())
        return
    sink.write((f"{_TITLES[report.name]}\n" + ",".join(c.name for c in report.columns) + "\n").encode())
    for batch in report.data.iter_slices(_BATCH_ROWS) if report.rows else ():
        cells = [_format_cells(batch[c.row_name], c) for c in report.columns]
        lines = pl.DataFrame({str(i): c for i, c in enumerate(cells)}).select(pl.concat_str(pl.all(), separator=","))
        sink.write(("\n".join(lines.to_series().to_list()) + "\n").encode())


def _format_cells(values: pl.Series, column: ResultColumn) -> pl.Series:
    if column.type == "bool":
        return values.replace_strict({True: "yes", False: "no"}, return_dtype=pl.String)
    if column.type == "float64":
        distinct = values.unique().to_frame("v")
        strings = distinct.with_columns(s=pl.Series([f"{v:.1f}" for v in distinct["v"]], dtype=pl.String))
        return values.to_frame("v").join(strings, on="v", how="left", maintain_order="left")["s"]
    text = values.cast(pl.String).fill_null("")
    is_quoted = column.type == "string" and column.style != "plain"
    return '"' + text.str.replace_all('"', '""', literal=True) + '"' if is_quoted else text


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


def _add_averages(rows: pl.DataFrame, metrics: tuple[str, ...]) -> pl.DataFrame:
    """Add a column ``{metric}_avg`` for the average of each metric, which is 0 if the metric has no values."""
    count = {m: pl.col(f"{m}_count") for m in metrics}
    averages = {m: pl.when(count[m] > 0).then(pl.col(f"{m}_sum") / count[m]).otherwise(0.0) for m in metrics}
    return rows.with_columns(average.alias(f"{m}_avg") for m, average in averages.items())


def build_op_rows(request: Request) -> pl.DataFrame:
    """Each op with its calls, times and use of Tensor Cores."""
    return _add_averages(request.get_rollup().for_dlprof.ops.sort("op_id"), METRICS)


def build_op_type_rows(request: Request) -> pl.DataFrame:
    """Times of ops, summed by op type."""
    return _add_averages(request.get_rollup().for_dlprof.op_types, METRICS)


def build_group_rows(request: Request) -> pl.DataFrame:
    """Times of ops, summed by enclosing scope."""
    is_root = pl.col("level") == 0
    rows = request.get_rollup().for_dlprof.dlprof_groups.with_columns(
        path=pl.when(is_root).then(pl.lit("_CompleteModel_")).otherwise("path")
    )
    return _add_averages(rows.sort(is_root, maintain_order=True), METRICS)


def build_kernel_rows(request: Request) -> pl.DataFrame:
    """Each kernel of each op, with counts and times."""
    rollup = request.get_rollup().for_dlprof
    ops = rollup.ops.select("op", "op_id", "op_name", "direction")
    rows = rollup.kernel_summaries.join(ops, on="op", how="left", maintain_order="left")
    return _add_averages(rows.sort("op", "name"), ("kernel_gpu", "kernel_api"))


def build_iteration_rows(request: Request) -> pl.DataFrame:
    """Each kernel of each iteration, with its op, GPU time and API time."""
    rollup = request.get_rollup().for_dlprof
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


def build_tensor_core_rows(request: Request) -> pl.DataFrame:
    """Each op that is eligible for Tensor Cores, with its kernels."""
    rollup = request.get_rollup().for_dlprof
    used, names = pl.col("uses_tc"), pl.col("name").cast(pl.String)

    def joined_names_expr(condition: pl.Expr) -> pl.Expr:
        return names.filter(condition).unique().sort().str.join(", ")

    kernels = (
        rollup.select_kernels("op", "name", "uses_tc")
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
    rows = rollup.ops.filter("eligible").sort("op_id").join(kernels, on="op", how="left", maintain_order="left")
    rows = rows.with_columns(pl.col(numbers).fill_null(0), pl.col("tc_names", "other_names").fill_null(""))
    share = pl.when(pl.col("total") > 0).then(100 * pl.col("tc_total") / pl.col("total")).otherwise(0.0)
    return rows.with_columns(other_total=pl.col("total") - pl.col("tc_total"), share=share)


def build_expert_rows(request: Request) -> pl.DataFrame:
    """Problems that DLProf's rules find, with recommendations."""
    return DlprofDatabase(request.get_rollup().for_dlprof).expert_systems_feedback
