"""TensorFlow's ranges (domain ``tensorflow-core``, of NVIDIA's builds): ``Conv2D: conv1/Conv2D``, op type and op name.

The name is a path in TensorFlow's graph and names an op wherever it runs. A text without type is a range of the user,
of type ``CustomNVTX`` as DLProf called it.
"""

from __future__ import annotations

import polars as pl

from tracekit.core.ops import domains
from tracekit.core.ops.dialect import Capture, Dialect, Timeline, instances

DOMAIN = "tensorflow-core"
CUSTOM = "CustomNVTX"
_OP = r"(?s)^([^:\s{]+): (.+)$"


def _recognises(texts: pl.DataFrame) -> bool:
    return bool(texts.select((pl.col("domain") == DOMAIN).any()).item())


def _timeline(capture: Capture) -> Timeline:
    found = domains.timeline(capture, DOMAIN, _parsed(domains.texts_of(capture, DOMAIN)), rooted=False)
    crossing = _start_end(capture)
    if not crossing.height:
        return found
    whole = pl.concat([found.instances, instances(crossing)])
    return Timeline(instances(whole), tree=found.tree)


def _parsed(texts: pl.DataFrame) -> pl.DataFrame:
    """Take texts apart: n rows in, n rows out, as ``domains.timeline`` wants them."""
    text = pl.col("text")
    return texts.select(
        "text",
        label=pl.coalesce(text.str.extract(_OP, 2), text),
        scope=pl.lit(None, pl.String),
        type=pl.coalesce(text.str.extract(_OP, 1), pl.lit(CUSTOM)),
    )


def _start_end(capture: Capture) -> pl.DataFrame:
    """Make instances of ops that begin on one thread and may end on another: they have no place in the nest."""
    wanted = (pl.col("kind") == "start_end") & (pl.col("domain") == DOMAIN)
    columns = [
        "start_ns",
        "end_ns",
        "process_id",
        "thread_id",
        "range_id",
        pl.col("name").cast(pl.String).alias("text"),
    ]
    ranges = capture.frames("nvtx_ranges").filter(wanted).select(columns).collect()
    parsed = _parsed(ranges.select("text").drop_nulls().unique(maintain_order=True))
    named = ranges.join(parsed, on="text", maintain_order="left")
    times = ["start_ns", "process_id", "thread_id", "range_id"]
    ends = pl.col("end_ns").fill_null(capture.last_ns)
    return named.select(*times, ends, op_name="label", op_type="type")


DIALECT = Dialect("tensorflow", "TensorFlow's ops, of NVIDIA's builds.", _recognises, _timeline)
