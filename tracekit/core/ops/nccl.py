"""Turn the ranges of NCCL (domain ``NCCL``) into ops.

Each range is a call that moves data between GPUs, and becomes one op. The payload of the range, such as message size,
reduction and root, becomes the parameters of the op. The enclosing ranges become the ancestors of the op.
"""

from __future__ import annotations

import polars as pl

from tracekit.core.ops import identity
from tracekit.core.ops.dialect import Dialect, DialectTables, Timeline

DOMAIN = "NCCL"


def _has_nccl_ranges(texts: pl.DataFrame) -> bool:
    return texts.height > 0 and bool(texts.select((pl.col("domain") == DOMAIN).fill_null(value=False).all()).item())


def _build_timeline(capture: DialectTables) -> Timeline:
    texts = identity.read_domain_texts(capture, DOMAIN)
    parsed = texts.select(
        "text", label=f"{DOMAIN}/" + pl.col("text"), scope=pl.lit(None, pl.String), type=pl.lit(DOMAIN)
    )
    timeline = identity.build_domain_timeline(capture, DOMAIN, parsed)
    payloads = capture.frames("nvtx_ranges").filter(pl.col("domain") == DOMAIN)
    payloads = payloads.select("range_id", parameters=pl.col("payload_text").cast(pl.Categorical))
    instances = timeline.instances.drop("parameters")
    instances = instances.join(payloads.collect(), on="range_id", how="left", maintain_order="left")
    return Timeline(instances.select(timeline.instances.columns), tree=timeline.tree)


DIALECT = Dialect("nccl", "NCCL calls, with their payloads.", _has_nccl_ranges, _build_timeline)
