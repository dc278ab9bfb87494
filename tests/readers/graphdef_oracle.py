"""Graphs taken apart node by node with the messages that TensorBoard brings along; the reader is held against it."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from google.protobuf import text_format
from tensorboard.compat.proto import graph_pb2, meta_graph_pb2, types_pb2
from tests.fuzz.changes import fields

FIXTURES = Path(__file__).parents[2] / "fixtures" / "tensorflow"
CORPUS = Path(__file__).parents[3] / "shared" / "corpus"
NAMES = {"float": "float32", "double": "float64", "half": "float16"}
TYPED_BY = ("dtype", "DstT", "out_type", "T")
LISTS = {"output_shapes": "_output_shapes", "strides": "strides", "dilations": "dilations", "ksize": "ksize"}
TEXTS = {"padding": "padding", "data_format": "data_format"}
LONGEST, LONG = 4096, 65536

Rows = list[dict[str, Any]]


def graphs(octets: bytes, *, text: bool = False) -> list[tuple[str, Any]]:
    """The graphs of a file by their names."""
    if text:
        return [("", text_format.Parse(octets.decode("utf-8"), graph_pb2.GraphDef()))]
    found = fields(octets) or []
    if found and found[0].number == 1 and found[0].value == b"\x01":
        metas = [meta_graph_pb2.MetaGraphDef.FromString(f.value) for f in found if f.number == 2]
        return [(",".join(m.meta_info_def.tags), m.graph_def) for m in metas]
    return [("", graph_pb2.GraphDef.FromString(octets))]


def rows(found: list[tuple[str, Any]]) -> tuple[Rows, Rows]:
    """Nodes and edges of graphs."""
    nodes: Rows = []
    edges: Rows = []
    for name, graph in found:
        functions = {f.signature.name for f in graph.library.function}
        add(name, graph.node, functions, nodes, edges)
        for function in graph.library.function:
            label = f"{name}, function {function.signature.name}" if name else f"function {function.signature.name}"
            add(label, function.node_def, functions, nodes, edges)
    return nodes, edges


def add(graph: str, found: Any, functions: set[str], nodes: Rows, edges: Rows) -> None:
    first = len(nodes)
    ids: dict[str, int] = {}
    for i, node in enumerate(found):
        ids.setdefault(node.name, first + i)
    for i, node in enumerate(found):
        nodes.append(row(node, functions) | {"node_id": first + i, "graph": graph})
        data = 0
        for text in node.input:
            edge = taken(text)
            control = edge["control"]
            number = None if control else data
            data += not control
            where = {"edge_id": len(edges), "run": None, "graph": graph, "target": first + i, "target_input": number}
            edges.append(edge | where | {"source": ids.get(edge["source_name"])})


def taken(text: str) -> dict[str, Any]:
    control = text.startswith("^")
    name, *more = text.removeprefix("^").split(":", 2)
    output, argument = 0, None
    if len(more) == 1 and more[0].isdecimal() and more[0].isascii():
        output = int(more[0])
    elif more:
        argument = more[0]
        output = int(more[1]) if len(more) == 2 and more[1].isdecimal() and more[1].isascii() else 0
    small = output if output < 10**9 else 0
    return {
        "source_name": name,
        "source_argument": argument,
        "source_output": None if control else small,
        "control": control,
    }


def row(node: Any, functions: set[str]) -> dict[str, Any]:
    kinds = {key: value.WhichOneof("value") for key, value in node.attr.items() if value.ByteSize() <= LONG}
    plain = {key: value_of(value) for key, value in sorted(node.attr.items())}
    made: dict[str, Any] = {"run": None, "name": node.name, "op": node.op, "device": node.device or None}
    made["scope"] = node.name.rpartition("/")[0] if "/" in node.name else None
    made["dtype"] = next((plain[k] for k in TYPED_BY if kinds.get(k) == "type"), None)
    for column, key in LISTS.items():
        made[column] = dumped(plain.pop(key)) if kinds.get(key) == "list" else None
    for column, key in TEXTS.items():
        is_text = kinds.get(key) == "s"
        short = is_text and len(node.attr[key].s) <= LONGEST  # a longer one is null: no real padding or format is
        made[column] = node.attr[key].s.decode("utf-8", "replace") if short else None
        if is_text:
            del plain[key]
    called = [node.op] * (node.op in functions)
    for _, value in sorted(node.attr.items()):
        called += named(value)
    made["function"] = dumped(called) if called else None
    made["attributes"] = dumped(plain) if plain else None
    return made


def dumped(plain: Any) -> str:
    return json.dumps(plain, ensure_ascii=False, separators=(",", ":"))


def type_of(number: int) -> str:
    if number not in types_pb2.DataType.values() or not number:
        return f"type {number}"
    base, reference, _ = types_pb2.DataType.Name(number)[3:].lower().partition("_ref")
    return NAMES.get(base, base) + reference


def value_of(value: Any) -> Any:
    kind = value.WhichOneof("value")
    if kind is None:
        return None
    if kind != "tensor" and value.ByteSize() > LONG:
        return {"bytes": value.ByteSize()}
    if kind != "list":
        return one(kind, getattr(value, kind))
    made = [one(f.name, v) for f, values in value.list.ListFields() for v in values]
    return made if len(made) <= LONGEST else {"values": len(made)}


def one(kind: str, value: Any) -> Any:
    return ONE[kind](value) if kind in ONE else value


def text_of(value: bytes) -> Any:
    return value.decode("utf-8", "replace") if len(value) <= LONGEST else {"bytes": len(value)}


def shape_of(shape: Any) -> Any:
    return None if shape.unknown_rank else [d.size for d in shape.dim]


def function_of(value: Any) -> Any:
    given = {key: value_of(v) for key, v in sorted(value.attr.items())}
    return {"function": text_of(value.name.encode())} | ({"attributes": given} if given else {})


ONE: dict[str, Callable[[Any], Any]] = {
    "s": text_of,
    "f": lambda v: float(str(np.float32(v))) if math.isfinite(v) else str(v),
    "type": type_of,
    "shape": shape_of,
    "tensor": lambda v: {"dtype": type_of(v.dtype), "shape": shape_of(v.tensor_shape)},
    "func": function_of,
    "placeholder": lambda v: {"placeholder": text_of(v.encode())},
}


def named(value: Any) -> Iterator[str]:
    kind = value.WhichOneof("value")
    for function in [value.func] if kind == "func" else value.list.func if kind == "list" else []:
        yield function.name
        for _, inner in sorted(function.attr.items()):
            yield from named(inner)
