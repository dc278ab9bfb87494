"""Shapes of the results of nodes, as far as they are shapes."""

from __future__ import annotations

import pytest
from tracekit.core.graph.nodes import parse_shapes


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
