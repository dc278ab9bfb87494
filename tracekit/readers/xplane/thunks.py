"""Build the ranges of the operations of compiled programs, whose names are those of XLA's NVTX ranges.

XLA runs a program as a sequence of thunks, each of which runs one operation. The profiler records the operation with
each API call, or with the activity that the call launched. The range of a thunk is the event of the same name that
contains the call. If there is none, because the version of XLA records no such events, it extends from the first to the
last of the consecutive calls of the operation between which no other event of the thread begins.
"""

from __future__ import annotations

import polars as pl

XLA, TENSORFLOW, TRACE_ME, PYTHON = "TSL", "tensorflow-core", "TraceMe", "python_function"
DOMAINS = {TRACE_ME: 1, XLA: 2, PYTHON: 3, TENSORFLOW: 4}
"""Ids of the domains of ranges."""
_MODULE = r"^(.+):XLA GPU module$"
_PYTHON = r"^\$(.+):(\d+) (.+)$"
STEP_PATTERN = r"#step_num=-?\d+#$"
_MODULE_LABEL = "XlaModule:"
_TENSORFLOW_OP = r"^(?s)(.+):([A-Za-z]\w*)$"
_VALUES = ("op_name", "hlo_op", "hlo_module", "program_id")


def build_ranges(ranges: pl.DataFrame, calls: pl.DataFrame) -> pl.DataFrame:
    """Return all ranges: those of thunks, and the events of threads that are no thunks.

    Args:
        ranges: Columns ``thread_id``, ``start_ns``, ``end_ns``, ``name``, ``payload`` of the events of threads.
        calls: Columns ``thread_id``, ``start_ns``, ``end_ns`` of API calls, and the columns of ``build_annotations``.

    Returns:
        Columns ``thread_id``, ``start_ns``, ``end_ns``, ``domain``, ``name``, ``payload``, in order of start, the
        longest first. The annotations of steps have no domain, like the ranges of users of NVTX.
    """
    ranges = ranges.with_row_index("row").cast({"row": pl.Int64})
    thunks = find_thunks(ranges, _describe_calls(calls))
    others = ranges.join(thunks.select("row").drop_nulls(), on="row", how="anti", maintain_order="left")
    described = _describe_names(others["name"].unique())
    others = others.join(described, on="name", how="left", nulls_equal=True, maintain_order="left")
    others = others.select("thread_id", "start_ns", "end_ns", "domain", name="text", payload="payload")
    own = thunks.select("thread_id", "start_ns", "end_ns", "domain", name="text", payload=pl.lit(None, pl.String))
    return pl.concat([others, own]).sort("start_ns", "end_ns", descending=[False, True], maintain_order=True)


def build_cpu_ranges(operations: pl.DataFrame, paths: pl.DataFrame) -> pl.DataFrame:
    """Return the ranges of operations that ran on CPUs, with the columns of ``build_ranges``.

    Args:
        operations: Columns ``thread_id``, ``start_ns``, ``end_ns``, ``payload``, and those of ``build_annotations``.
        paths: Columns ``program_id``, ``hlo_op``, ``path`` (in the source).
    """
    keys = ["program_id", "hlo_op", "hlo_module"]
    distinct = operations.select(keys).unique(maintain_order=True).with_columns(pl.col(keys[1:]).cast(pl.String))
    named = distinct.join(paths, on=keys[:2], how="left", maintain_order="left")
    values = {"name": "path", "hlo_op": "hlo_op", "hlo_module": "hlo_module", "program_id": "program_id"}
    parts = [pl.format(f"{name}={{}}", column) for name, column in values.items()]
    named = named.with_columns(name=pl.format("Thunk:#{}#", pl.concat_str(parts, separator=",", ignore_nulls=True)))
    rows = operations.select("thread_id", "start_ns", "end_ns", "payload", *keys).with_columns(
        pl.col(keys[1:]).cast(pl.String)
    )
    rows = rows.join(named, on=keys, how="left", nulls_equal=True, maintain_order="left")
    return rows.select("thread_id", "start_ns", "end_ns", "name", "payload", domain=pl.lit(XLA))


def _describe_names(names: pl.Series) -> pl.DataFrame:
    """Return the domain and the text of the name of a range for each distinct name of an event, as Categoricals."""
    name = pl.col("name").cast(pl.String)
    module = name.str.extract(_MODULE)
    return names.to_frame("name").select(
        "name",
        domain=pl.when(module.is_not_null())
        .then(pl.lit(XLA))
        .when(name.str.contains(STEP_PATTERN))
        .then(None)
        .when(name.str.starts_with("$"))
        .then(pl.lit(PYTHON))
        .otherwise(pl.lit(TRACE_ME))
        .cast(pl.Categorical),
        text=pl.coalesce(
            pl.format("XlaModule:#hlo_module={}#", module),
            name.str.replace(_PYTHON, "${1}(${2}): ${3}").str.strip_prefix("$"),
        ).cast(pl.Categorical),
    )


