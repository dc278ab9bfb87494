"""The reports that DLProf printed: its columns, order and numbers, and its CSV to the byte.

A report is a function from the figures of the model to rows, and the columns that are printed of them. In DLProf's CSV
a title stands above the header, texts are in quotes, averages and percentages have one decimal.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, BinaryIO, NamedTuple

import polars as pl

from tracekit.core.dlprof import Database
from tracekit.core.dlprof.model import Model
from tracekit.core.dlprof.shapes import shown_shapes
from tracekit.core.dlprof.summary import SECTIONS, summary_rows
from tracekit.core.rollup import METRICS

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from tracekit.core.rollup import Rollup

_ROWS_AT_ONCE = 1 << 16
_METRIC_TITLES = {"cpu": "CPU Time", "gpu": "GPU Time", "overhead": "CPU Overhead", "idle": "GPU Idle"}
_KERNEL_TITLES = {"kernel_gpu": "GPU Time", "kernel_api": "API Time"}


class Printed(NamedTuple):
    """A column as printed.

    Attributes:
        title: Its title.
        source: Column of the rows.
        style: ``quoted`` and ``plain`` text or numbers, ``tenths`` of numbers with one decimal, ``yes`` or no.
    """

    title: str
    source: str
    style: str = "plain"


@dataclass(frozen=True, slots=True)
class DlprofReport:
    """One report.

    Attributes:
        name: Name of the report, ``op-type``.
        title: First line of its CSV.
        columns: What is printed, in order.
        data: The rows.
    """

    name: str
    title: str
    columns: tuple[Printed, ...]
    data: pl.DataFrame

    @property
    def rows(self) -> int:
        """Number of rows."""
        return self.data.height

    def frame(self) -> pl.DataFrame:
        """Return the rows under DLProf's titles; averages unrounded."""
        return self.data.select(pl.col(c.source).alias(c.title) for c in self.columns)

    def csv(self, sink: BinaryIO) -> None:
        """Write the rows as DLProf does; of the summary, section after section."""
        if self.name == SUMMARY:
            sink.write(_sections(self.data).encode())
            return
        sink.write((f"{self.title}\n" + ",".join(c.title for c in self.columns) + "\n").encode())
        for part in self.data.iter_slices(_ROWS_AT_ONCE) if self.rows else ():
            cells = [_cell(part[c.source], c.style) for c in self.columns]
            lines = pl.DataFrame({str(i): c for i, c in enumerate(cells)}).select(
                pl.concat_str(pl.all(), separator=",")
            )
            sink.write(("\n".join(lines.to_series().to_list()) + "\n").encode())


def run(rollup: Rollup, name: str) -> DlprofReport:
    """Make a report; ``name`` is one of ``REPORTS``."""
    title, columns, build = REPORTS[name]
    return DlprofReport(name, title, columns, build(Model(rollup)))


def _cell(values: pl.Series, style: str) -> pl.Series:
    if style == "yes":
        return values.replace_strict({True: "yes", False: "no"}, return_dtype=pl.String)
    if style == "tenths":
        distinct = values.unique().to_frame("v")
        shown = distinct.with_columns(s=pl.Series([f"{v:.1f}" for v in distinct["v"]], dtype=pl.String))
        return values.to_frame("v").join(shown, on="v", how="left", maintain_order="left")["s"]
    text = values.cast(pl.String).fill_null("")
    return '"' + text.str.replace_all('"', '""', literal=True) + '"' if style == "quoted" else text


def _sections(rows: pl.DataFrame) -> str:
    parts = []
    for (section,), lines in rows.group_by("section", maintain_order=True):
        titles = SECTIONS.get(str(section), ())
        head = [f",{','.join(titles)}"] if titles else []
        wide = lines.group_by("name", maintain_order=True).agg(pl.col("value").str.join(","))
        parts.append([str(section), *head, *wide.select(pl.concat_str("name", "value", separator=",")).to_series()])
    return "\n\n".join("\n".join(p) for p in parts) + "\n"


def _statistics(titles: Mapping[str, str], average: str = "Avg.") -> tuple[Printed, ...]:
    """Columns of total, average, least and greatest of each metric."""
    return tuple(
        Printed(f"{word} {title} (ns)", f"{metric}_{statistic}", "tenths" if statistic == "avg" else "plain")
        for metric, title in titles.items()
        for word, statistic in (("Total", "sum"), (average, "avg"), ("Min", "min"), ("Max", "max"))
    )


