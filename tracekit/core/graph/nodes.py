"""Build the nodes of the graph and their inputs.

A capture does not record which op produced a tensor, so only two kinds of inputs are known. The forward op is a data
input of its backward op. The op whose first instance immediately precedes the first instance of another op on the same
thread is a control input of that other op.
"""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING

import polars as pl

from tracekit.core.dlprof.model import ModelSummary
from tracekit.core.ops.identity import BACKWARD_SUFFIX
from tracekit.core.relations import THREAD
from tracekit.core.rollup import tables

if TYPE_CHECKING:
    from tracekit.core.rollup import Rollup

UNNAMED = "unnamed"
BACKWARD = "_bprop"
_MODULE = r"\b[A-Za-z_]\w*\[([^\[\]/]+)\]"
_ILLEGAL = r"[^A-Za-z0-9_.\-]+"
MAX_ROWS = 200
_MS = 1e6
_PERCENT = 100.0
_DURATION = pl.col("end_ns") - pl.col("start_ns")
_ON_GPU = ("in_tensor_core_kernels_ns", "in_other_kernels_ns", "in_memory_ops_ns")
_PARTS = (*_ON_GPU, "in_dataloader_ns", "in_io_ns", "in_cpu_ns", "in_nothing_ns")
ELEMENT_BYTES = {
    **dict.fromkeys(("float16", "bfloat16", "int16", "uint16"), 2),
    **dict.fromkeys(("float32", "int32", "uint32"), 4),
    **dict.fromkeys(("float64", "int64", "uint64", "complex64"), 8),
    **dict.fromkeys(("int8", "uint8", "bool"), 1),
    "complex128": 16,
}
"""Size of an element in bytes, keyed by data type."""
_OP_COLUMNS = ("op_id", "op_name", "op_type", "direction", "data_type", "tensor_core_support")
_LIMIT = 1 << 62
_SHAPES = pl.List(pl.List(pl.Int64))


def choose_op_node_names(ops: pl.DataFrame) -> pl.Series:
    """Return a distinct node name for each op.

    A backward op has the name of its forward op with the suffix ``_bprop``. If several names are equal, all but the
    first get a number, such as ``_1``, in the order of the numbers in the op ids.

    Args:
        ops: One row per op: ``op_id`` and ``op_name``.
    """
    ids = ops["op_id"].cast(pl.String)
    forward = ids.str.strip_suffix(BACKWARD_SUFFIX)
    is_backward = ids.str.ends_with(BACKWARD_SUFFIX) & forward.is_in(ids.implode())
    number = pl.col("id").str.extract(r"_(\d{1,18})(?:_BPROP)?$").cast(pl.Int64)
    rows = pl.DataFrame(
        {"name": convert_to_legal_node_names(ops["op_name"]), "id": ids, "is_backward": is_backward}
    ).with_row_index("row")
    rows = rows.with_columns(name=pl.col("name") + pl.when("is_backward").then(pl.lit(BACKWARD)).otherwise(pl.lit("")))
    rows = rows.sort(number, "id")
    return rows.with_columns(name=append_numbers_to_duplicates(rows["name"])).sort("row")["name"]


def convert_to_legal_node_names(names: pl.Series) -> pl.Series:
    """Convert each op name to a legal TensorFlow node name.

    In each part of a path, a sequence of characters other than letters, digits, ``_``, ``.`` and ``-`` is replaced with
    ``_``, or removed if it is at the start or end of the part. For example, ``iteration */aten::mm`` becomes
    ``iteration/aten_mm``. Empty parts are removed. Legal names are unchanged.
    """
    part = pl.element()
    legal = part.str.replace(_ILLEGAL + "$", "").str.replace("^" + _ILLEGAL, "").str.replace_all(_ILLEGAL, "_")
    parts = pl.col("name").cast(pl.String).fill_null("").str.split("/")
    parts = parts.list.eval(pl.when(part == "").then(pl.lit("")).when(legal == "").then(pl.lit("_")).otherwise(legal))
    joined = parts.list.eval(part.filter(part != "")).list.join("/")
    prefixed = pl.when(joined.str.contains("^[_-]")).then("." + joined).otherwise(joined)
    result = names.to_frame("name").select(pl.when(joined == "").then(pl.lit(UNNAMED)).otherwise(prefixed))
    return result.to_series().alias(names.name)


def normalize_node_names(names: pl.Series) -> pl.Series:
    """Convert the node names of another graph to legal node names that can be compared with op names.

    PyTorch writes the class of a module before its name. The class is removed: ``Net/Conv2d[conv1]`` becomes
    ``Net/conv1``.
    """
    return convert_to_legal_node_names(names.cast(pl.String).str.replace_all(_MODULE, "$1"))


