"""Parse the ranges of PyTorch programs annotated by PyProf or DLProf, which enclose each call of an op in a marker.

A marker is a range whose name is a Python dict. If markers are nested, the outermost one is the op. The name of the op
is the function stack in the enclosing trace marker, which may be on another thread. If the op contains a range of
``emit_nvtx`` with a sequence number, such as ``…, seq = 7``, the backward pass of the op is the last range that has the
same number and is outside all ops.
"""

from __future__ import annotations

import polars as pl

from tracekit.core.intervals import latest_end_before_expr
from tracekit.core.intervals.containment import find_last_containers
from tracekit.core.ops import emit_nvtx
from tracekit.core.ops.dialect import (
    Dialect,
    DialectTables,
    Timeline,
    add_parsed_names,
    build_timeline_instances,
    match_any,
)
from tracekit.core.relations import THREAD
from tracekit.core.series import decode_categories_expr, map_categories_expr, match_categories_expr, string_ranks_expr

_IO = ("fread", "fwrite")
_DALI = {
    "[DALI][Executor] RunCPU": "DALI/RunCPU",
    "[DALI][Executor] RunGPU": "DALI/RunCPU",  # DLProf 1.8.0 lists both kinds of steps under this name.
    "[DALI][Executor] RunMixed": "DALI/RunMixed",
}
_COLUMNS = ("start_ns", "end_ns", *THREAD, "range_id", "op_name", "op_type")
_OP = r"(?s)'mod'.*'op'"
_SEQUENCE = r"seq = (\d{1,18})"
_TIMES = ["start_ns", "end_ns", *THREAD, "range_id"]
_UNKNOWN = {c: pl.lit(None, pl.String).alias(c) for c in ("input_names", "input_shapes", "parameters")}


def read_library_ops(capture: DialectTables) -> pl.DataFrame:
    """Return the file reads and writes, the DALI steps and the NCCL calls in a capture.

    Returns:
        One row per op: ``start_ns``, ``end_ns``, ``process_id``, ``thread_id``, ``range_id`` (null for file calls),
        ``op_name`` (``IO/fread``, ``DALI/RunCPU``, ``NCCL/ncclAllReduce``), ``op_type`` (``IO``, ``DALI``, ``NCCL``).
    """
    dali = _select_ranges_of_domain(capture, "DALI").with_columns(
        op_name=decode_categories_expr(pl.col("text")).replace_strict(_DALI, default=None)
    )
    nccl = _select_ranges_of_domain(capture, "NCCL").with_columns(
        op_name=decode_categories_expr(map_categories_expr(pl.col("text"), lambda text: "NCCL/" + text))
    )
    named = [f.drop_nulls("op_name").select(_COLUMNS) for f in (nccl, dali)]
    return pl.concat([*named, _read_file_access_calls(capture)])


def _select_ranges_of_domain(capture: DialectTables, domain: str) -> pl.DataFrame:
    """Return the push/pop ranges of one domain, with the name of the domain as ``op_type``."""
    ranges = capture.ranges.filter(pl.col("domain") == domain)
    return ranges.with_columns(op_type=pl.lit(domain))


def _read_file_access_calls(capture: DialectTables) -> pl.DataFrame:
    """Return the calls of ``fread`` and ``fwrite`` as ops."""
    columns = ["start_ns", "end_ns", *THREAD]
    calls = capture.frames("osrt_calls").filter(match_categories_expr(pl.col("name"), lambda name: name.is_in(_IO)))
    named = calls.select(
        *columns,
        range_id=pl.lit(None, pl.Int64),
        op_name="IO/" + pl.col("name").cast(pl.String),
        op_type=pl.lit("IO"),
    )
    return named.collect()


def _has_pyprof_markers(texts: pl.DataFrame) -> bool:
    is_marker = pl.col("text").str.contains(_OP) | pl.col("text").str.contains("{'traceMarker': [", literal=True)
    return match_any(texts, is_marker)


def _build_timeline(capture: DialectTables) -> Timeline:
    texts = capture.texts["text"].drop_nulls().unique(maintain_order=True)
    ops = _select_outermost_ops(pl.concat([_read_marked_ops(capture, texts), _read_library_ops(capture)]))
    backward = _find_backward_passes(capture, texts, ops)
    rows = pl.concat([ops.with_columns(forward=pl.lit(None, pl.Int64)), backward], how="diagonal")
    settings = capture.select_ranges_by_name(texts.filter(texts.str.contains("model_config", literal=True)))
    config = emit_nvtx.merge_program_settings(settings["text"].unique(maintain_order=True).cast(pl.String))
    return Timeline(build_timeline_instances(rows), "occurrence", has_arguments=True, config=config)


