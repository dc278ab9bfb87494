"""Decode a TensorFlow graph, including the bodies of its functions, into nodes and edges.

Build the edges of a graph from the inputs of its nodes.

An input is written as ``NAME`` (output 0), ``NAME:OUTPUT`` or ``^NAME`` (control dependency). In the body of a
function, an input is written as ``NAME:ARGUMENT:OUTPUT``, or as the name of an argument of the function.

Remove the values of constants and other large, unused fields from encoded graphs.

The graph is parsed where it is stored, in memory or in a file, and only the required fields are copied. Therefore, the
values of constants in a file are never loaded into memory.
"""

from __future__ import annotations

import contextlib
import enum
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tracekit import schemas
from tracekit.readers.common.columns import build_dictionary_array, compact_dictionary
from tracekit.readers.common.damage import Damage
from tracekit.readers.common.protobuf.decoding import (
    DELIMITED,
    FIXED32,
    FIXED64,
    MORE,
    VARINT,
    Occurrences,
    decode,
    encode_varint,
    find_occurrences,
    read_varint,
)
from tracekit.readers.tensorflow import attributes
from tracekit.readers.tensorflow.fields import MAX_GRAPH_BYTES, build_string_column, load_buffer, slice_strings
from tracekit.system.files import InputFile, Window

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from tracekit.readers.common.protobuf.decoding import Buffer, Int64Array

    FieldLocation = tuple[int, int, int, int]
    from collections.abc import Iterable

_MAX_PARTS = 3
LARGE_BYTES = 1 << 28
"""Size in bytes above which the payloads of a graph are removed before it is decoded."""
SMALL_FIELD_BYTES = 1 << 12
"""Maximum size in bytes of fields that are always copied unchanged."""
_WIDTHS = {VARINT: 0, DELIMITED: 0, FIXED64: 8, FIXED32: 4}
NODES, EDGES = "graph_nodes", "graph_edges"
MAX_GRAPHS = 64
_NODE, _LIBRARY, _VERSIONS = 1, 2, 4
_FUNCTION, _SIGNATURE, _BODY = 1, 1, 3
_NAME, _OP, _INPUT, _DEVICE, _ATTRIBUTE = 1, 2, 3, 4, 5
_INFO, _GRAPH, _META_GRAPH = 1, 2, 2
_TAGS, _VERSION = 4, 5


def build_edge_columns(
    buffer: Buffer, inputs: Occurrences, owners: Int64Array, nodes: Mapping[str, pa.Array]
) -> dict[str, pa.Array]:
    """Build one edge per input of a node, and return the columns of ``graph_edges`` by name.

    Args:
        buffer: The buffer that contains the inputs.
        inputs: Location of each input in the buffer, and row number of the node that has the input.
        owners: Number of the graph (0) or function (from 1) that each node belongs to.
        nodes: The columns ``name``, ``graph`` and ``run`` of the nodes.
    """
    target, node_count = pa.array(inputs.rows), len(owners)
    encoded = pa.concat_arrays([nodes["name"], slice_strings(buffer, inputs.starts, inputs.stops)]).dictionary_encode()
    names = encoded.indices.to_numpy(zero_copy_only=False)
    input_names = names[node_count:]
    parsed = _parse_inputs(encoded.dictionary)
    source_names = parsed.names[input_names]
    node_keys = np.concatenate((names[:node_count], source_names)).astype(np.int64)
    node_keys += np.concatenate((owners, owners[inputs.rows])) * len(parsed.strings)
    control = parsed.control[input_names]
    return {
        "edge_id": pa.array(np.arange(len(inputs))),
        "run": nodes["run"].take(target),
        "graph": nodes["graph"].take(target),
        "source": _find_node_indices_by_key(node_keys[:node_count], node_keys[node_count:]),
        "source_name": compact_dictionary(pa.array(source_names), parsed.strings),
        "source_argument": parsed.arguments.take(pa.array(input_names)),
        "source_output": pa.array(parsed.outputs[input_names], mask=control),
        "target": target,
        "target_input": _compute_input_numbers(inputs.rows, control),
        "control": pa.array(control),
    }


