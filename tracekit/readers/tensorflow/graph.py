"""Decode a TensorFlow graph, including the bodies of its functions, into nodes and edges."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tracekit import schemas
from tracekit.readers.common.columns import build_dictionary_array, compact_dictionary
from tracekit.readers.common.damage import Damage
from tracekit.readers.common.protobuf.decoding import decode
from tracekit.readers.common.protobuf.occurrences import Occurrences, find_occurrences
from tracekit.readers.tensorflow import attributes, payloads
from tracekit.readers.tensorflow.edges import build_edge_columns
from tracekit.readers.tensorflow.fields import MAX_GRAPH_BYTES, build_string_column, load_buffer
from tracekit.readers.tensorflow.payloads import MessageKind
from tracekit.system.files import InputFile, Window

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from tracekit.readers.common.protobuf.decoding import Buffer, Int64Array

NODES, EDGES = "graph_nodes", "graph_edges"
MAX_GRAPHS = 64
_NODE, _LIBRARY, _VERSIONS = 1, 2, 4
_FUNCTION, _SIGNATURE, _BODY = 1, 1, 3
_NAME, _OP, _INPUT, _DEVICE, _ATTRIBUTE = 1, 2, 3, 4, 5
_INFO, _GRAPH, _META_GRAPH = 1, 2, 2
_TAGS, _VERSION = 4, 5


@dataclass(frozen=True, slots=True)
class Graph:
    """The nodes and edges of one or more graphs.

    Attributes:
        nodes: One row per node, with the columns of ``graph_nodes``.
        edges: One row per input of a node, with the columns of ``graph_edges``.
        versions: TensorFlow versions that are recorded in the file.
        dangling: Number of inputs that refer to a missing node. Inputs inside functions are not counted.
    """

    nodes: pa.Table
    edges: pa.Table
    versions: tuple[str, ...] = ()
    dangling: int = 0


@dataclass(frozen=True, slots=True)
class _NodeLocations:
    """The locations of the nodes of a graph and of its functions.

    Attributes:
        owners: Number of the graph (0) or function (from 1) that each node belongs to.
        starts: Offset at which each node starts.
        stops: Offset at which each node ends.
        labels: Value of the column ``graph`` for the nodes of the graph and of each function, by number of the owner.
        functions: Name of each function.
    """

    owners: Int64Array
    starts: Int64Array
    stops: Int64Array
    labels: pa.Array
    functions: pa.Array


def read_graph(data: bytes | memoryview | InputFile, *, label: str, graph: str = "", run: str | None = None) -> Graph:
    """Decode a ``GraphDef`` message into nodes and edges.

    Args:
        data: The encoded message, or the file that contains it.
        label: Name of the message in error messages.
        graph: Name of the graph, for the column ``graph``.
        run: Name of the run, for the column ``run``.

    Raises:
        Damage: The message is invalid or truncated.
    """
    with _add_prefix_to_errors(label):
        buffer, size = _load_message(data, MessageKind.GRAPH)
        return _decode_graph(buffer, 0, size, graph, run)


def read_meta_graph(data: bytes | memoryview | InputFile, *, label: str, run: str | None = None) -> Graph:
    """Decode a ``MetaGraphDef`` message into nodes and edges. Its tags become the name of the graph.

    Raises:
        Damage: The message is invalid or truncated.
    """
    with _add_prefix_to_errors(label):
        buffer, size = _load_message(data, MessageKind.META_GRAPH)
        return _decode_meta_graphs(buffer, np.zeros(1, np.int64), np.full(1, size), run)


def read_saved_model(data: bytes | memoryview | InputFile, *, label: str) -> Graph:
    """Decode and concatenate the graphs of a ``SavedModel`` message.

    Raises:
        Damage: The message is invalid or truncated.
    """
    with _add_prefix_to_errors(label):
        buffer, size = _load_message(data, MessageKind.SAVED_MODEL)
        (meta_graphs,) = find_occurrences(buffer, np.zeros(1, np.int64), np.full(1, size), (_META_GRAPH,))
        return _decode_meta_graphs(buffer, meta_graphs.starts, meta_graphs.stops, None)


def concat_graphs(graphs: Iterable[Graph]) -> Graph:
    """Concatenate graphs, and renumber their nodes and edges so that all ids are unique."""
    nodes, edges, versions, first_node, first_edge, dangling = [], [], list[str](), 0, 0, 0
    for graph in graphs:
        nodes.append(_add_id_offsets(graph.nodes, {"node_id": first_node}))
        edges.append(_add_id_offsets(graph.edges, {"edge_id": first_edge, "source": first_node, "target": first_node}))
        versions += graph.versions
        dangling += graph.dangling
        first_node, first_edge = first_node + graph.nodes.num_rows, first_edge + graph.edges.num_rows
    if not nodes:
        return Graph(_create_empty_table(NODES), _create_empty_table(EDGES))
    return Graph(pa.concat_tables(nodes), pa.concat_tables(edges), tuple(dict.fromkeys(versions)), dangling)


def _add_id_offsets(table: pa.Table, offsets: dict[str, int]) -> pa.Table:
    for name, offset in offsets.items():
        if offset:
            position = table.schema.get_field_index(name)
            table = table.set_column(position, table.schema.field(position), pc.add(table[name], offset))
    return table


def _create_empty_table(name: str) -> pa.Table:
    return schemas.empty(schemas.table(name)).replace_schema_metadata()


@contextlib.contextmanager
def _add_prefix_to_errors(label: str) -> Iterator[None]:
    """Return a context manager that prefixes the messages of ``Damage`` errors with a label."""
    try:
        yield
    except Damage as e:
        raise Damage(f"{label}: {e}") from e


def _load_message(data: bytes | memoryview | InputFile, message_kind: MessageKind) -> tuple[Buffer, int]:
    """Load a message into a buffer, and return the buffer and the size of the message in it.

    If the message is large, the values of constants and other large, unused fields are omitted.
    """
    if isinstance(data, InputFile):
        size = data.size
        data = (
            data.read(0, size)
            if size <= payloads.LARGE_BYTES
            else payloads.drop_unused_fields(Window(data, 0, size), message_kind)
        )
    elif len(data) > payloads.LARGE_BYTES:
        data = payloads.drop_unused_fields(memoryview(data), message_kind)
    if len(data) > MAX_GRAPH_BYTES:
        raise Damage(f"the message has {len(data):,} bytes, but tracekit supports at most {MAX_GRAPH_BYTES:,}")
    return load_buffer(data), len(data)


def _decode_meta_graphs(buffer: Buffer, starts: Int64Array, stops: Int64Array, run: str | None) -> Graph:
    """Decode and concatenate the graphs in ``MetaGraphDef`` messages."""
    infos, graphs = find_occurrences(buffer, starts, stops, (_INFO, _GRAPH))
    if len(starts) > MAX_GRAPHS or len(graphs) > MAX_GRAPHS:
        count = max(len(starts), len(graphs))
        raise Damage(f"the message contains {count} meta graphs, but tracekit supports at most {MAX_GRAPHS}")
    (tags,) = find_occurrences(buffer, infos.starts, infos.stops, (_TAGS,))
    tags_by_info: dict[int, list[str]] = {}
    for info, start, stop in zip(tags.rows, tags.starts, tags.stops, strict=True):
        tags_by_info.setdefault(int(infos.rows[info]), []).append(_decode_text(buffer, start, stop))
    decoded = []
    for row, start, stop in zip(graphs.rows, graphs.starts, graphs.stops, strict=True):
        decoded.append(_decode_graph(buffer, int(start), int(stop), ",".join(tags_by_info.get(int(row), ())), run))
    graph = concat_graphs(decoded)
    version = decode(buffer, infos.starts, infos.stops, (_VERSION,)).get(_VERSION)
    versions = build_string_column(buffer, version, len(infos)).drop_null().to_pylist()
    return replace(graph, versions=tuple(dict.fromkeys(v for v in versions if v)))


def _decode_text(buffer: Buffer, start: int, stop: int) -> str:
    return buffer.data[start:stop].tobytes().decode("utf-8", "replace")


def _decode_graph(buffer: Buffer, start: int, stop: int, graph: str, run: str | None) -> Graph:
    locations = _locate_nodes(buffer, start, stop, graph)
    rows = len(locations.starts)
    fields = decode(buffer, locations.starts, locations.stops, (_NAME, _OP, _DEVICE))
    names, ops, devices = (build_string_column(buffer, fields.get(n), rows) for n in (_NAME, _OP, _DEVICE))
    names, ops = names.fill_null(""), ops.fill_null("")
    inputs, attribute_fields = find_occurrences(buffer, locations.starts, locations.stops, (_INPUT, _ATTRIBUTE))
    node_attributes = attributes.read_attributes(buffer, attribute_fields, rows)
    call_nodes = np.flatnonzero(pc.is_in(ops, locations.functions).to_numpy(zero_copy_only=False))
    runs = pa.array([None if run is None else 0] * min(rows, 1), pa.int32())
    runs = build_dictionary_array(runs.take(pa.array(np.zeros(rows, np.int64))), pa.array([run], pa.string()))
    labels = compact_dictionary(pa.array(locations.owners), locations.labels)
    columns = {
        "node_id": pa.array(np.arange(rows)),
        "run": runs,
        "graph": labels,
        "name": names,
        "op": ops,
        "device": pc.if_else(pc.equal(devices, ""), None, devices),
        "scope": _extract_scope_names(names),
        "function": node_attributes.format_function_names(call_nodes, ops.take(pa.array(call_nodes))),
        **node_attributes.build_attribute_columns(),
        "attributes": node_attributes.format_other_attributes(),
    }
    edge_columns = build_edge_columns(buffer, inputs, locations.owners, columns)
    is_dangling = edge_columns["source"].is_null().to_numpy(zero_copy_only=False) & (locations.owners[inputs.rows] == 0)
    return Graph(_build_table(NODES, columns), _build_table(EDGES, edge_columns), dangling=int(is_dangling.sum()))


def _locate_nodes(buffer: Buffer, start: int, stop: int, graph: str) -> _NodeLocations:
    """Return the locations of the nodes of a graph and of the functions in its library."""
    nodes, libraries = find_occurrences(buffer, np.array([start]), np.array([stop]), (_NODE, _LIBRARY))
    (functions,) = find_occurrences(buffer, libraries.starts, libraries.stops, (_FUNCTION,))
    (bodies,) = find_occurrences(buffer, functions.starts, functions.stops, (_BODY,))
    names = _read_function_names(buffer, functions)
    labels = pc.binary_join_element_wise(f"{graph}, function" if graph else "function", names, " ")
    return _NodeLocations(
        np.concatenate((np.zeros(len(nodes), np.int64), bodies.rows + 1)),
        np.concatenate((nodes.starts, bodies.starts)),
        np.concatenate((nodes.stops, bodies.stops)),
        pa.concat_arrays([pa.array([graph], pa.string()), labels]),
        names,
    )


def _read_function_names(buffer: Buffer, functions: Occurrences) -> pa.Array:
    """Return the name of each function from its signature, or an empty string if the function has no signature."""
    (signatures,) = find_occurrences(buffer, functions.starts, functions.stops, (_SIGNATURE,))
    name = decode(buffer, signatures.starts, signatures.stops, (_NAME,)).get(_NAME)
    names = build_string_column(buffer, name, len(signatures))
    first = np.searchsorted(signatures.rows, np.arange(len(functions)))
    missing = np.searchsorted(signatures.rows, np.arange(len(functions)), "right") == first
    return names.take(pa.array(first, mask=missing)).fill_null("")


def _extract_scope_names(names: pa.Array) -> pa.Array:
    """Return the scope of each node name: the text before the last slash, null for names without a slash."""
    groups = pc.extract_regex(names, r"(?s)^(?P<scope>.*)/")
    return pc.struct_field(groups, "scope")


def _build_table(name: str, columns: dict[str, pa.Array]) -> pa.Table:
    """Build a declared table from columns, and dictionary-encode the columns that are declared as dictionaries."""
    declared = schemas.table(name)
    types = {c.name: c.type for c in declared.columns}
    arrays = {
        n: columns[n].dictionary_encode() if kind == "dictionary" and not _is_dictionary(columns[n]) else columns[n]
        for n, kind in types.items()
    }
    return pa.table(arrays)


def _is_dictionary(column: pa.Array) -> bool:
    return bool(pa.types.is_dictionary(column.type))