def _read_marked_ops(capture: DialectTables, texts: pl.Series) -> pl.DataFrame:
    """Return the op markers in order of start, with the columns ``_TIMES`` and the columns parsed from their names."""
    calls = emit_nvtx.parse_op_markers(texts.filter(texts.str.contains(_OP)))
    ops = add_parsed_names(capture.select_ranges_by_name(calls["text"]), calls)
    return _add_locations(capture, texts, ops).select(
        *_TIMES,
        op_name=pl.coalesce("path", "op"),
        op_type=pl.when(pl.col("op") == "forward").then("mod").otherwise("op"),
        stack_trace=pl.col("stack_trace").fill_null(""),
        data_type="data_type",
        input_names="input_names",
        input_shapes="input_shapes",
        parameters="parameters",
        ends_iteration=pl.col("op") == "backward",
    )


def _add_locations(capture: DialectTables, texts: pl.Series, ops: pl.DataFrame) -> pl.DataFrame:
    """Add the ``path`` and ``stack_trace`` of the trace marker around each op.

    If several trace markers of the process contain the op, the one that started last is used.
    """
    locations = emit_nvtx.parse_trace_markers(texts.filter(texts.str.contains("traceMarker", literal=True)))
    ranges = add_parsed_names(capture.select_ranges_by_name(locations["text"]), locations)
    ranges = ranges.sort("start_ns", "end_ns", string_ranks_expr(pl.col("text")))
    row = find_last_containers(ops, ranges, by=["process_id"])
    return ops.with_columns(ranges[c].gather(row).alias(c) for c in ("path", "stack_trace"))


def _read_library_ops(capture: DialectTables) -> pl.DataFrame:
    """Return the file reads and writes, DALI steps and NCCL calls, with the columns of ``_read_marked_ops``."""
    constants = {"stack_trace": pl.lit(""), "data_type": pl.lit(""), **_UNKNOWN, "ends_iteration": pl.lit(value=False)}
    return read_library_ops(capture).with_columns(**constants)


def _select_outermost_ops(ops: pl.DataFrame) -> pl.DataFrame:
    """Return the ops that are not inside another op of their thread, in order of start, with their direction."""
    ordered = ops.sort("start_ns", "end_ns", descending=[False, True], maintain_order=True)
    outer_end = latest_end_before_expr(THREAD)
    outermost = ordered.filter(outer_end.is_null() | (pl.col("end_ns") > outer_end))
    return outermost.with_columns(direction=pl.when("ends_iteration").then(pl.lit("bprop")).otherwise(pl.lit("fprop")))


def _find_backward_passes(capture: DialectTables, texts: pl.Series, ops: pl.DataFrame) -> pl.DataFrame:
    """Return the backward passes of ops.

    A backward pass has its own times and thread. All other properties are those of its forward op. The column
    ``forward`` is the row number of the forward op in ``ops``.
    """
    numbered = pl.DataFrame({"text": texts}).with_columns(
        sequence_number=pl.col("text").str.extract(_SEQUENCE).cast(pl.Int64)
    )
    ranges = add_parsed_names(capture.select_ranges_by_name(numbered.drop_nulls()["text"]), numbered)
    ranges = ranges.with_columns(op=find_last_containers(ranges, ops, by=THREAD))
    key = ["process_id", "sequence_number"]
    inside = ranges.drop_nulls("op").filter(pl.col("sequence_number") > 0)
    inside = inside.filter(~ops["ends_iteration"].gather(inside["op"]))
    forward = inside.unique(key, keep="last").select(*key, forward="op")
    outside = ranges.filter(pl.col("op").is_null()).join(forward, on=key, maintain_order="left")
    last = outside.group_by(key, maintain_order=True).agg(
        pl.col(*_TIMES[:2], "thread_id", "range_id", "forward").last()
    )
    properties = ops.select(pl.exclude(*_TIMES, "direction", "ends_iteration").gather(last["forward"]))
    return last.hstack(properties).with_columns(direction=pl.lit("bprop"), ends_iteration=pl.lit(value=False))


DIALECT = Dialect(
    "pyprof",
    "PyTorch annotated by PyProf or DLProf: markers with module, op and arguments.",
    _has_pyprof_markers,
    _build_timeline,
    key_op="backward",
)