@dataclass(frozen=True, slots=True)
class _ParsedInputs:
    """The components of distinct strings. Each string is the name of a node or an input of a node.

    Attributes:
        strings: The distinct strings, followed by node names that occur only as a component of an input.
        names: Index in ``strings`` of the node name that each distinct string contains.
        arguments: The argument that each distinct string contains, or null.
        outputs: The output number that each distinct string contains, or 0 if it contains none.
        control: Whether each distinct string is a control dependency.
    """

    strings: pa.Array
    names: npt.NDArray[np.int64]
    arguments: pa.DictionaryArray
    outputs: npt.NDArray[np.int32]
    control: npt.NDArray[np.bool_]


def _parse_inputs(distinct_texts: pa.Array) -> _ParsedInputs:
    """Split distinct names and inputs of nodes into node name, argument, output number and control flag."""
    control = pc.starts_with(distinct_texts, "^")
    rows = np.flatnonzero(pc.or_(control, pc.match_substring(distinct_texts, ":")).to_numpy(zero_copy_only=False))
    without_caret = pc.replace_substring_regex(distinct_texts.take(pa.array(rows)), r"\A\^", "")
    split = pc.split_pattern(without_caret, ":", max_splits=_MAX_PARTS - 1)
    lengths = pc.list_value_length(split).to_numpy(zero_copy_only=False)
    flat, first = split.flatten(), np.cumsum(lengths) - lengths
    name, second, third = (flat.take(pa.array(first + i, mask=lengths <= i)) for i in range(_MAX_PARTS))
    is_output = pc.and_(pc.match_substring_regex(second, r"^[0-9]+$"), third.is_null())
    arguments = pc.if_else(is_output, None, second).dictionary_encode()
    outputs = np.zeros(len(distinct_texts), np.int32)
    outputs[rows] = _parse_int32(pc.if_else(is_output, second, third))
    positions = pc.index_in(name, distinct_texts)
    new_names = name.filter(positions.is_null()).dictionary_encode()
    names = np.arange(len(distinct_texts))
    names[rows] = positions.fill_null(-1).to_numpy(zero_copy_only=False)
    names[names < 0] = new_names.indices.to_numpy(zero_copy_only=False) + len(distinct_texts)
    part_rows = np.full(len(distinct_texts), -1)
    part_rows[rows] = np.arange(len(rows))
    all_arguments = arguments.take(pa.array(part_rows, mask=part_rows < 0))
    return _ParsedInputs(
        pa.concat_arrays([distinct_texts, new_names.dictionary]),
        names,
        all_arguments,
        outputs,
        control.to_numpy(zero_copy_only=False),
    )


def _parse_int32(strings: pa.Array) -> npt.NDArray[np.int32]:
    """Parse strings of one to nine decimal digits as integers. All other strings become 0."""
    fits = pc.match_substring_regex(strings, r"^[0-9]{1,9}$")
    numbers = pc.if_else(fits, strings, None).cast(pa.int32()).fill_null(0).to_numpy(zero_copy_only=False)
    return np.asarray(numbers, np.int32)


def _find_node_indices_by_key(node_keys: Int64Array, keys: Int64Array) -> pa.Array:
    """Return the index of the first occurrence of each key in ``node_keys``, null for missing keys."""
    distinct_keys, first = np.unique(node_keys, return_index=True)
    if not len(distinct_keys):
        return pa.nulls(len(keys), pa.int64())
    positions = np.minimum(np.searchsorted(distinct_keys, keys), len(distinct_keys) - 1)
    return pa.array(first[positions], mask=distinct_keys[positions] != keys)


def _compute_input_numbers(target_nodes: Int64Array, is_control: npt.NDArray[np.bool_]) -> pa.Array:
    """Return the index of each input among the data inputs of its node, null for control dependencies."""
    before: Int64Array = np.cumsum(~is_control) - ~is_control
    numbers = before - before[np.searchsorted(target_nodes, target_nodes)] if len(target_nodes) else before
    return pa.array(numbers.astype(np.int32), mask=is_control)


class MessageKind(enum.Enum):
    """Types of protobuf messages that may contain the values of constants."""

    SAVED_MODEL = enum.auto()
    META_GRAPH = enum.auto()
    GRAPH = enum.auto()
    LIBRARY = enum.auto()
    FUNCTION = enum.auto()
    NODE = enum.auto()
    ATTRIBUTE = enum.auto()
    VALUE = enum.auto()
    LIST = enum.auto()
    TENSOR = enum.auto()
    INFO = enum.auto()


