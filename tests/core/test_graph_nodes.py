"""Shapes, sizes and names of the nodes of a graph."""

from __future__ import annotations

import polars as pl
import pytest
from tracekit.core.graph import nodes
from tracekit.core.graph.nodes import append_numbers_to_duplicates, parse_shapes


@pytest.mark.parametrize(
    ("text", "shapes"),
    [
        ("[[8,3],[1]]", [[8, 3], [1]]),
        ("[]", []),
        (None, []),
        ("{", []),
        ("[" * 100_000, []),
        ("7", []),
        ("[[1],2]", []),
        ("[[-1]]", []),
        (f"[[{1 << 70}]]", []),
    ],
)
def test_shapes(text: str | None, shapes: list[list[int]]) -> None:
    assert parse_shapes(text) == shapes


def test_sizes_of_results() -> None:
    rows = pl.DataFrame(
        {
            "output_shapes": ["[[8,3],[1]]", "[[2]]", None, "[[0]]", "[[8,3],[1]]"],
            "data_type": ["float32", "opaque", "float32", "float32", "float16"],
        }
    )
    columns = nodes._build_output_shape_columns(rows)
    assert columns["output_bytes"].to_list() == [100, None, None, None, 50]
    assert columns["output_shapes"].to_list() == [[[8, 3], [1]], [[2]], None, [[0]], [[8, 3], [1]]]


def test_repeated_names_are_numbered() -> None:
    names = pl.Series(["conv", "bn", "conv", "conv_1", "conv"])
    numbered = append_numbers_to_duplicates(names)
    assert numbered.n_unique() == len(names)
    assert numbered.to_list()[:2] == ["conv", "bn"]
    assert all(new.startswith(name) for new, name in zip(numbered, names, strict=True))
