"""A graph of TensorFlow, taken apart into nodes and edges, the bodies of its functions among them."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tracekit import schemas
from tracekit.files import InputFile, Window
from tracekit.readers.common.columns import compact, named
from tracekit.readers.common.damage import Damage
from tracekit.readers.common.protobuf.decoding import decode
from tracekit.readers.common.protobuf.occurrences import Occurrences, occurrences
from tracekit.readers.tensorflow import attributes, payloads
from tracekit.readers.tensorflow.edges import edges as edges_of
from tracekit.readers.tensorflow.fields import MOST, buffer_of, column
from tracekit.readers.tensorflow.payloads import Within

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from tracekit.readers.common.protobuf.decoding import Buffer, Places

NODES, EDGES = "graph_nodes", "graph_edges"
MAX_GRAPHS = 64
_NODE, _LIBRARY, _VERSIONS = 1, 2, 4
_FUNCTION, _SIGNATURE, _BODY = 1, 1, 3
_NAME, _OP, _INPUT, _DEVICE, _ATTRIBUTE = 1, 2, 3, 4, 5
_INFO, _GRAPH, _META_GRAPH = 1, 2, 2
_TAGS, _VERSION = 4, 5


@dataclass(frozen=True, slots=True)
class Graph:
    """A graph, or several.

    Attributes:
        nodes: A row a node, with the columns of ``graph_nodes``.
        edges: A row an input of a node, with the columns of ``graph_edges``.
        versions: Versions of TensorFlow that the file names.
        dangling: Inputs, but for those in functions, that come from no node of the graph.
    """

    nodes: pa.Table
    edges: pa.Table
    versions: tuple[str, ...] = ()
    dangling: int = 0


@dataclass(frozen=True, slots=True)
class _Bodies:
    """Where nodes are: those of the graph, then those of its functions, which are numbered from 1."""

    owners: Places
    starts: Places
    stops: Places
    labels: pa.Array
    functions: pa.Array


def read(octets: bytes | memoryview | InputFile, *, where: str, graph: str = "", run: str | None = None) -> Graph:
    """Take a ``GraphDef`` apart.

    Args:
        octets: The message, or the file that holds it.
        where: What it is, for the error.
        graph: What its nodes have as ``graph``.
        run: What its nodes have as ``run``.

    Raises:
        Damage: It is none, or breaks off.
    """
    with _told(where):
        buffer, size = _buffer(octets, Within.GRAPH)
        return _graph(buffer, 0, size, graph, run)


def read_meta(octets: bytes | memoryview | InputFile, *, where: str, run: str | None = None) -> Graph:
    """Take a ``MetaGraphDef`` apart, as ``read`` does; its tags are the name of the graph.

    Raises:
        Damage: It is none, or breaks off.
    """
    with _told(where):
        buffer, size = _buffer(octets, Within.META_GRAPH)
        return _meta(buffer, np.zeros(1, np.int64), np.full(1, size), run)


def read_saved_model(octets: bytes | memoryview | InputFile, *, where: str) -> Graph:
    """Take a ``SavedModel`` apart: the nodes and edges of its graphs, one after the other.

    Raises:
        Damage: It is none, or breaks off.
    """
    with _told(where):
        buffer, size = _buffer(octets, Within.SAVED_MODEL)
        (found,) = occurrences(buffer, np.zeros(1, np.int64), np.full(1, size), (_META_GRAPH,))
        return _meta(buffer, found.starts, found.stops, None)


def concat(graphs: Iterable[Graph]) -> Graph:
    """Put graphs one after the other: nodes and edges are numbered through."""
    nodes, edges, versions, first, begin, dangling = [], [], list[str](), 0, 0, 0
    for graph in graphs:
        nodes.append(_moved(graph.nodes, {"node_id": first}))
        edges.append(_moved(graph.edges, {"edge_id": begin, "source": first, "target": first}))
        versions += graph.versions
        dangling += graph.dangling
        first, begin = first + graph.nodes.num_rows, begin + graph.edges.num_rows
    if not nodes:
        return Graph(_empty(NODES), _empty(EDGES))
    return Graph(pa.concat_tables(nodes), pa.concat_tables(edges), tuple(dict.fromkeys(versions)), dangling)


def _moved(table: pa.Table, by: dict[str, int]) -> pa.Table:
    for name, offset in by.items():
        if offset:
            place = table.schema.get_field_index(name)
            table = table.set_column(place, table.schema.field(place), pc.add(table[name], offset))
    return table


def _empty(name: str) -> pa.Table:
    return schemas.empty(schemas.table(name)).replace_schema_metadata()


@contextlib.contextmanager
def _told(where: str) -> Iterator[None]:
    try:
        yield
    except Damage as e:
        raise Damage(f"{where}: {e}") from e


def _buffer(octets: bytes | memoryview | InputFile, message: Within) -> tuple[Buffer, int]:
    """Put a message where it can be walked through, and say how large it is there."""
    if isinstance(octets, InputFile):
        size = octets.size
        octets = octets.read(0, size) if size <= payloads.LARGE else payloads.without(Window(octets, 0, size), message)
    elif len(octets) > payloads.LARGE:
        octets = payloads.without(memoryview(octets), message)
    if len(octets) > MOST:
        raise Damage(f"{len(octets)} bytes are more than a message of protobuf has")
    return buffer_of(octets), len(octets)


def _meta(buffer: Buffer, starts: Places, stops: Places, run: str | None) -> Graph:
    """Take the graphs of meta graphs apart."""
    infos, graphs = occurrences(buffer, starts, stops, (_INFO, _GRAPH))
    if len(starts) > MAX_GRAPHS or len(graphs) > MAX_GRAPHS:
        raise Damage(f"{max(len(starts), len(graphs))} meta graphs are more than {MAX_GRAPHS}")
    (tags,) = occurrences(buffer, infos.starts, infos.stops, (_TAGS,))
    of_graph: dict[int, list[str]] = {}
    for info, start, stop in zip(tags.rows, tags.starts, tags.stops, strict=True):
        of_graph.setdefault(int(infos.rows[info]), []).append(_text(buffer, start, stop))
    parts = []
    for row, start, stop in zip(graphs.rows, graphs.starts, graphs.stops, strict=True):
        parts.append(_graph(buffer, int(start), int(stop), ",".join(of_graph.get(int(row), ())), run))
    made = concat(parts)
    version = decode(buffer, infos.starts, infos.stops, (_VERSION,)).get(_VERSION)
    known = column(buffer, version, len(infos)).drop_null().to_pylist()
    return replace(made, versions=tuple(dict.fromkeys(v for v in known if v)))


def _text(buffer: Buffer, start: int, stop: int) -> str:
    return buffer.octets[start:stop].tobytes().decode("utf-8", "replace")


def _graph(buffer: Buffer, start: int, stop: int, graph: str, run: str | None) -> Graph:
    bodies = _bodies(buffer, start, stop, graph)
    rows = len(bodies.starts)
    fields = decode(buffer, bodies.starts, bodies.stops, (_NAME, _OP, _DEVICE))
    names, ops, devices = (column(buffer, fields.get(n), rows) for n in (_NAME, _OP, _DEVICE))
    names, ops = names.fill_null(""), ops.fill_null("")
    inputs, given = occurrences(buffer, bodies.starts, bodies.stops, (_INPUT, _ATTRIBUTE))
    found = attributes.read(buffer, given, rows)
    called = np.flatnonzero(pc.is_in(ops, bodies.functions).to_numpy(zero_copy_only=False))
    runs = pa.array([None if run is None else 0] * min(rows, 1), pa.int32())
    runs = named(runs.take(pa.array(np.zeros(rows, np.int64))), pa.array([run], pa.string()))
    labels = compact(pa.array(bodies.owners), bodies.labels)
    columns = {
        "node_id": pa.array(np.arange(rows)),
        "run": runs,
        "graph": labels,
        "name": names,
        "op": ops,
        "device": pc.if_else(pc.equal(devices, ""), None, devices),
        "scope": _scopes(names),
        "function": found.functions(called, ops.take(pa.array(called))),
        **found.own(),
        "attributes": found.json(),
    }
    links = edges_of(buffer, inputs, bodies.owners, columns)
    lost = links["source"].is_null().to_numpy(zero_copy_only=False) & (bodies.owners[inputs.rows] == 0)
    return Graph(_table(NODES, columns), _table(EDGES, links), dangling=int(lost.sum()))


def _bodies(buffer: Buffer, start: int, stop: int, graph: str) -> _Bodies:
    """Find the nodes of a graph and of the functions of its library."""
    top = np.array([start]), np.array([stop])
    nodes, libraries = occurrences(buffer, *top, (_NODE, _LIBRARY))
    (functions,) = occurrences(buffer, libraries.starts, libraries.stops, (_FUNCTION,))
    (inside,) = occurrences(buffer, functions.starts, functions.stops, (_BODY,))
    names = _signatures(buffer, functions)
    labels = pc.binary_join_element_wise(f"{graph}, function" if graph else "function", names, " ")
    return _Bodies(
        np.concatenate((np.zeros(len(nodes), np.int64), inside.rows + 1)),
        np.concatenate((nodes.starts, inside.starts)),
        np.concatenate((nodes.stops, inside.stops)),
        pa.concat_arrays([pa.array([graph], pa.string()), labels]),
        names,
    )


def _signatures(buffer: Buffer, functions: Occurrences) -> pa.Array:
    """Names of functions."""
    (signatures,) = occurrences(buffer, functions.starts, functions.stops, (_SIGNATURE,))
    name = decode(buffer, signatures.starts, signatures.stops, (_NAME,)).get(_NAME)
    found = column(buffer, name, len(signatures))
    first = np.searchsorted(signatures.rows, np.arange(len(functions)))
    absent = np.searchsorted(signatures.rows, np.arange(len(functions)), "right") == first
    return found.take(pa.array(first, mask=absent)).fill_null("")


def _scopes(names: pa.Array) -> pa.Array:
    """Names up to their last slash; null where there is none."""
    found = pc.extract_regex(names, r"(?s)^(?P<scope>.*)/")
    return pc.struct_field(found, "scope")


def _table(name: str, columns: dict[str, pa.Array]) -> pa.Table:
    """Put columns in the declared order, texts that repeat as dictionaries."""
    declared = schemas.table(name)
    plain = {c.name: c.type for c in declared.columns}
    made = {
        n: columns[n].dictionary_encode() if kind == "dictionary" and not _encoded(columns[n]) else columns[n]
        for n, kind in plain.items()
    }
    return pa.table(made)


def _encoded(column: pa.Array) -> bool:
    return bool(pa.types.is_dictionary(column.type))
