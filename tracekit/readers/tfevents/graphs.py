"""Graphs that event files hold, read when they are asked for; what is there several times is read once."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, NamedTuple

from tracekit.errors import warn
from tracekit.readers.common.damage import located
from tracekit.readers.common.protobuf.wire import Message
from tracekit.readers.tensorflow import graph
from tracekit.readers.tfevents import records

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from tracekit.readers.tfevents.runs import Run

MAX_GRAPHS = 1000
_GRAPH_OF_META = 2


class Place(NamedTuple):
    """Where a graph lies: its file, its first byte, its size, its CRC-32, and whether it is a meta graph."""

    path: Path
    start: int
    size: int
    checksum: int
    meta: bool


def read(runs: Sequence[Run]) -> graph.Graph:
    """Read the graphs of runs.

    Raises:
        CorruptTraceError: One is damaged.
        TracekitError: Its file changed.
    """
    return graph.concat(made for run in runs for made in _of_run(run) if made.nodes.num_rows)


def _of_run(run: Run) -> Iterator[graph.Graph]:
    """Read the graphs of a run: those that differ, graphs before meta graphs."""
    places = sorted(_places(run), key=lambda place: place.meta)
    if len(places) > MAX_GRAPHS:
        warn(f"holds {len(places)} graphs: the first {MAX_GRAPHS} are read", path=places[0].path)
    different: dict[bytes, tuple[Place, bytes | None]] = {}
    for place in places[:MAX_GRAPHS]:
        octets = records.again(place.path, place.start, place.size, place.checksum)
        different.setdefault(_digest(octets, place), (place, octets) if len(places) == 1 else (place, None))
    for number, (place, kept) in enumerate(different.values(), 1):
        octets = records.again(place.path, place.start, place.size, place.checksum) if kept is None else kept
        where = f"the graph at byte {place.start}"
        with located(place.path, graph.NODES):
            if place.meta:
                yield graph.read_meta(octets, where=where, run=run.name)
            else:
                label = f"graph {number}" if len(different) > 1 else ""
                yield graph.read(octets, where=where, graph=label, run=run.name)


def _places(run: Run) -> Iterator[Place]:
    for file in run.files:
        for found in file.graphs:
            for place in zip(found.starts.tolist(), found.sizes.tolist(), found.checksums, strict=True):
                yield Place(file.path, *place, found.meta)


def _digest(octets: bytes, place: Place) -> bytes:
    """Tell graphs apart; a meta graph by the graph in it."""
    inner: bytes | memoryview = octets
    if place.meta:
        with located(place.path, graph.NODES):
            inner = Message(memoryview(octets)).part(_GRAPH_OF_META)
    return hashlib.sha256(inner).digest()
