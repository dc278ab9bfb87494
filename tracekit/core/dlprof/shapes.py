"""Format tensor shapes as DLProf prints them: ``<N:32, C:3, H:32, W:32>; <K:6, C:3, R:3, S:3>; <6>``."""

from __future__ import annotations

import json

import polars as pl


def format_shapes(formats: pl.Series, shapes: pl.Series) -> pl.Series:
    """Format the tensor shapes of each row with the names of their dimensions.

    Args:
        formats: For each row, the names of the dimensions of its tensors, such as ``N,C,H,W;K,C,R,S``.
        shapes: For each row, the shapes of its tensors as a JSON list of lists.

    Returns:
        One string per row. The string is empty if the shapes are missing or invalid.
    """
    rows = pl.DataFrame({"format": formats, "shapes": shapes})
    distinct = rows.unique(maintain_order=True)
    strings = [_format_tensors(*row) for row in distinct.cast(pl.String).iter_rows()]
    formatted = distinct.with_columns(string=pl.Series(strings, dtype=pl.String))
    return rows.join(formatted, on=["format", "shapes"], how="left", maintain_order="left", nulls_equal=True)["string"]


def _format_tensors(formats: str | None, shapes: str | None) -> str:
    names = [f.split(",") for f in formats.split(";")] if formats else []
    try:
        tensors = json.loads(shapes) if shapes else []
    except (ValueError, RecursionError):
        return ""
    return "; ".join(_format_tensor(names[i] if i < len(names) else [], t or []) for i, t in enumerate(tensors))


def _format_tensor(dimension_names: list[str], shape: list[int]) -> str:
    named = (
        [f"{n}:{s}" for n, s in zip(dimension_names, shape, strict=True)]
        if len(dimension_names) == len(shape)
        else map(str, shape)
    )
    return f"<{', '.join(named)}>"
