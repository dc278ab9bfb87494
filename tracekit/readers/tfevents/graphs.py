"""Decode the graphs in event files on demand. A graph that occurs several times is decoded only once."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, NamedTuple

from tracekit.errors import warn
from tracekit.readers.common.damage import convert_damage
from tracekit.readers.common.protobuf.decoding import Message
from tracekit.readers.tensorflow import graph
from tracekit.readers.tfevents import records

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from tracekit.readers.tfevents.runs import Run

MAX_GRAPHS = 1000
_GRAPH_FIELD = 2


class GraphLocation(NamedTuple):
    """The location of a graph in a file.

    Attributes:
        path: Path of the file.
        start: Offset at which the graph starts.
        size: Size of the graph in bytes.
        checksum: CRC-32 of the bytes of the graph.
        meta: Whether the graph is a meta graph.
    """

    path: Path
    start: int
    size: int
    checksum: int
    meta: bool


def read_merged_graph(runs: Sequence[Run]) -> graph.Graph:
    """Decode the graphs of all runs, and concatenate them into one graph.

    Raises:
        CorruptTraceError: A graph is damaged.
        TracekitError: A file has changed since it was opened.
    """
    return graph.concat_graphs(
        decoded for run in runs for decoded in _iterate_distinct_graphs(run) if decoded.nodes.num_rows
    )


def _iterate_distinct_graphs(run: Run) -> Iterator[graph.Graph]:
    """Yield the distinct graphs of a run. Plain graphs precede meta graphs."""
    locations = sorted(_iterate_graph_locations(run), key=lambda location: location.meta)
    if len(locations) > MAX_GRAPHS:
        warn(
            f"the run contains {len(locations)} graphs, but tracekit reads only the first {MAX_GRAPHS}",
            path=locations[0].path,
        )
    distinct: dict[bytes, tuple[GraphLocation, bytes | None]] = {}
    for location in locations[:MAX_GRAPHS]:
        data = records.reread_section(location.path, location.start, location.size, location.checksum)
        distinct.setdefault(
            _compute_graph_digest(data, location), (location, data) if len(locations) == 1 else (location, None)
        )
    for number, (location, cached) in enumerate(distinct.values(), 1):
        data = (
            records.reread_section(location.path, location.start, location.size, location.checksum)
            if cached is None
            else cached
        )
        label = f"the graph at byte {location.start}"
        with convert_damage(location.path, graph.NODES):
            if location.meta:
                yield graph.read_meta_graph(data, label=label, run=run.name)
            else:
                name = f"graph {number}" if len(distinct) > 1 else ""
                yield graph.read_graph(data, label=label, graph=name, run=run.name)


def _iterate_graph_locations(run: Run) -> Iterator[GraphLocation]:
    for file in run.files:
        for spans in file.graphs:
            for bounds in zip(spans.starts.tolist(), spans.sizes.tolist(), spans.checksums, strict=True):
                yield GraphLocation(file.path, *bounds, spans.meta)


def _compute_graph_digest(data: bytes, location: GraphLocation) -> bytes:
    """Return the SHA-256 digest of a graph. For a meta graph, return the digest of the graph that it contains."""
    graph_bytes: bytes | memoryview = data
    if location.meta:
        with convert_damage(location.path, graph.NODES):
            graph_bytes = Message(memoryview(data)).bytes_value(_GRAPH_FIELD)
    return hashlib.sha256(graph_bytes).digest()
