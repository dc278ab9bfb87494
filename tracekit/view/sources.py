"""Compute the rows of the tables on the pages of the viewer."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, cast

import polars as pl

from tracekit import schemas
from tracekit.core.diagnosis.step_parts import HIDDEN, PART_COLUMNS
from tracekit.core.work.ops import compute_op_work
from tracekit.errors import TracekitError
from tracekit.pages.columns import describe_columns
from tracekit.plots.recipes import MAPS, PACES
from tracekit.registry.analyses import REPORT, get_analysis, parse_name
from tracekit.trace import call_with_tables, get_trace_view
from tracekit.view import recorded, stacks
from tracekit.view.captures import ShownRows
from tracekit.view.state import CaptureAggregation, parse_aggregation
from tracekit.view.titles import convert_title_to_name

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from tracekit.schemas import Column
    from tracekit.text.names import ReportName, TableName
    from tracekit.trace import Trace
    from tracekit.view.captures import ViewedCaptures

INDENT = "\u2007\u2007"
"""Indentation of a level of the tree: spaces as wide as a digit, which a page does not collapse."""

MAX_BINS = 300
"""Maximum number of bins of a heat map."""


@dataclass(frozen=True, slots=True)
class TableInputs:
    """The inputs of a function that computes the rows of a table, such as the trace and the arguments of the table.

    Attributes:
        trace: The correlated and rolled-up capture.
        arguments: Arguments of the table by name, such as values of the selected row in the table above.
        captures: All captures, for tables that show several of them.
        at: The scope, for tables of several ranks. The trace has been selected and rolled up accordingly.
    """

    trace: Trace
    arguments: Mapping[str, str] = field(default_factory=dict)
    captures: ViewedCaptures | None = None
    at: CaptureAggregation = field(default_factory=CaptureAggregation)


def read_table_rows(
    trace: Trace, name: str, columns: Sequence[str] | None = None, where: pl.Expr | None = None
) -> ShownRows:
    """Return the rows of a declared table.

    Args:
        trace: The trace.
        name: Name of the table.
        columns: Names of the columns to return. If None, all columns are returned, except those that are null in every
            row. The first column of the declaration and the columns of an empty table are always returned.
        where: Expression that is true for the rows to return. If None, all rows are returned.
    """
    schema = trace.schema(cast("TableName", name))
    frame = trace.frame(cast("TableName", name))
    if where is not None:
        frame = frame.filter(where)
    present = frame.collect_schema().names()
    rows = frame.select([c for c in columns if c in present] if columns else present).collect()
    if columns is None and rows.height:
        rows = rows.select([c.name for c in rows if c.null_count() < rows.height or c.name in schema.names[:1]])
    return describe_rows(rows, schema.columns)


def describe_rows(frame: pl.DataFrame, declared: Iterable[Column] = ()) -> ShownRows:
    """Return rows with the titles and explanations of their columns.

    Args:
        frame: The rows.
        declared: Declarations of the columns. Columns without a declaration have titles that follow from their names.
    """
    texts = describe_columns(frame.columns, declared)
    return ShownRows(
        frame,
        {text.name: text.title for text in texts},
        {text.name: text.doc for text in texts},
        {text.name: text.formula for text in texts if text.formula},
        {text.name: text.unit for text in texts if text.unit},
    )


def convert_report_rows(frame: pl.DataFrame, report: str) -> ShownRows:
    """Return the rows of a report or rule, with string columns first and column names that can be used in URLs."""
    analysis, _ = parse_name(report)
    described = describe_rows(frame, analysis.columns)
    names: dict[str, str] = {}
    for title in frame.columns:
        name = convert_title_to_name(title)
        names[title] = name if name not in names.values() else f"{name}_{len(names)}"
    frame = frame.rename(names)
    text = [c for c, kind in frame.schema.items() if kind in (pl.String, pl.Categorical)]
    by_name = ({names[title]: value for title, value in each.items()} for each in described[1:])
    return ShownRows(frame.select(*text, *(c for c in frame.columns if c not in text)), *by_name)


def add_columns(
    rows: ShownRows, frame: pl.DataFrame, titles: Mapping[str, str], descriptions: Mapping[str, str]
) -> ShownRows:
    """Return rows with another frame, and the titles and descriptions of the columns that it adds or changes."""
    return rows._replace(
        frame=frame, titles={**rows.titles, **titles}, descriptions={**rows.descriptions, **descriptions}
    )


def add_share_column(rows: ShownRows, column: str, total: int | None = None, title: str = "Share") -> ShownRows:
    """Return rows with an additional column, which contains the values of ``column`` as percentages.

    The additional column is inserted after ``column``.

    Args:
        rows: The rows.
        column: Name of a numeric column.
        total: Value that corresponds to 100 %. If None, it is the sum of ``column``.
        title: Title of the inserted column.
    """
    whole = int(rows.frame[column].sum() or 0) if total is None else total
    share = pl.col(column) * 100.0 / whole if whole else pl.lit(None, pl.Float64)
    frame = rows.frame.with_columns(share.alias("share_percent"))
    place = frame.columns.index(column) + 1
    order = [c for c in frame.columns if c != "share_percent"]
    order.insert(place, "share_percent")
    doc = f"Percentage of the total of {rows.titles[column]!r}."
    return add_columns(rows, frame.select(order), {"share_percent": title}, {"share_percent": doc})


def read_result(inputs: TableInputs, name: str) -> ShownRows:
    """Return the rows of a declared table, a report or a rule. Intervals have a column with their durations."""
    if name in schemas.table_names():
        return add_duration_column(read_table_rows(inputs.trace, name))
    return convert_report_rows(get_trace_view(inputs.trace).report(name).frame(), name)


def add_duration_column(rows: ShownRows) -> ShownRows:
    """Insert a column with the duration of each interval, in ns, before the column with its start.

    If the rows lack a start or an end column, they are returned unchanged.
    """
    frame = rows.frame
    if not {"start_ns", "end_ns"} <= set(frame.columns):
        return rows
    place = frame.columns.index("start_ns")
    frame = frame.insert_column(place, (frame["end_ns"] - frame["start_ns"]).alias("duration_ns"))
    return add_columns(rows, frame, {"duration_ns": "Duration"}, {"duration_ns": "End minus start."})


def read_op_types(inputs: TableInputs) -> ShownRows:
    """Return one row per op type, with the number of its ops and calls, and statistics of the times of the calls."""
    metrics = {"cpu_time": "CPU time", "gpu_time": "GPU time", "cpu_overhead": "CPU overhead", "gpu_idle": "GPU idle"}
    ops = (
        inputs.trace.frame("ops")
        .select("op_id", "op_type", "instance_count")
        .with_columns(pl.col("op_id").cast(pl.String))
    )
    iterations = inputs.trace.frame("iterations").filter("is_aggregated").select("iteration")
    calls = (
        inputs.trace.frame("op_instances")
        .select(pl.col("op_id").cast(pl.String), "iteration", *(f"{metric}_ns" for metric in metrics))
        .join(iterations, on="iteration", how="semi")
        .join(ops.select("op_id", "op_type"), on="op_id")
        .group_by("op_type")
        .agg(
            function(pl.col(f"{metric}_ns")).alias(f"{prefix}_{metric}_ns")
            for metric in metrics
            for prefix, function in _STATISTICS.items()
        )
    )
    counts = ops.group_by("op_type").agg(
        op_count=pl.len().cast(pl.Int64), instance_count=pl.col("instance_count").sum()
    )
    frame = counts.join(calls, on="op_type", how="left").sort("op_type").fill_null(0).collect()
    titles = {"op_type": "Op type", "op_count": "Ops", "instance_count": "Calls"}
    docs = {
        "op_type": "Kind of op, such as Conv2D.",
        "op_count": "Number of ops.",
        "instance_count": "Number of calls.",
    }
    for metric, title in metrics.items():
        doc = next(c.doc for c in schemas.table("op_instances").columns if c.name == f"{metric}_ns")
        for prefix, statistic in {
            "total": "Total",
            "average": "Mean",
            "minimum": "Minimum",
            "maximum": "Maximum",
        }.items():
            titles[f"{prefix}_{metric}_ns"] = f"{statistic} {title}"
            docs[f"{prefix}_{metric}_ns"] = f"{statistic} over the calls. {title}: {doc}"
    return add_share_column(ShownRows(frame, titles, docs), "total_gpu_time_ns")


_STATISTICS: Mapping[str, Callable[[pl.Expr], pl.Expr]] = {
    "total": pl.Expr.sum,
    "average": pl.Expr.mean,
    "minimum": pl.Expr.min,
    "maximum": pl.Expr.max,
}


def read_iterations(inputs: TableInputs) -> ShownRows:
    """Return one row per iteration, with its duration and its kernel time as a percentage of the duration.

    The duration is that of the window, in which the kernels that the iteration launched run.
    """
    rows = add_duration_column(read_table_rows(inputs.trace, "iterations"))
    duration = pl.col("duration_ns").replace(0, None)
    frame = rows.frame.with_columns(duration_ns=pl.col("window_end_ns") - pl.col("window_start_ns")).with_columns(
        (pl.col("kernel_time_ns") * 100.0 / duration).alias("kernel_time_percent"),
        (pl.col("tensor_core_kernel_time_ns") * 100.0 / duration).alias("tensor_core_time_percent"),
    )
    titles = {"kernel_time_percent": "Kernel share", "tensor_core_time_percent": "Tensor Core share"}
    doc = dict.fromkeys(titles, "Kernel time divided by the duration of the iteration.")
    doc["duration_ns"] = "End minus start of the window, in which the CPU and the GPU work on the iteration."
    return add_columns(rows, frame, titles, doc)


def read_step_parts(inputs: TableInputs) -> ShownRows:
    """Return one row per step with its parts, without the parts that no step has."""
    return _drop_missing_parts(read_result(inputs, "step_parts"))


def read_step_parts_of_ranks(inputs: TableInputs) -> ShownRows:
    """Return one row per step of each selected rank with its parts, without the parts that no step has."""
    from tracekit.view import ranks

    frame = ranks.compute_report(_get_server_captures(inputs), inputs.at, "step_parts")
    rows = _drop_missing_parts(convert_report_rows(frame, "step_parts"))
    return rows._replace(descriptions={**rows.descriptions, "rank": "Rank of the process in the job."})


def _drop_missing_parts(rows: ShownRows) -> ShownRows:
    columns = get_analysis("step_parts", REPORT).columns
    parts = [convert_title_to_name(c.name) for c in columns if c.row_name in (*PART_COLUMNS, *HIDDEN)]
    missing = [name for name in parts if not rows.frame[name].sum()]
    return rows._replace(frame=rows.frame.drop(missing).with_columns(pl.col("warm_up", "outlier").cast(pl.Boolean)))


def read_op_roofline(inputs: TableInputs) -> ShownRows:
    """Return one row per op, shapes and types, with its roofline. Rows are numbered, so that one can be selected."""
    rows = read_result(inputs, "op_roofline")
    return add_columns(rows, rows.frame.with_row_index("op_row"), {"op_row": "Row"}, {"op_row": "Number of the row."})


def read_op_roofline_kernels(inputs: TableInputs) -> ShownRows:
    """Return the kernels of the selected op, or those whose work is unknown if no op is named."""
    work = call_with_tables(inputs.trace, compute_op_work, key=compute_op_work)
    names = ("name", "shapes", "types", "kind", "type")
    if inputs.arguments.get("name"):
        equal = (pl.col(c).cast(pl.String).fill_null("") == inputs.arguments.get(c, "") for c in names)
        kernels = work.kernels.join(work.ops.filter(*equal), on="range_id", how="semi")
    else:
        kernels = work.kernels.filter(pl.col("range_id").is_null())
    return add_duration_column(
        read_table_rows(inputs.trace, "kernels", where=pl.col("kernel_id").is_in(kernels["kernel_id"].implode()))
    )


def read_step_utilization(inputs: TableInputs) -> ShownRows:
    """Return one row per step with its utilization, without the types in which no step multiplies."""
    rows = read_result(inputs, "step_mfu")
    frame = rows.frame.with_columns(pl.col("warm_up").cast(pl.Boolean))
    counts = [c for c in frame.columns if c.endswith(("_flop", "_op", "_without_peak"))]
    return rows._replace(frame=frame.drop(c for c in counts if not frame[c].sum()))


def read_serving_phases(inputs: TableInputs) -> ShownRows:
    """Return one row per phase of serving, or per phase and batch size if the argument ``by`` is ``batch``."""
    option = ":batch" if inputs.arguments.get("by") == "batch" else ""
    rows = convert_report_rows(inputs.trace.stats(cast("ReportName", f"serving_phases{option}")), "serving_phases")
    return _drop_empty_columns(rows)


def read_serving_steps(inputs: TableInputs) -> ShownRows:
    """Return one row per step of serving, without the numbers that no range tells."""
    return _drop_empty_columns(read_result(inputs, "serving_steps"))


def read_categories(inputs: TableInputs) -> ShownRows:
    """Return the time of kernels by category."""
    return _drop_empty_columns(read_result(inputs, "kernel_categories"))


def read_category_layers(inputs: TableInputs) -> ShownRows:
    """Return the time of kernels by category and layer."""
    return convert_report_rows(inputs.trace.stats("kernel_categories:layer"), "kernel_categories")


def _drop_empty_columns(rows: ShownRows) -> ShownRows:
    """Remove the columns without values, unless there are no rows."""
    empty = [c.name for c in rows.frame if c.null_count() == rows.frame.height > 0]
    return rows._replace(frame=rows.frame.drop(empty))


def read_iteration_ledger(inputs: TableInputs) -> ShownRows:
    """Return the parts of the selected step by the range of the program."""
    rows = read_result(inputs, "step_ledger")
    step = pl.col("step") == _parse_integer(inputs.arguments.get("iteration", "0"), "iteration")
    frame = rows.frame.filter(step).drop("step")
    return rows._replace(frame=frame if frame["pid"].n_unique() > 1 else frame.drop("pid"))


def read_memory_owners(inputs: TableInputs) -> ShownRows:
    """Return how much memory each owner holds at the peak. The argument ``by`` selects what an owner is."""
    return convert_report_rows(inputs.trace.stats(_name_report_of_owners(inputs.arguments)), "gpu_memory_owners")


def _name_report_of_owners(arguments: Mapping[str, str]) -> ReportName:
    return cast("ReportName", f"gpu_memory_owners:by={arguments.get('by', 'range')}")


def read_overlap(inputs: TableInputs) -> ShownRows:
    """Return the communication of each step of each selected rank, and how much of it computation hides."""
    from tracekit.view import ranks

    if inputs.captures is None or ranks.get_rank_set(inputs.captures) is None:
        rows = read_result(inputs, "communication_overlap")
    else:
        every = ranks.compute_report(inputs.captures, inputs.at, "communication_overlap")
        rows = convert_report_rows(every, "communication_overlap")
    is_known = rows.frame["waiting_for_ranks_ns"].null_count() < rows.frame.height
    frame = rows.frame if is_known else rows.frame.drop("waiting_for_ranks_ns")
    return rows._replace(frame=frame.with_columns(pl.col("warm_up").cast(pl.Boolean)))


def read_findings(inputs: TableInputs) -> ShownRows:
    """Return the warnings and findings that the profiler recorded, with a number for each of them."""
    rows = read_result(inputs, "recorded_findings")
    frame = rows.frame.with_columns(finding=pl.int_range(pl.len(), dtype=pl.Int64))
    used = [c for c in frame.columns if frame[c].null_count() < frame.height or c in ("table", "column", "value")]
    return add_columns(rows, frame.select(used), {"finding": "Finding"}, {"finding": "Number of the finding, from 0."})


def read_finding_rows(inputs: TableInputs) -> ShownRows:
    """Return the rows of a declared table that a finding is about, with the names of measured kernels."""
    name, column, value = (inputs.arguments.get(each, "") for each in ("table", "column", "value"))
    if name not in schemas.table_names():
        return ShownRows(pl.DataFrame(), {}, {})
    if column and column not in inputs.trace.schema(cast("TableName", name)).names:
        raise TracekitError(f"the table {name!r} has no column {column[:100]!r}", hint="follow a link of the viewer")
    where = (pl.col(column).cast(pl.String) == value) if column else None
    rows = add_duration_column(read_table_rows(inputs.trace, name, where=where))
    if "launch_id" not in rows.frame.columns or name == "ncu_launches":
        return rows
    launches = inputs.trace.frame("ncu_launches").select("launch_id", pl.col("name").cast(pl.String).alias("kernel"))
    frame = rows.frame.join(launches.collect(), on="launch_id", how="left", maintain_order="left")
    frame = frame.select("launch_id", "kernel", pl.exclude("launch_id", "kernel"))
    return rows._replace(frame=frame, titles={**rows.titles, "kernel": "Kernel"})


def read_iteration_kernels(inputs: TableInputs) -> ShownRows:
    """Return one row per kernel launch, with its op, GPU time and API time.

    If the arguments select an iteration or an op, only the launches of that iteration or op are returned.
    """
    rows = _read_kernels_with_ops(inputs.trace)
    frame = rows.frame
    if "iteration" in inputs.arguments:
        frame = frame.filter(pl.col("iteration") == _parse_integer(inputs.arguments["iteration"], "iteration"))
    if "op_id" in inputs.arguments:
        frame = frame.filter(pl.col("op_id") == inputs.arguments["op_id"])
    frame = frame.with_columns(
        _triple_expr("grid").alias("grid"), _triple_expr("block").alias("block"), start_ns=pl.col("gpu_start_time_ns")
    ).with_columns(end_ns=pl.col("start_ns") + pl.col("gpu_duration_ns"))
    order = ["op_name", "kernel_name", "device_id", "gpu_duration_ns", "gpu_start_time_ns", "api_call_start_ns"]
    order += ["api_call_time_ns", "uses_tc", "grid", "block"]
    rest = [c for c in frame.columns if c not in order and not re.fullmatch(r"(grid|block)_[xyz]", c)]
    titles = {"grid": "Grid", "block": "Block", "start_ns": "Start", "end_ns": "End"}
    docs = {"grid": "Numbers of blocks in x, y and z.", "block": "Numbers of threads in x, y and z."}
    docs |= {"start_ns": "Start on the GPU.", "end_ns": "End on the GPU (exclusive)."}
    return add_columns(rows, frame.select(*order, *rest), titles, docs)


def _read_kernels_with_ops(trace: Trace) -> ShownRows:
    """Return one row per kernel launch, with its iteration and op.

    If the capture contains a roll-up, iterations and ops are read from it. Otherwise, they are computed.
    """
    if recorded.has_recorded_rollup(trace):
        return describe_rows(recorded.read_iteration_kernels(trace))
    return convert_report_rows(trace.stats("iteration"), "iteration")


def _triple_expr(prefix: str) -> pl.Expr:
    """Return an expression that formats the columns ``PREFIX_x``, ``PREFIX_y`` and ``PREFIX_z`` as ``(x, y, z)``."""
    return pl.format("({}, {}, {})", *(pl.col(f"{prefix}_{axis}") for axis in "xyz"))


def read_iteration_ops(inputs: TableInputs) -> ShownRows:
    """Return the ops that launched kernels in the selected iteration, with the total durations of these kernels."""
    frame = _read_kernels_with_ops(inputs.trace).frame
    frame = frame.filter(pl.col("iteration") == _parse_integer(inputs.arguments.get("iteration", "0"), "iteration"))
    time = pl.col("gpu_duration_ns")
    uses = pl.col("uses_tc").fill_null(value=False)
    ops = frame.group_by("op_id", maintain_order=True).agg(
        pl.col("op_name", "direction", "op_type").first(),
        kernel_count=pl.len().cast(pl.Int64),
        tensor_core_kernel_count=uses.sum().cast(pl.Int64),
        gpu_time_ns=time.sum(),
        tensor_core_gpu_time_ns=time.filter(uses).sum(),
        data_type=pl.col("data_types").first(),
    )
    rows = describe_rows(ops, schemas.table("ops").columns)
    docs = {"tensor_core_gpu_time_ns": "Total duration of the kernels that used Tensor Cores."}
    docs |= {"gpu_time_ns": "Total duration of the kernels.", "kernel_count": "Number of kernels."}
    docs |= {"tensor_core_kernel_count": "Number of kernels that used Tensor Cores."}
    return add_share_column(add_columns(rows, ops, {}, docs), "gpu_time_ns")


def read_op_kernels(inputs: TableInputs) -> ShownRows:
    """Return one row per kernel name of the selected op, with statistics of its launches."""
    if recorded.has_recorded_rollup(inputs.trace):
        rows = describe_rows(recorded.read_op_kernels(inputs.trace))
    else:
        rows = convert_report_rows(inputs.trace.stats("kernel"), "kernel")
    frame = rows.frame.filter(pl.col("op_id") == inputs.arguments.get("op_id", ""))
    return rows._replace(frame=frame.drop("op_id", "op_name", "direction"))


def read_op_instances(inputs: TableInputs) -> ShownRows:
    """Return the instances of the selected op with their durations."""
    op = pl.col("op_id").cast(pl.String) == inputs.arguments.get("op_id", "")
    return add_duration_column(read_table_rows(inputs.trace, "op_instances", where=op))


def read_gpus(inputs: TableInputs) -> ShownRows:
    """Return one row per GPU with its utilization.

    The utilization is the part of the time of the aggregated iterations during which the GPU ran kernels, in percent.
    """
    devices = read_table_rows(inputs.trace, "devices")
    busy = inputs.trace.plot.utilization().drop("name", "total_ns")
    if inputs.at.devices:
        busy = busy.filter(pl.col("device_id").is_in(inputs.at.devices))
    busy = busy.rename({"percent": "utilization_percent", "busy_ns": "kernel_time_ns"})
    own = [c for c in devices.frame.columns if c not in ("device_id", "name")]
    frame = busy.join(devices.frame, on="device_id", how="left", maintain_order="left")
    frame = frame.select("device_id", "name", "utilization_percent", "kernel_time_ns", *own)
    titles = {"utilization_percent": "Utilization", "kernel_time_ns": "Time with kernels"}
    docs = {
        "utilization_percent": "Part of the time of the aggregated iterations during which the GPU ran kernels.",
        "kernel_time_ns": "Time in which the GPU ran kernels. Time in which several kernels ran is counted once.",
    }
    return add_columns(devices, frame, titles, docs)


def read_groups(inputs: TableInputs) -> ShownRows:
    """Return the groups in depth-first order: each group is followed by the groups that it contains."""
    rows = read_table_rows(inputs.trace, "group_nodes", inputs.trace.schema("group_nodes").names)
    parent = rows.frame.select(pl.col("group_node_id").alias("parent_id"), pl.col("path").alias("_parent"))
    frame = rows.frame.join(parent, on="parent_id", how="left", maintain_order="left")
    indent = pl.lit(INDENT).repeat_by(pl.col("level").clip(0, 64)).list.join("")
    name = pl.col("path").str.slice(pl.col("_parent").fill_null("").str.len_chars()).str.strip_chars("/")
    name = pl.when(pl.col("parent_id").is_null()).then(pl.lit("all ops")).otherwise(name)
    frame = frame.with_columns(
        pl.concat_str(indent, name).alias("group"), pl.col("path").str.split("/").alias("_parts")
    )
    # each direction is a tree of its own below the root
    frame = frame.sort(pl.col("level") > 0, pl.col("direction").cast(pl.String), "_parts", "group_node_id")
    frame = frame.select("group", pl.exclude("group", "_parts", "_parent"))
    docs = {"group": "Last part of the path, indented by its level."}
    return add_columns(rows, frame, {"group": "Group"}, docs)


def read_group_ops(inputs: TableInputs) -> ShownRows:
    """Return those ops in the selected group and its descendants whose direction is that of the group."""
    rows = read_table_rows(inputs.trace, "ops")
    path = inputs.arguments.get("path", "")
    if not path:  # the root contains all ops
        return add_share_column(rows, "gpu_time_ns", title="Share of the group")
    frame = rows.frame
    if recorded.has_recorded_rollup(inputs.trace):
        frame = frame.with_columns(group_path=pl.col("op_name").cast(pl.String), group_direction="direction")
    else:
        groups = get_trace_view(inputs.trace).figure_rows("op_groups")
        frame = frame.with_columns(pl.col("op_id").cast(pl.String).alias("_op_id"))
        frame = frame.join(groups.rename({"op_id": "_op_id"}), on="_op_id", how="left", maintain_order="left")
    direction = pl.lit(inputs.arguments.get("direction") or None, pl.String)
    inside = pl.col("group_path").str.starts_with(path)
    inside &= pl.col("group_direction").cast(pl.String).eq_missing(direction)
    frame = frame.filter(inside).select(rows.frame.columns)
    return add_share_column(rows._replace(frame=frame), "gpu_time_ns", title="Share of the group")


def read_comparison(inputs: TableInputs) -> ShownRows:
    """Return the differences between the trace of the page and the trace that the arguments of the table select."""
    from tracekit.core.compare import KINDS
    from tracekit.view import comparison

    captures = inputs.captures
    kind = inputs.arguments.get("by", "")
    if captures is None or kind not in KINDS:
        raise TracekitError(
            f"captures cannot be compared by {kind!r}", hint=f"choose one of these kinds: {', '.join(KINDS)}"
        )
    values = {name.removeprefix("other_"): value for name, value in inputs.arguments.items() if name != "by"}
    other = parse_aggregation(values, len(captures))
    return comparison.build_diff_table_rows(
        comparison.compare(captures, inputs.trace, captures[other].get_aggregated_trace(other), kind), kind
    )


def read_launch_shapes(inputs: TableInputs) -> ShownRows:
    """Return one row per kernel name, grid and block, with the number of launches and statistics of their durations."""
    shape = ("grid_x", "grid_y", "grid_z", "block_x", "block_y", "block_z")
    duration = pl.col("end_ns") - pl.col("start_ns")
    kernels = (
        inputs.trace.frame("kernels")
        .group_by("name", "short_name", *shape)
        .agg(
            launches=pl.len().cast(pl.Int64),
            total_time_ns=duration.sum(),
            average_ns=duration.mean(),
            median_ns=duration.median(),
            minimum_ns=duration.min(),
            maximum_ns=duration.max(),
            first_start_ns=pl.col("start_ns").min(),
        )
        .with_columns(_triple_expr("grid").alias("grid"), _triple_expr("block").alias("block"))
        .drop(shape)
        .sort("total_time_ns", "name", "grid", "block", descending=[True, False, False, False])
        .collect()
    )
    order = ("short_name", "grid", "block", "launches", "total_time_ns", "average_ns", "median_ns")
    kernels = kernels.select(*order, *(c for c in kernels.columns if c not in order))
    kernels = kernels.with_row_index("shape_id").cast({"shape_id": pl.Int64})
    rows = describe_rows(kernels, schemas.table("kernels").columns)
    titles = {"name": "Full name", "short_name": "Kernel", "average_ns": "Mean"}
    return add_share_column(add_columns(rows, kernels, titles, _SHAPE_DOCS), "total_time_ns")


_SHAPE_DOCS = {
    "shape_id": "Number of the row, by total time.",
    "grid": "Numbers of blocks in x, y and z.",
    "block": "Numbers of threads of a block in x, y and z.",
    "launches": "Number of launches.",
    "total_time_ns": "Sum of the durations of the launches.",
    "average_ns": "Mean of the durations of the launches.",
    "median_ns": "Median of the durations of the launches.",
    "minimum_ns": "Shortest duration of a launch.",
    "maximum_ns": "Longest duration of a launch.",
    "first_start_ns": "Start of the first launch, since the trace origin.",
}


def read_launches(inputs: TableInputs) -> ShownRows:
    """Return the kernel launches. If a kernel is selected, return only the launches with its name, grid and block."""
    where = None
    if "name" in inputs.arguments:
        arguments = inputs.arguments
        shapes = [_triple_expr(each) == arguments.get(each, "") for each in ("grid", "block")]
        where = (pl.col("name").cast(pl.String) == arguments["name"]) & shapes[0] & shapes[1]
    return add_duration_column(read_table_rows(inputs.trace, "kernels", where=where))


def read_collectives(inputs: TableInputs) -> ShownRows:
    """Return one row per NCCL kernel name, with statistics of the kernel durations."""
    rows = convert_report_rows(inputs.trace.stats("cuda_gpu_kern_sum"), "cuda_gpu_kern_sum")
    frame = rows.frame.filter(pl.col("name").cast(pl.String).str.contains(r"(?i)nccl"))
    return add_share_column(rows._replace(frame=frame), "total_time_ns", title="Share of NCCL")


def read_collective_launches(inputs: TableInputs) -> ShownRows:
    """Return the launches of NCCL kernels, with one row per launch."""
    return add_duration_column(read_table_rows(inputs.trace, "kernels", where=is_nccl_expr()))


def create_communication_reader(name: str) -> Callable[[TableInputs], ShownRows]:
    """Return a function that computes the rows of a table about the communication between ranks."""

    def read_rows(inputs: TableInputs) -> ShownRows:
        """Return the rows of a table about the communication between ranks."""
        from tracekit.view import ranks

        analysis = ranks.analyze_communication(_get_server_captures(inputs), inputs.at)
        return ranks.read_communication_rows(analysis, name)

    return read_rows


def _get_server_captures(inputs: TableInputs) -> ViewedCaptures:
    """Return all captures of the server.

    Raises:
        TracekitError: The inputs do not contain the captures.
    """
    if inputs.captures is None:
        raise TracekitError(
            "this table compares the ranks of a job, but the request is for a single capture",
            hint="open the captures of all ranks of one job with tracekit view",
        )
    return inputs.captures


def read_gpu_time(inputs: TableInputs) -> ShownRows:
    """Return the time that each GPU of each rank spends in computation, communication and other activities."""
    from tracekit.view import ranks

    return ranks.compute_gpu_time(_get_server_captures(inputs), inputs.at)


def read_utilization(inputs: TableInputs) -> ShownRows:
    """Return the utilization of each rank and GPU in each time bin."""
    from tracekit.view import ranks

    recipe, bins = inputs.arguments.get("map", ""), _parse_integer(inputs.arguments.get("bins", ""), "bins")
    if recipe not in MAPS:
        raise TracekitError(
            f"the requested heat map {recipe!r} does not exist", hint=f"choose a heat map: {', '.join(MAPS)}"
        )
    if not 1 <= bins <= MAX_BINS:
        raise TracekitError(f"a heat map cannot have {bins} bins", hint=f"use 1 to {MAX_BINS} bins")
    return ranks.compute_utilization(_get_server_captures(inputs), inputs.at, recipe, bins)


def read_pace(inputs: TableInputs) -> ShownRows:
    """Return one row per rank and occurrence of the selected kernel or range, with its start, end and duration."""
    from tracekit.view import ranks

    recipe = inputs.arguments.get("kind", "")
    if recipe not in PACES:
        raise TracekitError(
            f"the URL requests an unknown kind of occurrences, {recipe[:100]!r}",
            hint=f"choose one of these kinds: {', '.join(PACES)}",
        )
    return ranks.compute_pace(_get_server_captures(inputs), inputs.at, recipe, inputs.arguments.get("name", ""))


def is_nccl_expr() -> pl.Expr:
    """Return an expression that is true for kernels whose name contains ``nccl``, ignoring case."""
    return pl.col("name").cast(pl.String).str.contains(r"(?i)nccl")


def read_stack_functions(inputs: TableInputs) -> ShownRows:
    """Return one row per function in the selected call stacks, with the number or total time of its events."""
    return stacks.compute_function_statistics(stacks.parse_selection(inputs.trace, inputs.arguments))


def read_stack_events(inputs: TableInputs) -> ShownRows:
    """Return the selected events that have a call stack."""
    return stacks.read_events_with_stacks(stacks.parse_selection(inputs.trace, inputs.arguments))


def read_stack_frames(inputs: TableInputs) -> ShownRows:
    """Return the frames of the call stack of the selected event."""
    return stacks.read_call_stack_frames(
        inputs.trace, _parse_integer(inputs.arguments.get("stack_id", "0"), "stack_id")
    )


def read_metric_summary(inputs: TableInputs) -> ShownRows:
    """Return one row per GPU and GPU metric, with the number and statistics of its samples."""
    value = pl.col("value")
    frame = (
        inputs.trace.frame("gpu_metrics")
        .group_by("device_id", "metric")
        .agg(
            samples=pl.len().cast(pl.Int64),
            average=value.mean(),
            minimum=value.min(),
            maximum=value.max(),
        )
        .sort("device_id", "metric")
        .collect()
    )
    docs = {"samples": "Number of samples.", "average": "Mean of the samples."}
    docs |= {"minimum": "Smallest sample.", "maximum": "Largest sample."}
    return add_columns(describe_rows(frame, schemas.table("gpu_metrics").columns), frame, {"average": "Mean"}, docs)


def create_ncu_launch_reader(table: str) -> Callable[[TableInputs], ShownRows]:
    """Return a function that reads the rows of a table for the selected launch of Nsight Compute."""
    return lambda inputs: read_table_rows(
        inputs.trace,
        table,
        where=pl.col("launch_id") == _parse_integer(inputs.arguments.get("launch_id", "0"), "launch_id"),
    )


def _parse_integer(text: str, name: str) -> int:
    """Parse the URL parameter with the given name, which must be an integer of at most 18 digits."""
    if not re.fullmatch(r"-?[0-9]{1,18}", text):
        raise TracekitError(
            f"the parameter {name!r} in the URL is {text[:100]!r}, but it must be an integer of at most 18 digits",
            hint="follow a link of the viewer, or correct the URL",
        )
    return int(text)


def read_declared_table(inputs: TableInputs, name: str) -> ShownRows:
    """Return the rows of a declared table with all its columns."""
    return read_table_rows(inputs.trace, name, inputs.trace.schema(cast("TableName", name)).names)