def append_numbers_to_duplicates(names: pl.Series) -> pl.Series:
    """Append numbers to repeated names, such as ``conv_1`` for the second ``conv``, so that all names are distinct."""
    rows = pl.DataFrame({"name": names, "row": range(len(names))})
    while True:
        repetition = pl.int_range(pl.len()).over("name")
        rows = rows.with_columns(repetition=repetition)
        if not (rows["repetition"] > 0).any():
            return rows.sort("row")["name"].alias(names.name)
        numbered = pl.when(pl.col("repetition") > 0).then(pl.format("{}_{}", "name", "repetition")).otherwise("name")
        rows = rows.sort("repetition", "row").with_columns(name=numbered)


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


def compute_node_stats(rollup: Rollup, nodes: pl.DataFrame) -> pl.DataFrame:
    """Return the CPU and GPU time of each node in each aggregated iteration.

    Returns:
        One row for each iteration, node and GPU on which the node ran an activity, sorted by these three. The columns
        are ``iteration``, ``node`` (row number in ``nodes``), ``device_id``, ``gpu_ns`` and ``cpu_ns``. If a node ran
        in an iteration without GPU activities, it has one row with a null ``device_id``. If it has several rows in an
        iteration, the first row contains its CPU time and the other rows contain 0.
    """
    node_rows = nodes.select("op").with_row_index("node").with_columns(pl.col("node").cast(pl.Int64))
    instances = rollup.measures.instances.select("op", iteration=rollup.iteration, cpu_ns="cpu")
    called = instances.drop_nulls("iteration").group_by("iteration", "op").agg(pl.col("cpu_ns").sum())
    busy = rollup.measures.gpu_busy_times
    owners = instances.select(pl.col("op", "iteration").gather(busy["instance"]))
    ran = busy.select("device_id", gpu_ns=_DURATION).hstack(owners).drop_nulls("iteration")
    ran = ran.group_by("iteration", "op", "device_id").agg(pl.col("gpu_ns").sum())
    rows = called.join(ran, on=["iteration", "op"], how="left").join(node_rows, on="op")
    rows = rows.sort("iteration", "node", "device_id").with_columns(pl.col("gpu_ns").fill_null(0))
    first = pl.int_range(pl.len()).over("iteration", "node") == 0
    cpu = pl.when(first).then("cpu_ns").otherwise(0)
    return rows.select("iteration", "node", "device_id", "gpu_ns", cpu_ns=cpu)


def compute_iteration_scalars(rollup: Rollup) -> pl.DataFrame:
    """Return statistics of each aggregated iteration, such as its duration and GPU utilization.

    Returns:
        One row per iteration and statistic: ``iteration``, ``start_ns``, ``end_ns``, ``tag`` (name of the statistic),
        ``value`` (Float64).
    """
    rows = tables.build_iterations(rollup).filter("is_aggregated")
    busy, share = pl.sum_horizontal(_ON_GPU), pl.col("tensor_core_kernel_time_ns") / pl.col("kernel_time_ns")
    figures = {
        "iteration/time_ms": _DURATION / _MS,
        "iteration/gpu_busy_ms": busy / _MS,
        "iteration/gpu_idle_ms": (_DURATION - busy) / _MS,
        "iteration/gpu_utilization_percent": pl.when(_DURATION > 0).then(_PERCENT * busy / _DURATION).otherwise(0.0),
        "iteration/tensor_core_share_percent": pl.when(pl.col("kernel_time_ns") > 0)
        .then(_PERCENT * share)
        .otherwise(0.0),
        "iteration/kernel_time_ms": pl.col("kernel_time_ns") / _MS,
        "iteration/kernels": pl.col("kernel_count"),
        **{f"parts/{p.removesuffix('_ns')}_ms": pl.col(p) / _MS for p in _PARTS},
    }
    values = rows.select("iteration", "start_ns", "end_ns", *(f.cast(pl.Float64).alias(t) for t, f in figures.items()))
    return values.unpivot(index=["iteration", "start_ns", "end_ns"], variable_name="tag").sort(
        "iteration", maintain_order=True
    )


