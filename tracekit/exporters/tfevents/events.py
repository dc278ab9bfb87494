"""Encode the contents of an event file as TensorFlow messages: version, graph, step statistics, scalars and texts.

Place graph nodes on the time axis of a step so that TensorBoard computes the correct time of node groups.

TensorBoard computes the time of a group as the time from the first start to the last end of its nodes. With real start
times, this would include gaps and the time of other nodes in between. Nodes are therefore placed end to end in tree
order, each with its own duration. The time of a group is then the sum of the times of its nodes.
"""

from __future__ import annotations

import functools
import itertools
import struct
from typing import TYPE_CHECKING, Any, NamedTuple

import polars as pl

from tracekit import schemas
from tracekit.native.crc32c import compute_masked_crc32c

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

ALL_ITERATIONS = "all iterations"
_ROW_KEYS = ["node", "device_id"]
VERSION = b"brain.Event:2"
DT_STRING, DT_FLOAT = 7, 1
CLASS_SCALAR, CLASS_TENSOR = 1, 2
CPU = "/device:CPU:0"
RESULT_ALLOCATOR = b"result"
_DATA_TYPES = {
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
_STRING_ATTRIBUTES = ("op_id", "op_name", "direction", "data_type", "input_shapes", "tensor_core_support")
_NS = 1e9
_MAX_INT64 = (1 << 63) - 1


class PlacedStep(NamedTuple):
    """A step of the event file, with its nodes placed on a time axis.

    Attributes:
        tag: Tag of the step.
        number: Number of the step.
        start_ns: Start of the step in ns since the trace origin.
        placed_nodes: The nodes as returned by ``place_nodes``.
    """

    tag: str
    number: int
    start_ns: int
    placed_nodes: pl.DataFrame


def place_nodes_by_step(tables: Mapping[str, pl.DataFrame], time_kind: str, max_steps: int) -> Iterator[PlacedStep]:
    """Yield one step with the nodes of all iterations, then one step for each of the first ``max_steps`` iterations.

    Args:
        tables: ``model("graph")`` of the trace.
        time_kind: The time that determines the duration of nodes, ``gpu`` or ``cpu``.
        max_steps: Maximum number of steps for single iterations.
    """
    stats, nodes = tables["stats"], tables["nodes"]
    starts = tables["scalars"].select("iteration", "start_ns").unique(maintain_order=True).sort("iteration")
    for number, start_ns in starts.head(1).iter_rows():
        yield PlacedStep(ALL_ITERATIONS, number, start_ns, place_nodes(nodes, stats, time_kind))
    for number, start_ns in starts.head(max_steps).iter_rows():
        yield PlacedStep(
            f"step {number}",
            number,
            start_ns,
            place_nodes(nodes, stats.filter(pl.col("iteration") == number), time_kind),
        )


def place_nodes(nodes: pl.DataFrame, stats: pl.DataFrame, time_kind: str) -> pl.DataFrame:
    """Add up the times of each node, and place the nodes end to end on the time axis of a step.

    Returns:
        One row per device and executed node, ordered by device and then in tree order, with the columns
        ``node``, ``device_id`` (null for the CPU), ``start_ns`` (since the start of the step) and ``duration_ns``.
    """
    if time_kind == "cpu":
        stats = stats.with_columns(device_id=pl.lit(None, stats.schema["device_id"]), gpu_ns="cpu_ns")
    times = stats.group_by(_ROW_KEYS).agg(duration_ns=pl.col("gpu_ns").sum())
    times = _drop_cpu_rows_of_gpu_nodes(times)
    name = nodes["name"].gather(times["node"]).str.replace_all("/", "\0", literal=True)
    ordered = times.with_columns(name=name).sort("name", "device_id", nulls_last=True)
    placed = ordered.with_columns(start_ns=pl.col("duration_ns").cum_sum() - pl.col("duration_ns"))
    return placed.sort("device_id", maintain_order=True, nulls_last=True).select(*_ROW_KEYS, "start_ns", "duration_ns")


def _drop_cpu_rows_of_gpu_nodes(times: pl.DataFrame) -> pl.DataFrame:
    """Drop the CPU rows of nodes that also have GPU rows. These nodes used a GPU in only some of the iterations."""
    on_gpu = pl.col("device_id").is_not_null().any().over("node")
    return times.filter(pl.col("device_id").is_not_null() | ~on_gpu)


def encode_record(data: bytes) -> bytes:
    """Encode data as a TFRecord: the data length, the checksum of the length, the data, and the data checksum."""
    length = struct.pack("<Q", len(data))
    return b"".join(
        [length, struct.pack("<I", compute_masked_crc32c(length)), data, struct.pack("<I", compute_masked_crc32c(data))]
    )


def encode_events(tables: Mapping[str, pl.DataFrame], origin_ns: int, *, time_kind: str, max_steps: int) -> list[bytes]:
    """Return the encoded ``Event`` messages of an event file, one per record.

    Args:
        tables: ``model("graph")`` of the trace.
        origin_ns: Trace origin in ns since 1970.
        time_kind: The time that TensorBoard shows as compute time, ``gpu`` or ``cpu``.
        max_steps: Maximum number of iterations with separate statistics.
    """
    origin = origin_ns / _NS
    records = [
        _encode_event(origin, file_version=VERSION),
        _encode_event(origin, graph_def=encode_graph(tables)),
    ]
    for tag, number, start_ns, rows in place_nodes_by_step(tables, time_kind, max_steps):
        metadata = _encode_run_metadata(tables["nodes"], rows, max((origin_ns + start_ns) // 1000, 1))
        tagged = {"tag": tag.encode(), "run_metadata": metadata}
        records.append(_encode_event((origin_ns + start_ns) / _NS, step=number, tagged_run_metadata=tagged))
    for number, end_ns, summary in _build_scalar_summaries(tables["scalars"]):
        records.append(_encode_event((origin_ns + end_ns) / _NS, step=number, summary=summary))
    texts = tables["texts"].iter_rows()
    return [*records, *(_encode_event(origin, step=0, summary=_build_text_summary(*row)) for row in texts)]


def encode_graph(tables: Mapping[str, pl.DataFrame]) -> bytes:
    """Return an encoded ``GraphDef`` message with one node per op."""
    nodes = tables["nodes"]
    names = nodes["name"].to_list()
    inputs: list[list[bytes]] = [[] for _ in names]
    for node, source, control in tables["inputs"].iter_rows():
        inputs[node].append(f"{'^' if control else ''}{names[source]}".encode())
    graph = _load_message_class("tensorflow_graph", "GraphDef")()
    for row, node_inputs in zip(nodes.iter_rows(named=True), inputs, strict=True):
        node = graph.node.add(
            name=row["name"].encode(), op=convert_to_drawable_op_type(row["op_type"]).encode(), input=node_inputs
        )
        node.device = format_device_name(row["device_id"]).encode()
        _add_attributes(node.attr, row)
    return bytes(graph.SerializeToString(deterministic=True))


def convert_to_drawable_op_type(op_type: str | None) -> str:
    """Return an op type in a spelling for which TensorBoard draws the nodes.

    TensorBoard hides nodes and their times if the op type contains ``Const`` or ends with ``Summary``. These words
    become lowercase. None becomes an empty string.
    """
    text = (op_type or "").replace("Const", "const")
    return text.removesuffix("Summary") + "summary" if text.endswith("Summary") else text


def format_device_name(device_id: int | None) -> str:
    """Return the TensorFlow name of the GPU with a device id, or the name of the CPU if the device id is None."""
    return CPU if device_id is None else f"/device:GPU:{device_id}"


def _add_attributes(attributes: Any, row: Mapping[str, Any]) -> None:
    """Add the attributes of an op to its graph node. Null attributes are omitted."""
    for name in _STRING_ATTRIBUTES:
        if row[name]:
            attributes[name].s = str(row[name]).encode()
    if row["uses_tensor_cores"] is not None:
        attributes["uses_tensor_cores"].b = row["uses_tensor_cores"]
    for shape in row["output_shapes"] or ():
        _set_shape(attributes["_output_shapes"].list.shape.add(), shape)


def _set_shape(message: Any, shape: list[int]) -> None:
    """Set the dimensions of a shape message. A scalar, which has no dimensions, results in an empty shape."""
    message.SetInParent()
    for size in shape:
        message.dim.add(size=size)


def _encode_run_metadata(nodes: pl.DataFrame, placed_nodes: pl.DataFrame, start_us: int) -> bytes:
    """Return the encoded ``RunMetadata`` message of one step.

    Args:
        nodes: The nodes of ``model("graph")``.
        placed_nodes: The executed nodes of the step, as returned by ``place_nodes``.
        start_us: Start of the step in µs since 1970.
    """
    metadata = _load_message_class("tensorflow_events", "RunMetadata")()
    facts = nodes.select("name", "op_id", "data_type", "output_shapes", "output_bytes").rows()
    for (device_id,), device_rows in placed_nodes.group_by("device_id", maintain_order=True):
        device_stats = metadata.step_stats.dev_stats.add(device=format_device_name(device_id).encode())
        for node, _, start_ns, duration_ns in device_rows.iter_rows():
            name, op_id, data_type, shapes, size = facts[node]
            begin, end = start_ns // 1000, (start_ns + duration_ns) // 1000
            duration_us = max(end - begin, 1) if duration_ns else 0
            stats = device_stats.node_stats.add(
                node_name=name.encode(),
                timeline_label=op_id.encode(),
                all_start_micros=start_us + begin,
                op_end_rel_micros=duration_us,
                all_end_rel_micros=duration_us,
                all_start_nanos=min(start_us * 1000 + start_ns, _MAX_INT64),
                op_end_rel_nanos=duration_ns,
                all_end_rel_nanos=duration_ns,
            )
            _add_outputs(stats, data_type, shapes, size)
    return bytes(metadata.SerializeToString(deterministic=True))


def _add_outputs(stats: Any, data_type: str | None, shapes: list[list[int]] | None, total_bytes: int | None) -> None:
    """Add the output shapes and the output memory of a node to its step statistics.

    Args:
        stats: The message to which the outputs are added.
        data_type: Data type of the outputs, or None if the type is unknown.
        shapes: Shape of each output, or None if the shapes are unknown.
        total_bytes: Total size of the outputs in bytes, or None if the size is unknown.
    """
    for slot, shape in enumerate(shapes or ()):
        output = stats.output.add(slot=slot)
        output.tensor_description.dtype = _DATA_TYPES.get(data_type or "", 0)
        _set_shape(output.tensor_description.shape, shape)
        if total_bytes and len(shapes or ()) == 1:
            output.tensor_description.allocation_description.requested_bytes = total_bytes
    if total_bytes:
        stats.memory.add(allocator_name=RESULT_ALLOCATOR, total_bytes=total_bytes)


class _IterationSummary(NamedTuple):
    """The scalars of an iteration.

    Attributes:
        number: Number of the iteration.
        end_ns: End of the iteration in ns since the trace origin.
        summary: The scalars, as fields of a ``Summary`` message.
    """

    number: int
    end_ns: int
    summary: dict[str, Any]


def _build_scalar_summaries(rows: pl.DataFrame) -> Iterator[_IterationSummary]:
    """Yield the scalars of each iteration.

    The scalars have single precision, because TensorBoard ignores scalars of any other type.
    """
    described: set[str] = set()
    by_row = rows.select("iteration", "end_ns", "tag", "value").iter_rows()
    for (number, end_ns), group in itertools.groupby(by_row, key=lambda row: row[:2]):
        values = []
        for _, _, tag, value in group:
            item = {"tag": tag.encode(), "tensor": {"dtype": DT_FLOAT, "tensor_shape": {}, "float_val": [value]}}
            values.append(item if tag in described else item | _build_plugin_metadata("scalars", CLASS_SCALAR))
            described.add(tag)
        yield _IterationSummary(number, end_ns, {"value": values})


def _build_text_summary(tag: str, text: str) -> dict[str, Any]:
    """Return the fields of a ``Summary`` message that contains one string."""
    tensor = {"dtype": DT_STRING, "tensor_shape": {}, "string_val": [text.encode()]}
    return {"value": [{"tag": tag.encode(), "tensor": tensor, **_build_plugin_metadata("text", CLASS_TENSOR)}]}


def _build_plugin_metadata(name: str, data_class: int) -> dict[str, Any]:
    """Return the metadata that assigns a tag to a TensorBoard plug-in. Only the first value of a tag needs it."""
    return {"metadata": {"plugin_data": {"plugin_name": name.encode()}, "data_class": data_class}}


def _encode_event(wall_time: float, **fields: Any) -> bytes:
    """Return an encoded ``Event`` message with the given fields and a time in seconds since 1970."""
    event = _load_message_class("tensorflow_events", "Event")(wall_time=wall_time, **fields)
    return bytes(event.SerializeToString(deterministic=True))


@functools.cache
def _load_message_class(file: str, name: str) -> Any:
    """Return the class of a protobuf message that is declared in ``schemas/proto``. The result is cached."""
    return schemas.load_message_class(file, name)
