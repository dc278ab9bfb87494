"""The records of an event file: version, graph, statistics of steps, scalars and texts, as messages of TensorFlow."""

from __future__ import annotations

import functools
import itertools
from typing import TYPE_CHECKING, Any

from tracekit import schemas
from tracekit.exporters.tfevents.steps import steps_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    import polars as pl

VERSION = b"brain.Event:2"
STRING, FLOAT = 7, 1
SCALAR, TENSOR = 1, 2
HOST = "/device:CPU:0"
RESULT = b"result"
_TYPES = {
    "float32": 1,
    "float64": 2,
    "int32": 3,
    "uint8": 4,
    "int16": 5,
    "int8": 6,
    "complex64": 8,
    "int64": 9,
    "bool": 10,
    "bfloat16": 14,
    "uint16": 17,
    "complex128": 18,
    "float16": 19,
    "uint32": 22,
    "uint64": 23,
}
_TEXTS = ("op_id", "op_name", "direction", "data_type", "input_shapes", "tensor_core_support")
_NS = 1e9
_MOST = (1 << 63) - 1


def events(tables: Mapping[str, pl.DataFrame], origin_ns: int, *, time: str, steps: int) -> list[bytes]:
    """Make the records.

    Args:
        tables: The trace's ``model("graph")``.
        origin_ns: Trace origin, ns since 1970.
        time: What compute time is: ``gpu`` or ``cpu``.
        steps: How many iterations get statistics of their own.
    """
    begun = origin_ns / _NS
    made = [_event(begun, file_version=VERSION), _event(begun, graph_def=graph(tables))]
    for tag, number, start_ns, rows in steps_of(tables, time, steps):
        metadata = _run_metadata(tables["nodes"], rows, max((origin_ns + start_ns) // 1000, 1))
        tagged = {"tag": tag.encode(), "run_metadata": metadata}
        made.append(_event((origin_ns + start_ns) / _NS, step=number, tagged_run_metadata=tagged))
    made += [_event((origin_ns + at) / _NS, step=n, summary=s) for n, at, s in _scalars(tables["scalars"])]
    return [*made, *(_event(begun, step=0, summary=_text(*row)) for row in tables["texts"].iter_rows())]


def graph(tables: Mapping[str, pl.DataFrame]) -> bytes:
    """Make the graph: a node an op, with what is known of it as attributes."""
    nodes = tables["nodes"]
    names = nodes["name"].to_list()
    inputs: list[list[bytes]] = [[] for _ in names]
    for node, source, control in tables["inputs"].iter_rows():
        inputs[node].append(f"{'^' if control else ''}{names[source]}".encode())
    made = _message("tensorflow_graph", "GraphDef")()
    for row, named in zip(nodes.iter_rows(named=True), inputs, strict=True):
        node = made.node.add(name=row["name"].encode(), op=op_of(row["op_type"]).encode(), input=named)
        node.device = device(row["device_id"]).encode()
        _describe(node.attr, row)
    return bytes(made.SerializeToString(deterministic=True))


def op_of(kind: str | None) -> str:
    """Spell an op type so that TensorBoard draws it as a node.

    Types with ``Const`` in them, and those that end in ``Summary``, it hides in other nodes, with what they took.
    """
    text = (kind or "").replace("Const", "const")
    return text.removesuffix("Summary") + "summary" if text.endswith("Summary") else text


def device(number: int | None) -> str:
    """Name a GPU as TensorFlow does; None is the CPU."""
    return HOST if number is None else f"/device:GPU:{number}"


def _describe(attributes: Any, row: Mapping[str, Any]) -> None:
    for name in _TEXTS:
        if row[name]:
            attributes[name].s = str(row[name]).encode()
    if row["uses_tensor_cores"] is not None:
        attributes["uses_tensor_cores"].b = row["uses_tensor_cores"]
    for shape in row["output_shapes"] or ():
        _sized(attributes["_output_shapes"].list.shape.add(), shape)


def _sized(message: Any, shape: list[int]) -> Any:
    message.SetInParent()
    for size in shape:
        message.dim.add(size=size)
    return message


def _run_metadata(nodes: pl.DataFrame, rows: pl.DataFrame, start_us: int) -> bytes:
    """Make the statistics of one step of rows of ``steps_of``, device by device."""
    made = _message("tensorflow_events", "RunMetadata")()
    about = nodes.select("name", "op_id", "data_type", "output_shapes", "output_bytes").rows()
    for (number,), of_device in rows.group_by("device_id", maintain_order=True):
        part = made.step_stats.dev_stats.add(device=device(number).encode())
        for node, _, at_ns, ns in of_device.iter_rows():
            name, op_id, kind, shapes, size = about[node]
            begin, end = at_ns // 1000, (at_ns + ns) // 1000
            lasted = max(end - begin, 1) if ns else 0
            stats = part.node_stats.add(
                node_name=name.encode(),
                timeline_label=op_id.encode(),
                all_start_micros=start_us + begin,
                op_end_rel_micros=lasted,
                all_end_rel_micros=lasted,
                all_start_nanos=min(start_us * 1000 + at_ns, _MOST),
                op_end_rel_nanos=ns,
                all_end_rel_nanos=ns,
            )
            _result(stats, kind, shapes, size)
    return bytes(made.SerializeToString(deterministic=True))


def _result(stats: Any, kind: str | None, shapes: list[list[int]] | None, size: int | None) -> None:
    """Describe what a node returned, where shape and type are known."""
    for slot, shape in enumerate(shapes or ()):
        output = stats.output.add(slot=slot)
        output.tensor_description.dtype = _TYPES.get(kind or "", 0)
        _sized(output.tensor_description.shape, shape)
        if size and len(shapes or ()) == 1:
            output.tensor_description.allocation_description.requested_bytes = size
    if size:
        stats.memory.add(allocator_name=RESULT, total_bytes=size)


def _scalars(rows: pl.DataFrame) -> Iterator[tuple[int, int, dict[str, Any]]]:
    """Give the figures of each iteration: its number, its end, and their summary.

    They are of single precision: TensorBoard passes over scalars of any other type.
    """
    told: set[str] = set()
    by_row = rows.select("iteration", "end_ns", "tag", "value").iter_rows()
    for (number, at), figures in itertools.groupby(by_row, key=lambda row: row[:2]):
        values = []
        for _, _, tag, value in figures:
            made = {"tag": tag.encode(), "tensor": {"dtype": FLOAT, "tensor_shape": {}, "float_val": [value]}}
            values.append(made if tag in told else made | _plugin("scalars", SCALAR))
            told.add(tag)
        yield number, at, {"value": values}


def _text(tag: str, text: str) -> dict[str, Any]:
    tensor = {"dtype": STRING, "tensor_shape": {}, "string_val": [text.encode()]}
    return {"value": [{"tag": tag.encode(), "tensor": tensor, **_plugin("text", TENSOR)}]}


def _plugin(name: str, data_class: int) -> dict[str, Any]:
    """Say whom the values of a tag are for; the first of them says so for all."""
    return {"metadata": {"plugin_data": {"plugin_name": name.encode()}, "data_class": data_class}}


def _event(wall_time: float, **fields: Any) -> bytes:
    event = _message("tensorflow_events", "Event")(wall_time=wall_time, **fields)
    return bytes(event.SerializeToString(deterministic=True))


@functools.cache
def _message(file: str, name: str) -> Any:
    return schemas.message(file, name)
