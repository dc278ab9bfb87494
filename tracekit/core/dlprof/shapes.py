"""Shapes as DLProf prints them: ``<N:32, C:3, H:32, W:32>; <K:6, C:3, R:3, S:3>; <6>``."""

from __future__ import annotations

import json

import polars as pl


def shown_shapes(formats: pl.Series, shapes: pl.Series) -> pl.Series:
    """Print shapes with the names of their dimensions: n rows in, n texts out, "" where there are none.

    Args:
        formats: Names of the dimensions of each tensor, ``N,C,H,W;K,C,R,S``.
        shapes: JSON.
    """
    asked = pl.DataFrame({"format": formats, "shapes": shapes})
    distinct = asked.unique(maintain_order=True)
    texts = [_shown(*row) for row in distinct.cast(pl.String).iter_rows()]
    known = distinct.with_columns(shown=pl.Series(texts, dtype=pl.String))
    return asked.join(known, on=["format", "shapes"], how="left", maintain_order="left", nulls_equal=True)["shown"]


def _shown(formats: str | None, shapes: str | None) -> str:
    names = [f.split(",") for f in formats.split(";")] if formats else []
    try:
        tensors = json.loads(shapes) if shapes else []
    except (ValueError, RecursionError):
        return ""
    return "; ".join(_tensor(names[i] if i < len(names) else [], t or []) for i, t in enumerate(tensors))


def _tensor(names: list[str], shape: list[int]) -> str:
    named = [f"{n}:{s}" for n, s in zip(names, shape, strict=True)] if len(names) == len(shape) else map(str, shape)
    return f"<{', '.join(named)}>"