def build_op_nodes(rollup: Rollup) -> pl.DataFrame:
    """Return one graph node for each op.

    Returns:
        One row per op, in order of its first start: ``op`` (row number in ``Rollup.ops``), ``name`` (name of the node),
        ``op_id``, ``op_name``, ``op_type``, ``direction``, ``data_type``, ``tensor_core_support`` and
        ``uses_tensor_cores`` as in the table ``ops``, ``device_id`` (the GPU on which the op spent the most time, or
        null), ``input_shapes`` (JSON), ``output_shapes`` (lists, or null) and ``output_bytes`` (null if unknown).
    """
    instances = rollup.measures.instances.with_columns(rollup.measures.formats_and_output_shapes["output_shapes"])
    first = instances.with_row_index("instance").filter(pl.col("index") == 0).sort("op")
    ops = tables.build_ops(rollup).select(*(pl.col(c).cast(pl.String) for c in _OP_COLUMNS), "uses_tensor_cores")
    rows = ops.hstack(first.select("op", "start_ns", "input_shapes", "output_shapes"))
    rows = rows.with_columns(name=choose_op_node_names(ops)).sort("start_ns", "op")
    rows = rows.join(_find_main_devices(rollup), on="op", how="left", maintain_order="left")
    return rows.with_columns(_build_output_shape_columns(rows)).drop("start_ns")


def build_node_inputs(rollup: Rollup, nodes: pl.DataFrame) -> pl.DataFrame:
    """Return the data and control inputs of graph nodes.

    Returns:
        One row per input in order of nodes, with data inputs before control inputs: ``node`` and ``input`` (row numbers
        in ``nodes``), ``is_control``.
    """
    instances = rollup.measures.instances
    first = instances.filter(pl.col("index") == 0).sort("op").select("op", *THREAD, "forward")
    rows = nodes.select("op").with_row_index("node").join(first, on="op", how="left", maintain_order="left")
    rows = rows.with_columns(pl.col("node").cast(pl.Int64), source_op=instances["op"].gather(rows["forward"]))
    sources = rows.select(input="node", source_op="op")
    data = rows.select("node", "source_op").join(sources, on="source_op").drop("source_op")
    control = rows.select("node", input=pl.col("node").shift(1).over(THREAD)).drop_nulls()
    both = [f.select("node", "input", is_control=pl.lit(c)) for f, c in ((data, False), (control, True))]
    return pl.concat(both).filter(pl.col("node") != pl.col("input")).sort("node", "is_control")


def _find_main_devices(rollup: Rollup) -> pl.DataFrame:
    """Return the GPU on which each op spent the most time: ``op``, ``device_id``."""
    busy = rollup.measures.gpu_busy_times
    times = busy.select("device_id", op=rollup.measures.instances["op"].gather(busy["instance"]), ns=_DURATION)
    spent = times.group_by("op", "device_id").agg(pl.col("ns").sum()).sort("op", -pl.col("ns"), "device_id")
    return spent.unique("op", keep="first", maintain_order=True).select("op", "device_id")


def _build_output_shape_columns(rows: pl.DataFrame) -> pl.DataFrame:
    """Return the columns ``output_shapes`` (lists) and ``output_bytes``, which is null if the data type is unknown."""
    described = rows.select(pl.col("output_shapes", "data_type").cast(pl.String))
    distinct = described.filter(pl.col("output_shapes").is_not_null()).unique(maintain_order=True)
    shapes = [parse_shapes(string) for string in distinct["output_shapes"]]
    sizes = [
        _compute_total_bytes(s, ELEMENT_BYTES.get(kind)) for s, kind in zip(shapes, distinct["data_type"], strict=True)
    ]
    parsed = {"shapes": pl.Series(shapes, dtype=_SHAPES), "output_bytes": pl.Series(sizes, dtype=pl.Int64)}
    joined = described.join(
        distinct.with_columns(**parsed), on=described.columns, how="left", maintain_order="left", nulls_equal=True
    )
    return joined.select("output_bytes", output_shapes="shapes")


def _compute_total_bytes(shapes: list[list[int]], element_bytes: int | None) -> int | None:
    """Return the total size of tensors in bytes, or None if it is 0, too large or unknown."""
    total = sum(math.prod(s) for s in shapes) * (element_bytes or 0)
    return total if 0 < total < _LIMIT else None


def parse_shapes(string: str | None) -> list[list[int]]:
    """Return the shapes in a JSON list, or an empty list if the string is not a JSON list of shapes."""
    try:
        value = json.loads(string) if string else []
    except (ValueError, RecursionError):
        return []
    shapes = value if isinstance(value, list) else []
    valid = all(isinstance(s, list) and all(isinstance(d, int) and 0 <= d < _LIMIT for d in s) for s in shapes)
    return shapes if valid else []
