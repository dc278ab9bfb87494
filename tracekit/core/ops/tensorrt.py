"""Parse the ranges of TensorRT (domain ``TensorRT``): layers inside the range of an execution context.

The names of layers come from the network, such as ``/layer1/conv1/Conv``. The name of a fused layer lists all original
layers, such as ``/layer1/conv1/Conv + /layer1/relu/Relu``. The path of a fused layer is the path of the first original
layer.
"""

from __future__ import annotations

import polars as pl

from tracekit.core.ops import identity
from tracekit.core.ops.dialect import Dialect, DialectTables, Timeline

DOMAIN = "TensorRT"
_HOLDS = r"^(?:ExecutionContext|Engine|Builder|Runtime|Refitter)::"
_COPIES = r"^Reformatting CopyNode "
_FOLDER = r"((?:/?[\w.:\-]+)*/)[\w.:\-]"
_FOLDERS = r"[^\s+,()\[\]{}]*/"
_TYPE = r"^\W*((?:\w+::)?\w+?)(?:_\d+)?(?:_clone_\d+)?(?:[^\w:]|$)"


def _has_tensorrt_ranges(texts: pl.DataFrame) -> bool:
    return bool(texts.select((pl.col("domain") == DOMAIN).any()).item())


def _build_timeline(capture: DialectTables) -> Timeline:
    return identity.build_domain_timeline(capture, DOMAIN, _parse_names(identity.read_domain_texts(capture, DOMAIN)))


def _parse_names(texts: pl.DataFrame) -> pl.DataFrame:
    """Parse range names into the columns that ``build_domain_timeline`` requires, such as ``label`` and ``type``."""
    text = pl.col("text")
    parts = text.str.replace_all("...", " ... ", literal=True)
    folder = parts.str.extract(_FOLDER).str.strip_chars("/")
    leaf = parts.str.replace_all(_FOLDERS, "")
    path = pl.concat_str(pl.when(folder != "").then(folder), leaf, separator="/", ignore_nulls=True)
    plain = leaf.str.extract(_TYPE)
    return texts.select(
        "text",
        label=pl.when(~text.str.contains(_HOLDS)).then(path),
        scope=pl.lit(None, pl.String),
        type=pl.when(text.str.contains(_COPIES)).then(pl.lit("Reformat")).otherwise(pl.coalesce(plain, leaf)),
    )


DIALECT = Dialect("tensorrt", "TensorRT layers in their execution context.", _has_tensorrt_ranges, _build_timeline)
