"""Compute the work of the ops of a capture, and find the op to which each kernel belongs.

A kernel belongs to the innermost enclosing op whose work is known. In a replay of a CUDA graph, it belongs to the op in
which its node was captured, and each replay does the work of the op once. If ops are nested, such as ``aten::linear``
and ``aten::addmm``, the work is that of the inner op, and the time of a kernel counts once. An outer op that only wraps
inner ones has no work of its own: if the inner ops that launched kernels did at least half of its operations and moved
at least half of its bytes, then the work of its other kernels is unknown.

Formulas are evaluated once for each distinct signature of an op: its name, and the shapes, types, strides and values of
its arguments.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import polars as pl

from tracekit.core import trees
from tracekit.core.correlate import Activities, Ranges
from tracekit.core.series import decode_categories, select_by_string
from tracekit.core.tensor_cores import uses_tensor_cores_expr
from tracekit.core.work import convolutions
from tracekit.core.work.arguments import cut_arguments_expr, parse_call, parse_names, payload_exprs
from tracekit.core.work.attention import set_mask
from tracekit.core.work.compiled import are_programs_recorded, compute_compiled_work
from tracekit.core.work.formulas import compute_work
from tracekit.errors import warn
from tracekit.system.sorting import create_series

if TYPE_CHECKING:
    from collections.abc import Callable

    Frames = Callable[[str], pl.LazyFrame]

MAX_SIGNATURES = 100_000
"""Number of distinct signatures whose work is computed. The work of ops with further signatures is unknown."""
_BATCH_ROWS = 1 << 17
_SIGNATURE = ("op", "shapes", "types", "strides", "values")
_WORK = {
    "kind": pl.Categorical,
    "type": pl.Categorical,
    "flop": pl.Int64,
    "read_bytes": pl.Int64,
    "written_bytes": pl.Int64,
    "model_flop": pl.Int64,
}
_MULTIPLYING = ("matrix_product", "convolution", "attention")
_UNIFORM = (*_MULTIPLYING, "pointwise", "normalization", "reduction", "softmax", "optimizer")
"""Kinds of ops whose inputs have one type as a rule, which the names of their kernels state."""
_TYPES_IN_NAMES = {
    "fp64": r"dgemm|d884|f64f64|double|OpaqueType<8",
    "bf16": r"(?i)bf16|bfloat16|nvjet_(?:sm\d+_)?t",
    "fp16": r"(?i)half|(?:^|[^b])fp?16|h884|h1688|h16816|hgemm|OpaqueType<2|nvjet_(?:sm\d+_)?h",
    "fp8": r"(?i)e4m3|e5m2|fp8|nvjet_(?:sm\d+_)?q",
    "int8": r"(?i)i8816|i16832|s8s8|imma|igemm",
    "fp32": r"(?i)tf32|sgemm|f32f32_f32f32|<float|OpaqueType<4|cutlass_\d+_(?:simt|tensorop_s1688gemm)_",
}
"""Regular expressions that match the names of kernels that multiply in a type."""
_STATES_NO_TYPE = r"WithCast|^cudnn_generated_"
"""Matches kernels of several types, and those of cuDNN that multiply ``bf16`` and call it ``f16``."""
_TRAITS = r"<.*Flash_kernel_traits<[^>]*> ?>, (?:\(bool\))?"
_MASK_IN_NAMES = (
    rf"flash_(?:fwd|bwd_dq_dk_dv_loop_seqk_parallel)_kernel{_TRAITS}\w+, (?:\(bool\))?(\w+),",
    rf"flash_fwd_splitkv_kernel{_TRAITS}(\w+),",
)
"""Regular expressions for the argument of a kernel of FlashAttention that tells whether the mask is causal."""


class OpWork(NamedTuple):
    """The work of the ops of a capture.

    Attributes:
        ops: One row per op that launched kernels and whose work is known: ``range_id`` (negative for a kernel of a
            graph that XLA made of a program, which has no range of its own, and for every replay of a captured op but
            the first one), ``name``, ``shapes`` and ``types`` (JSON, null if they were not recorded), ``kind``,
            ``type``, ``flop``, ``read_bytes``, ``written_bytes``, ``model_flop`` (see ``Work``), ``kernel_count`` and
            ``gpu_time_ns`` (sum of the durations of its kernels).
        kernels: One row per kernel, in the order of the table: ``kernel_id`` and ``range_id`` of its op, which is null
            if its work is unknown.
        gpu_time_ns: Sum of the durations of all kernels.
        covered_ns: Sum of the durations of the kernels whose work is known.
        left_out: Number of ops whose work was not computed because the capture has too many distinct signatures.
    """

    ops: pl.DataFrame
    kernels: pl.DataFrame
    gpu_time_ns: int
    covered_ns: int
    left_out: int

    @property
    def covered_share(self) -> float | None:
        """Share of the time of all kernels in which the work is known, or None if there are no kernels."""
        return self.covered_ns / self.gpu_time_ns if self.gpu_time_ns else None


class _Launches(NamedTuple):
    """The kernels of a capture and the nesting of its ranges.

    Attributes:
        kernels: ``kernel_id``, ``name``, ``duration_ns``, ``row`` (the row in ``nvtx_ranges`` of the innermost range in
            which the kernel was launched or, in a replay, captured) and ``replay`` (number of the launch of the graph,
            null if the kernel was not replayed).
        parent: Row of the parent of each range in ``nvtx_ranges``, or null.
    """

    kernels: pl.DataFrame
    parent: pl.Series


def compute_op_work(frames: Frames) -> OpWork:
    """Return the work of the ops of a capture, and the op to which each kernel belongs.

    Args:
        frames: Function that returns the declared table with a given name. If the tables contain the columns of
            correlation, these determine the range of each kernel.
    """
    launches = _read_launches(frames)
    rows = _find_ranges_with_kernels(launches)
    signed, signatures, left_out = _read_signatures(frames, rows)
    if left_out:
        warn(
            f"the work of {left_out:,} ops is unknown, because the capture has more than {MAX_SIGNATURES:,} distinct "
            "combinations of names, shapes, types and values"
        )
    signatures = _add_results_of_convolutions(signatures)
    computed = _compute_work_of_signatures(signatures)
    signatures = signatures.with_columns(_compact_json(signatures[c]) for c in ("shapes", "types")).hstack(computed)
    work = signed.join(signatures.with_row_index("signature"), on="signature", maintain_order="left")
    work = work.filter(pl.col("kind").is_not_null())
    ids = frames("nvtx_ranges").select("range_id").collect().to_series()
    compiled, in_graphs = compute_compiled_work(frames, rows, launches.kernels, launches.parent)
    work = pl.concat([work, compiled], how="diagonal_relaxed")
    owner = _find_owners(launches, work)
    work = pl.concat([work, in_graphs.drop("kernel")], how="diagonal_relaxed")
    owner = owner.scatter(in_graphs["kernel"], in_graphs["row"])
    ids = pl.concat([ids, pl.int_range(-1, -in_graphs.height - 1, -1, eager=True)])
    owned = launches.kernels.with_columns(owner=owner)
    ops = _refine_work(_sum_kernels(work, owned), owned)
    again = ~pl.col("row").is_first_distinct()
    number = -(in_graphs.height + again.cast(pl.Int64).cum_sum())
    ops = ops.with_columns(range_id=pl.when(again).then(number).otherwise(ids.gather(ops["row"])))
    key = ["owner", "replay"]
    ids_of_ops = ops.select("range_id", "replay", owner="row")
    kernels = owned.join(ids_of_ops, on=key, how="left", nulls_equal=True, maintain_order="left")
    kernels = kernels.select("kernel_id", "range_id")
    return OpWork(
        ops=ops.select("range_id", pl.col("op").alias("name"), "shapes", "types", *_WORK, *_TOTALS),
        kernels=kernels,
        gpu_time_ns=int(owned["duration_ns"].sum()),
        covered_ns=int(ops["gpu_time_ns"].sum()),
        left_out=left_out,
    )


_TOTALS = ("kernel_count", "gpu_time_ns")


def are_shapes_recorded(frames: Frames) -> bool:
    """Return whether shapes of ops were recorded, from which their work can be computed.

    Args:
        frames: Function that returns the declared table with a given name.
    """
    ranges = frames("nvtx_ranges")
    texts = ranges.select(pl.col("name").unique()).collect().to_series()
    names = parse_names(texts)
    if names["shapes"].null_count() < names.height:
        return True
    payload = ranges.filter(pl.col("name").is_in(names["text"].implode())).select("payload_text")
    if payload.select(payload_exprs(pl.col("payload_text"))["shapes"].is_not_null().any()).collect().item():
        return True
    return are_programs_recorded(frames)


def _read_launches(frames: Frames) -> _Launches:
    """Return the kernels with the range in which each was launched, and the nesting of ranges."""
    kernels, ranges = frames("kernels"), frames("nvtx_ranges")
    duration = (pl.col("end_ns") - pl.col("start_ns")).alias("duration_ns")
    columns = kernels.collect_schema().names()
    if "range_id" in columns:
        rows = ranges.select(id="range_id").with_row_index("row").with_columns(pl.col("row").cast(pl.Int64))
        captured = pl.col("capture_range_id") if "capture_range_id" in columns else pl.lit(None, pl.Int64)
        replay = pl.when(captured.is_not_null()).then("correlation_id")
        placed = kernels.select("kernel_id", "name", duration, replay=replay, id=pl.coalesce(captured, "range_id"))
        joined = placed.join(rows, on="id", how="left", maintain_order="left")
        parents = ranges.select(id="parent_id").join(rows, on="id", how="left", maintain_order="left")
        return _Launches(joined.drop("id").collect(), parents.select("row").collect().to_series())
    nested = Ranges(frames)
    count = int(ranges.select(pl.len()).collect().item())
    row_of_range = nested.push_pop_ranges["row"].cast(pl.Int64)
    parent = pl.repeat(None, count, dtype=pl.Int64, eager=True)
    if row_of_range.len():
        parent = parent.scatter(row_of_range, row_of_range.gather(nested.parent))
    range_row = Activities(frames, "kernels", nested).range_row
    table = kernels.select("kernel_id", "name", duration, replay=pl.lit(None, pl.Int64)).collect()
    return _Launches(table.with_columns(row=row_of_range.gather(range_row)), parent)


def _find_ranges_with_kernels(launches: _Launches) -> pl.Series:
    """Return the rows of the ranges in which kernels were launched, directly or in inner ranges, in ascending order."""
    is_marked = np.zeros(len(launches.parent), np.bool_)
    rows = launches.kernels["row"].drop_nulls().unique()
    while rows.len():
        is_marked[rows.to_numpy()] = True
        outer = launches.parent.gather(rows).drop_nulls().unique()
        rows = outer.filter(create_series(~is_marked[outer.to_numpy()]))
    return create_series(np.flatnonzero(is_marked)).alias("row")


def _read_signatures(frames: Frames, rows: pl.Series) -> tuple[pl.DataFrame, pl.DataFrame, int]:
    """Return the signature of each op with a formula among the ranges with given rows.

    Returns:
        The columns ``row`` and ``signature`` (number of the signature); the distinct signatures, with the columns
        ``_SIGNATURE``; and the number of ops that were left out.
    """
    table = frames("nvtx_ranges")
    column = table.select("name").collect().to_series()
    texts = column.gather(rows).cast(pl.Categorical)
    names = parse_names(texts.unique())
    parsed = names.drop("text").unique(maintain_order=True).with_row_index("call")
    numbers = names.join(parsed, on=parsed.columns[1:], how="left", nulls_equal=True, maintain_order="left")["call"]
    called = pl.DataFrame({"row": rows, "call": select_by_string(numbers, names["text"], texts)}).drop_nulls("call")
    parsed = parsed.with_columns(pl.col("op", "shapes").cast(pl.String))
    signatures = pl.DataFrame(schema={**dict.fromkeys(_SIGNATURE, pl.String), "signature": pl.UInt32})
    parts, left_out = [pl.DataFrame(schema={"row": pl.Int64, "signature": pl.UInt32})], 0
    for start in range(0, len(column), _BATCH_ROWS):
        batch = called.filter(pl.col("row").is_between(start, start + _BATCH_ROWS, closed="left"))
        if batch.is_empty():
            continue
        payload = table.slice(start, _BATCH_ROWS).select("payload_text").collect().to_series()
        batch = batch.with_columns(part=cut_arguments_expr(pl.lit(payload.gather(batch["row"] - start))))
        calls = _parse_arguments(batch.select("call", "part").unique(maintain_order=True), parsed)
        new = calls.select(_SIGNATURE).unique(maintain_order=True)
        new = new.join(signatures, on=_SIGNATURE, how="anti", nulls_equal=True, maintain_order="left")
        new = new.head(MAX_SIGNATURES - signatures.height).with_row_index("signature", signatures.height)
        signatures = pl.concat([signatures, new.select(signatures.columns)])
        calls = calls.join(signatures, on=_SIGNATURE, how="left", nulls_equal=True, maintain_order="left")
        numbered = batch.join(calls.select("call", "part", "signature"), on=["call", "part"], nulls_equal=True)
        left_out += numbered["signature"].null_count()
        parts.append(numbered.select("row", "signature").drop_nulls().sort("row"))
    return pl.concat(parts), signatures.drop("signature"), left_out


def _parse_arguments(calls: pl.DataFrame, parsed: pl.DataFrame) -> pl.DataFrame:
    """Parse the arguments of distinct calls.

    Args:
        calls: ``call`` (number of what the name tells) and ``part`` (part of the payload that contains arguments).
        parsed: What names tell: ``call`` and the columns of ``parse_names`` but ``text``.

    Returns:
        The columns of ``calls`` and ``_SIGNATURE``. Calls whose shapes were not recorded are omitted.
    """
    own = calls.with_columns(**{f"own_{c}": e for c, e in payload_exprs(pl.col("part")).items()})
    joined = own.join(parsed, on="call", how="left", maintain_order="left")
    return joined.select(
        *["call", "part", "op"],
        shapes=pl.coalesce("own_shapes", "shapes"),
        types=pl.coalesce("own_types", "types"),
        strides="own_strides",
        values=pl.coalesce("own_values", "values"),
    ).filter(pl.col("shapes").is_not_null())


def _compute_work_of_signatures(signatures: pl.DataFrame) -> pl.DataFrame:
    """Return the work of each signature, with the columns ``_WORK``, which are null if it is unknown."""
    rows: list[tuple[str | int | None, ...]] = []
    for name, shapes, types, strides, values in signatures.select(_SIGNATURE).iter_rows():
        call = parse_call(name, shapes, types, strides, values)
        work = None if call is None else compute_work(call)
        unknown = (None,) * len(_WORK)
        rows.append(unknown if work is None else tuple(getattr(work, c) for c in _WORK))
    return pl.DataFrame(rows, schema=_WORK, orient="row")


def _add_results_of_convolutions(signatures: pl.DataFrame) -> pl.DataFrame:
    """Set the shape of the result of each convolution whose values were not recorded, if its gradient tells it."""
    is_convolution = signatures["op"].str.contains("conv", literal=True) & signatures["values"].is_null()
    if not is_convolution.any():
        return signatures
    rows = np.flatnonzero(is_convolution.to_numpy())
    calls = [parse_call(*row) for row in signatures.filter(is_convolution).select(_SIGNATURE).iter_rows()]
    results: dict[Any, set[Any]] = {}
    for call in calls:
        known = call and convolutions.find_result_shape(call)
        if known:
            results.setdefault(known[0], set()).add(known[1])
    changed = [None if call is None else convolutions.set_result_shape(call, results).values for call in calls]
    texts = pl.Series([json.dumps(values) if values else None for values in changed], dtype=pl.String)
    return signatures.with_columns(signatures["values"].scatter(create_series(rows), texts))


def _compact_json(texts: pl.Series) -> pl.Series:
    """Remove the spaces and newlines between the items of JSON lists."""
    return texts.str.replace_all(r"\s*([\[\],])\s*", "$1")


def _find_owners(launches: _Launches, work: pl.DataFrame) -> pl.Series:
    """Return the row of the range that owns each kernel, or null if the work of the kernel is unknown.

    Args:
        launches: The kernels and the nesting of ranges.
        work: The ops whose work is known: ``row``, ``flop``, ``read_bytes`` and ``written_bytes``.
    """
    is_known = np.zeros(len(launches.parent), np.bool_)
    is_known[work["row"].to_numpy()] = True
    nearest = trees.find_nearest_matching_rows(launches.parent, create_series(is_known))
    owner = nearest.gather(launches.kernels["row"])
    flop = pl.coalesce("flop", "model_flop").cast(pl.Float64)
    done = work.select("row", flop=flop, moved=_moved_bytes_expr().cast(pl.Float64))
    owners = done.filter(pl.col("row").is_in(owner.drop_nulls().unique().implode()))
    inner = owners.select("flop", "moved", outer=nearest.gather(launches.parent.gather(owners["row"])))
    levels = [inner.clear()]
    while (inner := inner.drop_nulls("outer")).height:
        levels.append(inner)
        inner = inner.with_columns(outer=nearest.gather(launches.parent.gather(inner["outer"])))
    sums = pl.concat(levels).group_by("outer").agg(pl.col("flop", "moved").sum())
    pairs = owners.join(sums, left_on="row", right_on="outer", suffix="_inside")
    wraps = [pl.col(c) <= 2 * pl.col(f"{c}_inside") for c in ("flop", "moved")]
    is_wrapper = pl.coalesce(*wraps) & pl.all_horizontal(each.fill_null(value=True) for each in wraps)
    wrappers = pairs.filter(is_wrapper)["row"]
    return owner.set(owner.is_in(wrappers.implode()).fill_null(value=False), None)


def _moved_bytes_expr() -> pl.Expr:
    return pl.col("read_bytes") + pl.col("written_bytes")


def _sum_kernels(work: pl.DataFrame, owned: pl.DataFrame) -> pl.DataFrame:
    """Return the ops that own kernels, with ``kernel_count`` and ``gpu_time_ns``, in the order of their rows.

    An op that was captured into a graph has one row for each replay.
    """
    totals = (
        owned.drop_nulls("owner")
        .group_by("owner", "replay", maintain_order=True)
        .agg(kernel_count=pl.len().cast(pl.Int64), gpu_time_ns=pl.col("duration_ns").sum())
    )
    return work.join(totals, left_on="row", right_on="owner", maintain_order="left_right")


def _refine_work(ops: pl.DataFrame, owned: pl.DataFrame) -> pl.DataFrame:
    """Determine what was not recorded of ops from the names of their kernels: types, and the mask of attention.

    Inputs of the type ``float`` are multiplied in ``fp32`` or, on Tensor Cores, in ``tf32``. The type is null if the
    names of the kernels do not tell.
    """
    inside = owned.drop_nulls("owner").select("owner", "name")
    distinct = inside.select(pl.col("name").unique())
    text = pl.col("name").cast(pl.String)
    masked = pl.coalesce(text.str.extract(pattern) for pattern in _MASK_IN_NAMES).is_in(["1", "true"])
    stated = distinct.select(
        "name", stated=_type_in_name_expr(text), on_tensor_cores=uses_tensor_cores_expr(text), masked=masked
    )
    inside = inside.join(stated, on="name", how="left", maintain_order="left")
    kernels = inside.group_by("owner").agg(
        _only_value_expr("stated"),
        _only_value_expr("masked"),
        on_tensor_cores=pl.col("on_tensor_cores").any(ignore_nulls=True),
        is_unclear=pl.col("on_tensor_cores").has_nulls(),
    )
    ops = ops.join(kernels, left_on="row", right_on="owner", how="left", maintain_order="left")
    ops = _compute_work_again(ops)
    single = pl.when("on_tensor_cores").then(pl.lit("tf32", pl.Categorical)).when(~pl.col("is_unclear")).then("type")
    multiplies = decode_categories(ops["kind"]).is_in(_MULTIPLYING)
    refined = pl.when((pl.col("type") == "fp32") & multiplies).then(single).otherwise("type")
    return ops.with_columns(type=refined).drop("stated", "masked", "on_tensor_cores", "is_unclear")


def _only_value_expr(column: str) -> pl.Expr:
    """Return an expression for the only value of a column besides null, or null if there is none or several."""
    values = pl.col(column).drop_nulls()
    return pl.when(values.n_unique() == 1).then(values.first()).alias(column)


def _type_in_name_expr(name: pl.Expr) -> pl.Expr:
    """Return an expression for the only type that the name of a kernel states, or null."""
    matches = {kind: name.str.contains(pattern) for kind, pattern in _TYPES_IN_NAMES.items()}
    is_only = (pl.sum_horizontal(*matches.values()) == 1) & ~name.str.contains(_STATES_NO_TYPE)
    types = pl.coalesce(pl.when(match).then(pl.lit(kind)) for kind, match in matches.items())
    return pl.when(is_only).then(types)


def _compute_work_again(ops: pl.DataFrame) -> pl.DataFrame:
    """Compute the work of ops again with what their kernels state: one type for all inputs, and the mask.

    The types of lists of tensors are never recorded.
    """
    kind, types = decode_categories(ops["kind"]), ops["types"]
    is_uniform = kind.is_in(_UNIFORM) | (ops["op"] == "aten::cat")
    is_untyped = ops["read_bytes"].is_null() & (types.is_null() | types.str.contains("List", literal=True))
    needs_mask = (kind == "attention") & ops["flop"].is_null()
    key = [*_SIGNATURE, "stated", "masked"]
    ops = ops.with_columns(
        stated=pl.when(is_uniform & is_untyped.fill_null(value=True)).then("stated"),
        masked=pl.when(needs_mask).then("masked"),
    )
    distinct = ops.select(key).filter(pl.any_horizontal(pl.col("stated", "masked").is_not_null()))
    distinct = distinct.unique(maintain_order=True)
    if distinct.is_empty():
        return ops
    rows = []
    for *signature, stated, masked in distinct.iter_rows():
        call = parse_call(*signature)
        call = call and (call if stated is None else call.set_types(stated))
        work = call and compute_work(call if masked is None else set_mask(call, is_causal=masked))
        rows.append(tuple(getattr(work, c) for c in _WORK) if work else (None,) * len(_WORK))
    again = pl.DataFrame(rows, schema={f"{c}_again": t for c, t in _WORK.items()}, orient="row")
    joined = ops.join(distinct.hstack(again), on=key, how="left", nulls_equal=True, maintain_order="left")
    return joined.with_columns(pl.coalesce(f"{c}_again", c).alias(c) for c in _WORK).drop(again.columns)
