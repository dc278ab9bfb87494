"""What dialects share whose ops stand in a domain of their own: ops below the ranges of the program.

Ranges of the program, and those of the framework that hold ops, nest and make the path. An op within them hangs below
the innermost of these, whatever other ops lie between, because its own text names its place.
"""

from __future__ import annotations

import polars as pl

from tracekit.core.forests import nearest_ancestors
from tracekit.core.ops.dialect import Capture, Timeline, instances, path_parts

KEY = ["domain", "text"]


def texts_of(capture: Capture, domain: str) -> pl.DataFrame:
    """The distinct texts of a domain: column ``text`` (String)."""
    return capture.texts.filter(pl.col("domain") == domain).select("text").drop_nulls()


def timeline(capture: Capture, domain: str, parsed: pl.DataFrame, *, rooted: bool = True) -> Timeline:
    """Make the instances of a capture, an instance a push/pop range.

    Args:
        capture: The capture.
        domain: Domain of the ops.
        parsed: A row a text of the domain: ``text``, ``label`` (path of an op; null: the range holds ops), ``scope``
            (what a range that holds ops is called; null: as it stands), ``type``; perhaps more columns of ``INSTANCE``.
        rooted: Whether ops hang below the ranges around them; otherwise their labels are whole paths.
    """
    known = parsed.with_columns(pl.lit(domain).alias("domain")).with_columns(pl.col(KEY).cast(pl.Categorical))
    ranges = capture.ranges.join(known, on=KEY, how="left", maintain_order="left")
    parent, op = capture.nested.parent, ranges["label"].is_not_null()
    above = nearest_ancestors(parent, ~op)
    outer = above.gather(parent)
    called = ranges.select(text=pl.coalesce(pl.col("scope").cast(pl.Categorical), "text"))["text"]
    tree, held = path_parts(outer, called)
    root = held["path"].cast(pl.String).gather(outer).alias("root")
    path = pl.concat_str(root, "label", separator="/", ignore_nulls=True) if rooted else pl.col("label")
    named = ranges.select(
        op_name=pl.when(op).then(path).otherwise(held["path"].cast(pl.String)),
        op_type=pl.when(op).then(pl.col("type")).otherwise(held["label"].str.strip_suffix(" *")),
    )
    base = (held["node"] if rooted else pl.zeros(len(op), pl.Int64, eager=True)).gather(outer).fill_null(0)
    tree, nodes = tree.grown(base.filter(op), ranges["label"].filter(op))
    named = named.with_columns(node=held["node"].scatter(op.arg_true(), nodes))
    own = [c for c in parsed.columns if c in ("direction", "parameters", "input_shapes", "data_type")]
    times = ["start_ns", "end_ns", "process_id", "thread_id", "range_id"]
    return Timeline(instances(ranges.select(*times, *own).with_columns(parent=parent).hstack(named)), tree=tree)
