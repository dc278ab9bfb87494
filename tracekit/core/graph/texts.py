"""Write Markdown tables about the model, its GPUs, ops, groups, op types and kernels."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from tracekit.core.dlprof.model import ModelSummary

if TYPE_CHECKING:
    from tracekit.core.rollup import Rollup

MAX_ROWS = 200
_MS = 1e6
_PERCENT = 100.0


def build_markdown_tables(rollup: Rollup) -> pl.DataFrame:
    """Return Markdown tables that summarize a roll-up.

    Returns:
        One row per table: ``tag`` (name of the table), ``text`` (Markdown). A table has at most ``MAX_ROWS`` rows,
        which are those with the most GPU time.
    """
    rollup = rollup.steady
    model = ModelSummary(rollup)
    tables = {
        "summary/model": _format_markdown_table(_build_model_statistics(model)),
        "summary/devices": _format_markdown_table(_build_device_rows(model)),
        "tables/ops": _format_largest_rows(_build_op_rows(rollup)),
        "tables/groups": _format_largest_rows(_build_group_rows(rollup)),
        "tables/op_types": _format_largest_rows(_build_op_type_rows(rollup)),
        "tables/kernels": _format_largest_rows(_build_kernel_rows(rollup)),
    }
    return pl.DataFrame({"tag": tables.keys(), "text": tables.values()}, schema={"tag": pl.String, "text": pl.String})


def _build_model_statistics(model: ModelSummary) -> pl.DataFrame:
    ops, its = model.rollup.ops.filter(pl.col("count") > 0), model.rollup.iterations
    kinds = {
        "All ops": pl.lit(value=True),
        "Ops that use Tensor Cores": pl.col("uses_tc"),
        "Eligible ops that do not use Tensor Cores": pl.col("eligible") & ~pl.col("uses_tc"),
        "Other ops": ~pl.col("eligible") & ~pl.col("uses_tc"),
    }
    total = max(int(ops["gpu_sum"].sum()), 1)
    rows = [
        (name, *_format_count_and_share(ops.filter(condition).select(pl.len(), pl.col("gpu_sum").sum()).row(0), total))
        for name, condition in kinds.items()
    ]
    mean, _ = model.iteration_mean_and_std_ns
    warm_up = its.frame.filter("is_warm_up")
    left_out = warm_up.filter(~pl.col("aggregated")).height
    rows += [
        ("Aggregated iterations", f"{its.aggregated.height} of {its.frame.height}", ""),
        ("Warm-up iterations that are left out", f"{left_out} of {warm_up.height}", ""),
        ("Key op", f"`{_escape_code(its.key)}`" if its.has_key_op else "none", ""),
        ("Mean iteration", f"{mean / _MS:.3f} ms", ""),
        ("GPU utilization", f"{model.gpu_utilization:.1f} %", ""),
        ("Kernel time of eligible ops on Tensor Cores", f"{model.tc_utilization:.1f} %", ""),
    ]
    return pl.DataFrame(rows, schema=dict.fromkeys(("Figure", "Value", "Share of GPU time"), pl.String), orient="row")


def _format_count_and_share(count_and_ns: tuple[int, ...], total_ns: int) -> tuple[str, str]:
    count, ns = count_and_ns
    return str(count), f"{_PERCENT * ns / total_ns:.1f} %"


def _build_device_rows(model: ModelSummary) -> pl.DataFrame:
    devices = model.rollup.devices
    names = devices["name"] if "name" in devices.columns else pl.repeat("", devices.height, dtype=pl.String, eager=True)
    busy = [f"{model.device_utilization.get(d, 0.0):.1f} %" for d in devices["device_id"]]
    number = "GPU:" + devices["device_id"].cast(pl.String)
    return pl.DataFrame({"Device": number, "Name": names.fill_null(""), "Time in kernels": busy})


def _build_op_rows(rollup: Rollup) -> pl.DataFrame:
    return rollup.ops.filter(pl.col("count") > 0).select(
        gpu="gpu_sum",
        **{
            "Op ID": _code_span_expr("op_id"),
            "Op": _code_span_expr("op_name"),
            "Type": _code_span_expr("op_type"),
            "Direction": pl.col("direction").cast(pl.String).fill_null(""),
            "Calls": pl.col("count"),
            "Kernels": pl.col("kernel_count"),
            "GPU ms": _milliseconds_expr("gpu_sum"),
            "CPU ms": _milliseconds_expr("cpu_sum"),
            "Could use TC": _yes_or_no_expr("eligible"),
            "Uses TC": _yes_or_no_expr("uses_tc"),
        },
    )


def _build_group_rows(rollup: Rollup) -> pl.DataFrame:
    return rollup.groups.filter(pl.col("level") > 0).select(
        gpu="gpu_sum",
        **{
            "Group": _code_span_expr("path"),
            "Direction": pl.col("direction").fill_null(""),
            "Ops": pl.col("op_count"),
            "Calls": pl.col("instance_count"),
            "GPU ms": _milliseconds_expr("gpu_sum"),
            "CPU ms": _milliseconds_expr("cpu_sum"),
            "Could use TC": pl.col("eligible_count"),
            "Use TC": pl.col("uses_tc_count"),
        },
    )


def _build_op_type_rows(rollup: Rollup) -> pl.DataFrame:
    labels = {"Type": _code_span_expr("op_type"), "Ops": pl.col("op_count"), "Calls": pl.col("count")}
    times = {"GPU ms": _milliseconds_expr("gpu_sum"), "CPU ms": _milliseconds_expr("cpu_sum")}
    return rollup.op_types.select(gpu="gpu_sum", **labels, **times)


def _build_kernel_rows(rollup: Rollup) -> pl.DataFrame:
    kernels = rollup.select_kernels("name", "uses_tc")
    by_name = kernels.group_by(pl.col("name").cast(pl.String).alias("kernel")).agg(
        pl.col("kernel_gpu").sum(), pl.len(), pl.col("uses_tc").any()
    )
    return by_name.sort("kernel").select(
        gpu="kernel_gpu",
        **{
            "Kernel": _code_span_expr("kernel"),
            "Count": pl.col("len"),
            "GPU ms": _milliseconds_expr("kernel_gpu"),
            "Uses TC": _yes_or_no_expr("uses_tc"),
        },
    )


def _format_largest_rows(rows: pl.DataFrame) -> str:
    """Return a Markdown table of the rows with the largest ``gpu`` (GPU time), and the number of omitted rows."""
    shown = rows.sort("gpu", descending=True, maintain_order=True).head(MAX_ROWS).drop("gpu")
    more = rows.height - shown.height
    return _format_markdown_table(shown) + (f"\n\nand {more} more rows" if more else "")


def _format_markdown_table(rows: pl.DataFrame) -> str:
    header = [f"| {' | '.join(rows.columns)} |", f"|{'---|' * rows.width}"]
    cells = rows.select(pl.concat_str(pl.all().cast(pl.String).fill_null(""), separator=" | "))
    return "\n".join([*header, *(f"| {line} |" for line in cells.to_series())])


def _code_span_expr(column: str) -> pl.Expr:
    """Return an expression that formats strings as Markdown code.

    Backticks, vertical bars and line breaks are replaced.
    """
    text = pl.col(column).cast(pl.String).fill_null("").str.replace_all(r"\s+", " ").str.replace_all("`", "'")
    return pl.when(text == "").then(pl.lit("")).otherwise("`" + text.str.replace_all("|", "¦", literal=True) + "`")


def _escape_code(text: str) -> str:
    return " ".join(text.split()).replace("`", "'").replace("|", "¦")


def _milliseconds_expr(column: str) -> pl.Expr:
    """Return an expression that converts ns to milliseconds and formats them with three decimals."""
    us = (pl.col(column) + 500) // 1000
    return pl.format("{}.{}", us // 1000, (us % 1000).cast(pl.String).str.zfill(3))


def _yes_or_no_expr(column: str) -> pl.Expr:
    return pl.when(pl.col(column)).then(pl.lit("yes")).otherwise(pl.lit("no"))
