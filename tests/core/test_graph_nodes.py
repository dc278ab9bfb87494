"""Nodes of the graph of a capture: what is known of their results, and that hostile texts are not."""

from __future__ import annotations

from pathlib import Path

import pytest
import tracekit as tk
from tracekit.core.graph import nodes

FIXTURES = Path(__file__).parents[2] / "fixtures"


@pytest.mark.parametrize(
    ("text", "shapes"),
    [
        ("[[2,3],[4]]", [[2, 3], [4]]),
        ("[[]]", [[]]),
        (None, []),
        ("", []),
        ("[[2,", []),
        ("[" * 100_000, []),
        ('{"a":1}', []),
        ("[1]", []),
        ("[[-1]]", []),
        ('[["2"]]', []),
        (f"[[{1 << 63}]]", []),
    ],
)
def test_shapes_are_parsed(text: str | None, shapes: list[list[int]]) -> None:
    assert nodes.shapes_of(text) == shapes


def test_results_have_sizes_where_shape_and_type_are_known() -> None:
    with tk.load(FIXTURES / "ops" / "pyprof_like.nsys-rep") as trace:
        made = trace.rollup().model("graph")["nodes"]
    known = made.drop_nulls("output_bytes")
    assert known.height > 4
    for kind, shapes, size in known.select("data_type", "output_shapes", "output_bytes").iter_rows():
        (shape,) = shapes
        elements = 1
        for d in shape:
            elements *= d
        assert size == elements * nodes.BYTES[kind]


def test_every_op_is_a_node_and_inputs_come_first() -> None:
    with tk.load(FIXTURES / "ddp2.sqlite") as trace:
        rolled = trace.rollup()
        graph, ops = rolled.model("graph"), rolled.frame("ops").collect()
    assert sorted(graph["nodes"]["op_id"]) == sorted(ops["op_id"])
    assert (graph["inputs"]["input"] < graph["inputs"]["node"]).all()
    back = graph["inputs"].filter(~graph["inputs"]["is_control"])
    ids = graph["nodes"]["op_id"]
    assert back.height == ids.str.ends_with("_BPROP").sum()
    assert (ids.gather(back["input"]) + "_BPROP").to_list() == ids.gather(back["node"]).to_list()