_NEEDED_FIELDS: dict[MessageKind, dict[int, MessageKind | None]] = {
    MessageKind.SAVED_MODEL: {2: MessageKind.META_GRAPH},
    MessageKind.META_GRAPH: {1: MessageKind.INFO, 2: MessageKind.GRAPH},
    MessageKind.INFO: {4: None, 5: None},
    MessageKind.GRAPH: {1: MessageKind.NODE, 2: MessageKind.LIBRARY, 4: None},
    MessageKind.LIBRARY: {1: MessageKind.FUNCTION},
    MessageKind.FUNCTION: {1: None, 3: MessageKind.NODE},
    MessageKind.NODE: {1: None, 2: None, 3: None, 4: None, 5: MessageKind.ATTRIBUTE},
    MessageKind.ATTRIBUTE: {1: None, 2: MessageKind.VALUE},
    MessageKind.VALUE: {1: MessageKind.LIST, 8: MessageKind.TENSOR, **dict.fromkeys((2, 7, 9, 10))},
    MessageKind.LIST: {8: MessageKind.TENSOR, **dict.fromkeys((2, 3, 4, 5, 6, 7, 9))},
    MessageKind.TENSOR: {2: None},
}
"""The fields that are copied even if they are large, by type of message and field number.

The value is the type of the submessage in the field, or None if the field cannot contain constants.
"""


def drop_unused_fields(data: memoryview | Window, message_kind: MessageKind) -> bytes:
    """Return an encoded message without its large, unused fields.

    If the message is in a file, only the required fields are loaded into memory.

    Raises:
        Damage: A field extends beyond its message, or has an invalid wire type.
    """
    return b"".join(_iterate_needed_bytes(data, message_kind))


def _iterate_needed_bytes(data: memoryview | Window, message_kind: MessageKind) -> Iterator[bytes | memoryview]:
    needed, end = _NEEDED_FIELDS[message_kind], 0
    for number, field_start, start, stop in _iterate_fields(data):
        if stop - start <= SMALL_FIELD_BYTES:
            continue
        yield data[end:field_start]
        end = stop
        submessage = needed.get(number)
        if submessage is not None:
            encoded_submessage = drop_unused_fields(_slice_window(data, start, stop), submessage)
            yield encode_varint(number << 3 | DELIMITED) + encode_varint(len(encoded_submessage))
            yield encoded_submessage
        elif number in needed:
            yield data[field_start:stop]
    yield data[end:]


def _slice_window(data: memoryview | Window, start: int, stop: int) -> memoryview | Window:
    return data.create_window(start, stop) if isinstance(data, Window) else data[start:stop]


def _iterate_fields(data: memoryview | Window) -> Iterator[FieldLocation]:
    """Yield a tuple for each field: its number, its start offset, and the start and end offsets of its value."""
    offset, end = 0, len(data)
    while offset < end:
        field_start = offset
        key, offset = _read_varint(data, offset)
        wire_type = key & 7
        if wire_type not in _WIDTHS:
            raise Damage(f"a field has an invalid wire type (offset {field_start} of {end})")
        size, start = _read_varint(data, offset) if wire_type in (VARINT, DELIMITED) else (0, offset)
        stop = start + (size if wire_type == DELIMITED else _WIDTHS[wire_type])
        if stop > end:
            raise Damage(f"a field extends beyond the end of its message (offset {field_start} of {end})")
        yield key >> 3, field_start, start, stop
        offset = stop


def _read_varint(data: memoryview | Window, offset: int) -> tuple[int, int]:
    """Decode the varint at an offset, and return its value and its end offset."""
    head = data[offset : offset + 2]
    if len(head) and head[0] < MORE:
        return head[0], offset + 1
    if len(head) > 1 and head[1] < MORE:
        return head[0] - MORE | head[1] << 7, offset + 2
    return read_varint(data, offset)


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
        data = data.read(0, size) if size <= LARGE_BYTES else drop_unused_fields(Window(data, 0, size), message_kind)
    elif len(data) > LARGE_BYTES:
        data = drop_unused_fields(memoryview(data), message_kind)
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
