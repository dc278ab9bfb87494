"""NCCL's own ranges (domain ``NCCL``): the calls that move data between GPUs, below whatever ranges are around them.

What NCCL tells of a call in its payload, the size of the message, the reduction, the root, are the parameters.
"""

from __future__ import annotations

import polars as pl

from tracekit.core.ops import domains
from tracekit.core.ops.dialect import Capture, Dialect, Timeline

DOMAIN = "NCCL"


def _recognises(texts: pl.DataFrame) -> bool:
    return texts.height > 0 and bool(texts.select((pl.col("domain") == DOMAIN).fill_null(value=False).all()).item())


def _timeline(capture: Capture) -> Timeline:
    texts = domains.texts_of(capture, DOMAIN)
    parsed = texts.select(
        "text", label=f"{DOMAIN}/" + pl.col("text"), scope=pl.lit(None, pl.String), type=pl.lit(DOMAIN)
    )
    found = domains.timeline(capture, DOMAIN, parsed)
    told = capture.frames("nvtx_ranges").filter(pl.col("domain") == DOMAIN)
    told = told.select("range_id", parameters=pl.col("payload_text").cast(pl.Categorical))
    known = found.instances.drop("parameters").join(told.collect(), on="range_id", how="left", maintain_order="left")
    return Timeline(known.select(found.instances.columns), tree=found.tree)


DIALECT = Dialect("nccl", "NCCL's calls, with what they moved.", _recognises, _timeline)