def _averaged(rows: pl.DataFrame, metrics: tuple[str, ...]) -> pl.DataFrame:
    """Add the average of each metric; 0 where there are no values."""
    count = {m: pl.col(f"{m}_count") for m in metrics}
    averages = {m: pl.when(count[m] > 0).then(pl.col(f"{m}_sum") / count[m]).otherwise(0.0) for m in metrics}
    return rows.with_columns(average.alias(f"{m}_avg") for m, average in averages.items())


def _detailed(model: Model) -> pl.DataFrame:
    return _averaged(model.rollup.ops.sort("op_id"), METRICS)


def _op_types(model: Model) -> pl.DataFrame:
    return _averaged(model.rollup.op_types, METRICS)


def _groups(model: Model) -> pl.DataFrame:
    whole = pl.col("level") == 0
    rows = model.rollup.dlprof_groups.with_columns(
        path=pl.when(whole).then(pl.lit("_CompleteModel_")).otherwise("path")
    )
    return _averaged(rows.sort(pl.col("level") == 0, maintain_order=True), METRICS)


def _kernels(model: Model) -> pl.DataFrame:
    ops = model.rollup.ops.select("op", "op_id", "op_name", "direction")
    rows = model.rollup.kernel_summaries.join(ops, on="op", how="left", maintain_order="left")
    return _averaged(rows.sort("op", "name"), tuple(_KERNEL_TITLES))


def _iterations(model: Model) -> pl.DataFrame:
    rollup = model.rollup
    rows = rollup.kernels.sort("iteration", maintain_order=True)
    ops = rollup.ops.select("op_id", "op_name", "op_type", "direction", "data_type", "data_format", "output_format")
    sizes = [f"{w}_{c}" for w in ("grid", "block") for c in "xyz"]
    found = rollup.measures.ops.frames("kernels").select(sizes).collect()
    shapes = rollup.measures.instances.select("input_shapes").hstack(rollup.measures.described.select("output_shapes"))
    rows = rows.hstack(ops.select(pl.all().gather(rows["op"])))
    rows = rows.hstack(found.select(pl.all().gather(rows["activity"])))
    rows = rows.hstack(shapes.select(pl.all().gather(rows["instance"])))
    inputs, outputs = (
        shown_shapes(rows[f], rows[s]) for f, s in (("data_format", "input_shapes"), ("output_format", "output_shapes"))
    )
    return rows.with_columns(inputs=inputs, outputs=outputs, parameters=pl.lit(""))


def _tensor_cores(model: Model) -> pl.DataFrame:
    used, names = pl.col("uses_tc"), pl.col("name").cast(pl.String)

    def listed(which: pl.Expr) -> pl.Expr:
        return names.filter(which).unique().sort().str.join(", ")

    ran = model.rollup.kernels.group_by("op").agg(
        total=pl.col("kernel_gpu").sum(),
        on=pl.col("kernel_gpu").filter("uses_tc").sum(),
        every=names.n_unique(),
        tc=names.filter("uses_tc").n_unique(),
        other=names.filter(~used).n_unique(),
        tc_names=listed(used),
        other_names=listed(~used),
    )
    numbers = ["total", "on", "every", "tc", "other"]
    rows = model.rollup.ops.filter("eligible").sort("op_id").join(ran, on="op", how="left", maintain_order="left")
    rows = rows.with_columns(pl.col(numbers).fill_null(0), pl.col("tc_names", "other_names").fill_null(""))
    share = pl.when(pl.col("total") > 0).then(100 * pl.col("on") / pl.col("total")).otherwise(0.0)
    return rows.with_columns(off=pl.col("total") - pl.col("on"), share=share)


def _experts(model: Model) -> pl.DataFrame:
    return Database(model.rollup).expert_systems_feedback