def _describe_calls(calls: pl.DataFrame) -> pl.DataFrame:
    """Return the calls of operations, with ``op`` (name of the event of the operation), ``domain`` and ``text``."""
    distinct = calls.select(*_VALUES, "tf_op", "annotation").unique(maintain_order=True)
    label = pl.col("tf_op").cast(pl.String).str.strip_suffix(":")
    path = pl.coalesce(
        pl.col("op_name").cast(pl.String), pl.when(pl.col("tf_op").cast(pl.String) != _MODULE_LABEL).then(label)
    )
    values = {"name": path, **{name: pl.col(name).cast(pl.String) for name in _VALUES[1:]}}
    parts = [pl.format(f"{name}={{}}", value) for name, value in values.items()]
    annotation = pl.col("annotation").cast(pl.String).str.split("::").list.last().str.replace(r"#.*$", "")
    is_tensorflow = annotation.str.contains(_TENSORFLOW_OP)
    tensorflow = pl.format("{}: {}", annotation.str.extract(_TENSORFLOW_OP, 2), annotation.str.extract(_TENSORFLOW_OP))
    is_xla = pl.col("hlo_op").is_not_null() | path.is_not_null()
    described = distinct.with_columns(
        op=pl.when(is_xla).then(pl.col("hlo_op").cast(pl.String)).otherwise(annotation),
        domain=pl.when(is_xla).then(pl.lit(XLA)).when(is_tensorflow).then(pl.lit(TENSORFLOW)),
        text=pl.when(is_xla)
        .then(pl.format("Thunk:#{}#", pl.concat_str(parts, separator=",", ignore_nulls=True)))
        .otherwise(tensorflow),
    ).drop_nulls("text")
    described = described.with_columns(pl.col("op", "domain", "text").cast(pl.Categorical))
    keys = [*_VALUES, "tf_op", "annotation"]
    columns = ["thread_id", "start_ns", "end_ns", "op", "domain", "text"]
    return calls.join(described, on=keys, how="inner", nulls_equal=True, maintain_order="left").select(columns)


def find_thunks(ranges: pl.DataFrame, calls: pl.DataFrame) -> pl.DataFrame:
    """Return the thunks that made calls.

    Args:
        ranges: Columns ``row``, ``thread_id``, ``start_ns``, ``end_ns``, ``name`` of the events of threads.
        calls: Columns ``thread_id``, ``start_ns``, ``end_ns``, ``op``, ``domain``, ``text``.

    Returns:
        Columns ``row`` (of the event of the thunk, null if there is none), ``thread_id``, ``start_ns``, ``end_ns``,
        ``domain``, ``text``.
    """
    named = ranges.select("row", "thread_id", "start_ns", range_end_ns="end_ns", op="name")
    named = named.sort("start_ns", maintain_order=True)
    ordered = calls.sort("start_ns", maintain_order=True)
    latest = named.select("thread_id", "start_ns", latest_row="row")
    own = named.join(ordered.select(pl.col("op").unique()), on="op", how="semi", maintain_order="left")
    own = own.with_columns(range_start_ns="start_ns")
    joined = ordered.join_asof(latest, on="start_ns", by="thread_id", check_sortedness=False)
    joined = joined.join_asof(own, on="start_ns", by=["thread_id", "op"], check_sortedness=False)
    is_inside = (pl.col("range_end_ns") >= pl.col("end_ns")).fill_null(value=False)
    inside = joined.filter(is_inside).group_by("row", maintain_order=True).first()
    with_event = inside.select("row", "thread_id", "domain", "text", start_ns="range_start_ns", end_ns="range_end_ns")
    outside = joined.filter(~is_inside).sort("thread_id", "start_ns", maintain_order=True)
    continues = pl.all_horizontal(
        (pl.col(c) == pl.col(c).shift()).fill_null(value=False) for c in ("thread_id", "text", "latest_row")
    )
    runs = outside.with_columns(run=(~continues).cum_sum()).group_by("run", maintain_order=True)
    without = runs.agg(
        pl.col("thread_id", "domain", "text", "start_ns").first(), pl.col("end_ns").max(), row=pl.lit(None, pl.Int64)
    )
    columns = ["row", "thread_id", "start_ns", "end_ns", "domain", "text"]
    return pl.concat([with_event.select(columns), without.select(columns)])
