"""Tables to be read, in Markdown: the figures of the model, its ops, groups and kernels."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from tracekit.core.dlprof.model import ModelSummary

if TYPE_CHECKING:
    from tracekit.core.rollup import Rollup

MOST_ROWS = 200
_MS = 1e6
_PERCENT = 100.0


def texts(rollup: Rollup) -> pl.DataFrame:
    """Write the tables.

    Returns:
        One row a text: ``tag``, ``text``. Of long tables only the rows with most GPU time are there.
    """
    model = ModelSummary(rollup)
    made = {
        "summary/model": _markdown(_model(model)),
        "summary/devices": _markdown(_devices(model)),
        "tables/ops": _longest(_ops(rollup)),
        "tables/groups": _longest(_groups(rollup)),
        "tables/op_types": _longest(_op_types(rollup)),
        "tables/kernels": _longest(_kernels(rollup)),
    }
    return pl.DataFrame({"tag": made.keys(), "text": made.values()}, schema={"tag": pl.String, "text": pl.String})


def _model(model: ModelSummary) -> pl.DataFrame:
    ops, its = model.rollup.ops.filter(pl.col("count") > 0), model.rollup.iterations
    kinds = {
        "All ops": pl.lit(value=True),
        "Ops that use Tensor Cores": pl.col("uses_tc"),
        "Ops that could, and do not": pl.col("eligible") & ~pl.col("uses_tc"),
        "Other ops": ~pl.col("eligible") & ~pl.col("uses_tc"),
    }
    total = max(int(ops["gpu_sum"].sum()), 1)
    rows = [
        (name, *_counted(ops.filter(which).select(pl.len(), pl.col("gpu_sum").sum()).row(0), total))
        for name, which in kinds.items()
    ]
    mean, _ = model.iteration_ns
    rows += [
        ("Iterations counted", f"{its.chosen.height} of {its.frame.height}", ""),
        ("Key op", f"`{_plain(its.key)}`" if its.found else "none", ""),
        ("Mean iteration", f"{mean / _MS:.3f} ms", ""),
        ("GPU utilization", f"{model.gpu_utilization:.1f} %", ""),
        ("Kernel time of eligible ops on Tensor Cores", f"{model.tc_utilization:.1f} %", ""),
    ]
    return pl.DataFrame(rows, schema=dict.fromkeys(("Figure", "Value", "Share of GPU time"), pl.String), orient="row")


def _counted(row: tuple[int, ...], total: int) -> tuple[str, str]:
    count, ns = row
    return str(count), f"{_PERCENT * ns / total:.1f} %"


def _devices(model: ModelSummary) -> pl.DataFrame:
    listed = model.rollup.devices
    named = listed["name"] if "name" in listed.columns else pl.repeat("", listed.height, dtype=pl.String, eager=True)
    busy = [f"{model.device_utilization.get(d, 0.0):.1f} %" for d in listed["device_id"]]
    number = "GPU:" + listed["device_id"].cast(pl.String)
    return pl.DataFrame({"Device": number, "Name": named.fill_null(""), "In kernels": busy})


def _ops(rollup: Rollup) -> pl.DataFrame:
    return rollup.ops.filter(pl.col("count") > 0).select(
        gpu="gpu_sum",
        **{
            "Op ID": _code("op_id"),
            "Op": _code("op_name"),
            "Type": _code("op_type"),
            "Direction": pl.col("direction").cast(pl.String).fill_null(""),
            "Calls": pl.col("count"),
            "Kernels": pl.col("kernel_count"),
            "GPU ms": _ms("gpu_sum"),
            "CPU ms": _ms("cpu_sum"),
            "Could use TC": _yes("eligible"),
            "Uses TC": _yes("uses_tc"),
        },
    )


def _groups(rollup: Rollup) -> pl.DataFrame:
    return rollup.groups.filter(pl.col("level") > 0).select(
        gpu="gpu_sum",
        **{
            "Group": _code("path"),
            "Direction": pl.col("direction").fill_null(""),
            "Ops": pl.col("op_count"),
            "Calls": pl.col("instance_count"),
            "GPU ms": _ms("gpu_sum"),
            "CPU ms": _ms("cpu_sum"),
            "Could use TC": pl.col("eligible_count"),
            "Use TC": pl.col("uses_tc_count"),
        },
    )


def _op_types(rollup: Rollup) -> pl.DataFrame:
    named = {"Type": _code("op_type"), "Ops": pl.col("op_count"), "Calls": pl.col("count")}
    times = {"GPU ms": _ms("gpu_sum"), "CPU ms": _ms("cpu_sum")}
    return rollup.op_types.select(gpu="gpu_sum", **named, **times)


def _kernels(rollup: Rollup) -> pl.DataFrame:
    by_name = rollup.kernels.group_by(pl.col("name").cast(pl.String).alias("kernel")).agg(
        pl.col("kernel_gpu").sum(), pl.len(), pl.col("uses_tc").any()
    )
    return by_name.sort("kernel").select(
        gpu="kernel_gpu",
        **{"Kernel": _code("kernel"), "Count": pl.col("len"), "GPU ms": _ms("kernel_gpu"), "Uses TC": _yes("uses_tc")},
    )


def _longest(rows: pl.DataFrame) -> str:
    """Write the rows with most ``gpu``, and how many there are besides."""
    kept = rows.sort("gpu", descending=True, maintain_order=True).head(MOST_ROWS).drop("gpu")
    more = rows.height - kept.height
    return _markdown(kept) + (f"\n\nand {more} more" if more else "")


def _markdown(rows: pl.DataFrame) -> str:
    heads = [f"| {' | '.join(rows.columns)} |", f"|{'---|' * rows.width}"]
    cells = rows.select(pl.concat_str(pl.all().cast(pl.String).fill_null(""), separator=" | "))
    return "\n".join([*heads, *(f"| {line} |" for line in cells.to_series())])


def _code(column: str) -> pl.Expr:
    """Show a text as it is; what would end it or the row is replaced."""
    text = pl.col(column).cast(pl.String).fill_null("").str.replace_all(r"\s+", " ").str.replace_all("`", "'")
    return pl.when(text == "").then(pl.lit("")).otherwise("`" + text.str.replace_all("|", "¦", literal=True) + "`")


def _plain(text: str) -> str:
    return " ".join(text.split()).replace("`", "'").replace("|", "¦")


def _ms(column: str) -> pl.Expr:
    """Milliseconds with three decimals, from integers."""
    us = (pl.col(column) + 500) // 1000
    return pl.format("{}.{}", us // 1000, (us % 1000).cast(pl.String).str.zfill(3))


def _yes(column: str) -> pl.Expr:
    return pl.when(pl.col(column)).then(pl.lit("yes")).otherwise(pl.lit("no"))