_IDS = (Printed("Op ID", "op_id", "quoted"), Printed("Op Name", "op_name", "quoted"), Printed("Direction", "direction"))
_TYPE = Printed("Op Type", "op_type", "quoted")
SUMMARY = "summary"
DOCS: Mapping[str, str] = {
    SUMMARY: "The system, the iterations, and where the time of ops and kernels went, as DLProf sums it up.",
    "detailed": "Each op with its calls and times, and what it has to do with Tensor Cores.",
    "iteration": "Each kernel of each iteration, with its op, GPU and API times.",
    "kernel": "Each kernel of each op, with counts and times.",
    "tensor-core": "Each op that could use Tensor Cores or does, with its kernels.",
    "op-type": "Ops summed up by type.",
    "group-op": "Ops summed up by the scopes that they lie in.",
    "expert-systems": "What DLProf's rules find, and what they recommend.",
}
REPORTS: Mapping[str, tuple[str, tuple[Printed, ...], Callable[[Model], pl.DataFrame]]] = {
    SUMMARY: (
        "System Config",
        (Printed("Section", "section"), Printed("Name", "label"), Printed("Value", "value")),
        summary_rows,
    ),
    "detailed": (
        "All Iterations",
        (
            *_IDS,
            _TYPE,
            Printed("No. Calls", "count"),
            Printed("TC Eligible", "eligible", "yes"),
            Printed("Using TC", "uses_tc", "yes"),
            *_statistics(_METRIC_TITLES),
            Printed("Data Type", "data_type"),
            Printed("Stack Trace", "stack_trace", "quoted"),
        ),
        _detailed,
    ),
    "iteration": (
        "Iteration Report",
        (
            Printed("Iteration", "iteration"),
            *_IDS,
            _TYPE,
            Printed("Kernel Name", "name", "quoted"),
            Printed("Device ID", "device_id"),
            Printed("GPU Start Time (ns)", "gpu_start_ns"),
            Printed("GPU Duration (ns)", "kernel_gpu"),
            Printed("API Call Start (ns)", "start_ns"),
            Printed("API Call Time (ns)", "kernel_api"),
            Printed("Uses TC", "uses_tc", "yes"),
            *(Printed(f"{w} {c.upper()}", f"{w.lower()}_{c}") for w in ("Grid", "Block") for c in "xyz"),
            Printed("Data Types", "data_type"),
            Printed("Input Shapes", "inputs", "quoted"),
            Printed("Parameters", "parameters", "quoted"),
            Printed("Output Shapes", "outputs", "quoted"),
            Printed("Long Kernel Name", "long_name", "quoted"),
        ),
        _iterations,
    ),
    "kernel": (
        "Kernel Report",
        (
            Printed("Kernel Name", "name", "quoted"),
            *_IDS,
            Printed("Uses TC", "uses_tc", "yes"),
            *_statistics(_KERNEL_TITLES, "Avg"),
        ),
        _kernels,
    ),
    "tensor-core": (
        "Tensor Core Report",
        (
            *_IDS,
            _TYPE,
            Printed("Uses TC", "uses_tc", "yes"),
            Printed("Total GPU Time (ns)", "total"),
            Printed("TC GPU Time (ns)", "on"),
            Printed("Non-TC GPU Time (ns)", "off"),
            Printed("TC Utilization (%)", "share", "tenths"),
            Printed("Total Kernel Count", "every"),
            Printed("TC Kernel Count", "tc"),
            Printed("TC Kernel Names", "tc_names", "quoted"),
            Printed("Non-TC Kernel Count", "other"),
            Printed("Non-TC Kernel Names", "other_names", "quoted"),
        ),
        _tensor_cores,
    ),
    "op-type": (
        "Op Type Summary Report",
        (_TYPE, Printed("# Ops", "op_count"), Printed("# Calls", "count"), *_statistics(_METRIC_TITLES)),
        _op_types,
    ),
    "group-op": (
        "Group Op Report",
        (
            Printed("Name", "path", "quoted"),
            Printed("Num Calls Aggregated", "instance_count"),
            Printed("Num TC Eligible Ops", "eligible_count"),
            Printed("Num Ops Using TC", "uses_tc_count"),
            *_statistics(_METRIC_TITLES),
        ),
        _groups,
    ),
    "expert-systems": (
        "Expert Systems Feedback",
        (Printed("Problem", "problem", "quoted"), Printed("Recommendation", "recommendation", "quoted")),
        _experts,
    ),
}
"""Title, columns and rows of each report."""
