"""Parse the ranges of TensorFlow in NVIDIA's builds (domain ``tensorflow-core``), such as ``Conv2D: conv1/Conv2D``.

The name of a range consists of an op type and an op name. The op name is a path in TensorFlow's graph and identifies
the op, so enclosing ranges are ignored. A range without an op type was written by the user. Its op type is
``CustomNVTX``, as in DLProf.
"""

from __future__ import annotations

import polars as pl

from tracekit.core.ops import identity
from tracekit.core.ops.dialect import Dialect, DialectTables, Timeline, add_parsed_names, build_timeline_instances
from tracekit.core.relations import THREAD

DOMAIN = "tensorflow-core"
CUSTOM = "CustomNVTX"
_OP = r"(?s)^([^:\s{]+): (.+)$"


def _has_tensorflow_ranges(texts: pl.DataFrame) -> bool:
    return bool(texts.select((pl.col("domain") == DOMAIN).any()).item())


def _build_timeline(capture: DialectTables) -> Timeline:
    timeline = identity.build_domain_timeline(
        capture, DOMAIN, _parse_names(identity.read_domain_texts(capture, DOMAIN)), prepend_scopes=False
    )
    start_end = _read_start_end_ops(capture)
    if not start_end.height:
        return timeline
    rows = pl.concat([timeline.instances, build_timeline_instances(start_end)])
    return Timeline(build_timeline_instances(rows), tree=timeline.tree)


def _parse_names(texts: pl.DataFrame) -> pl.DataFrame:
    """Parse range names into the columns that ``build_domain_timeline`` requires, such as ``label`` and ``type``."""
    text = pl.col("text")
    return texts.select(
        "text",
        label=pl.coalesce(text.str.extract(_OP, 2), text),
        scope=pl.lit(None, pl.String),
        type=pl.coalesce(text.str.extract(_OP, 1), pl.lit(CUSTOM)),
    )


def _read_start_end_ops(capture: DialectTables) -> pl.DataFrame:
    """Return the ops that were written as start/end ranges.

    These ops have no parent, because a start/end range may end on another thread.
    """
    is_op = (pl.col("kind") == "start_end") & (pl.col("domain") == DOMAIN)
    columns = [
        "start_ns",
        "end_ns",
        "process_id",
        "thread_id",
        "range_id",
        pl.col("name").alias("text"),
    ]
    ranges = capture.frames("nvtx_ranges").filter(is_op).select(columns).drop_nulls("text").collect()
    parsed = _parse_names(ranges.select(pl.col("text").unique(maintain_order=True).cast(pl.String)))
    named = add_parsed_names(ranges, parsed)
    times = ["start_ns", *THREAD, "range_id"]
    ends = pl.col("end_ns").fill_null(capture.last_ns)
    return named.select(*times, ends, op_name="label", op_type="type")


DIALECT = Dialect(
    "tensorflow", "TensorFlow ops in NVIDIA's builds of TensorFlow.", _has_tensorflow_ranges, _build_timeline
)
