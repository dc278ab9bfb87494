"""Traced runs that ``tf.summary.trace_export`` of TensorFlow 2 wrote: run metadata that are the text of a value."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from tracekit.readers.common.damage import Damage, located
from tracekit.readers.common.protobuf.occurrences import occurrences
from tracekit.readers.tensorflow.fields import buffer_of
from tracekit.readers.tfevents import step_stats
from tracekit.readers.tfevents.events import Graphs, checksums

if TYPE_CHECKING:
    from tracekit.readers.common.protobuf.decoding import Buffer, Mask, Places
    from tracekit.readers.tfevents.events import FileEvents, Points
    from tracekit.readers.tfevents.runs import Run

_AS_WRITTEN = 2
_OF_RUN = {number: name for number, name in step_stats.OTHERS.items() if number != step_stats.FUNCTIONS}
_OF_FUNCTION = {1: "partition graph of a function", 3: "optimized graph of a function"}


def read(run: Run) -> Run:
    """Read the run metadata among the values of a run: what they hold is added to the files that they lie in.

    Raises:
        CorruptTraceError: Some are damaged.
    """
    first = 0
    for file in run.files:
        for points in list(file.points):
            rows = first + np.flatnonzero(run.metadata[first : first + len(points.steps)])
            if len(rows):
                with located(file.path):
                    _take(file, points, rows - first, run.tags(rows), run.of_functions[rows])
            first += len(points.steps)
    return run


def _take(file: FileEvents, points: Points, rows: Places, tags: pa.DictionaryArray, of_functions: Mask) -> None:
    """Take over n run metadata of a batch, which lie in memory as a whole once more."""
    at = np.searchsorted(points.values.owners, rows)
    chosen = points.values.texts.take(pa.array(at))
    buffer, edges = _joined(chosen)
    places = points.offset + points.values.starts[at]
    traced = step_stats.Runs(edges[:-1], edges[1:], tags, points.steps[rows])
    try:
        file.executions += step_stats.read(buffer, traced)
        others, own = np.flatnonzero(~of_functions), np.flatnonzero(of_functions)
        file.counts.update(step_stats.others(buffer, traced.starts[others], traced.stops[others]))
        _take_functions(file, buffer, _some(traced, own), points.times[rows[own]], places[own])
    except Damage as e:
        raise Damage(f"run metadata: {e} (bytes {places[0]} to {places[-1] + edges[-1] - edges[-2]})") from e


def _joined(texts: pa.BinaryArray) -> tuple[Buffer, Places]:
    """Put n texts where they can be walked through, and return the n + 1 places between them."""
    edges = np.frombuffer(texts.buffers()[1], np.int32)[texts.offset :][: len(texts) + 1].astype(np.int64)
    octets = memoryview(texts.buffers()[2] or b"")[edges[0] : edges[-1]]
    return buffer_of(octets), edges - edges[0]


def _take_functions(file: FileEvents, buffer: Buffer, traced: step_stats.Runs, times: Places, places: Places) -> None:
    """Note where the graphs of functions lie, as they were before TensorFlow changed them; count all others.

    Args:
        file: Where to note them.
        buffer: Holds n run metadata.
        traced: Where they lie in it.
        times: n times.
        places: n places in the file where they begin.
    """
    file.counts.update(step_stats.others(buffer, traced.starts, traced.stops, _OF_RUN))
    (functions,) = occurrences(buffer, traced.starts, traced.stops, (step_stats.FUNCTIONS,))
    file.counts.update(step_stats.others(buffer, functions.starts, functions.stops, _OF_FUNCTION))
    rows, starts, stops = step_stats.deeper(buffer, functions.rows, functions.starts, functions.stops, _AS_WRITTEN)
    if len(rows):
        where = starts - traced.starts[rows] + places[rows]
        sums = checksums(buffer, starts, stops)
        file.graphs.append(Graphs(traced.steps[rows], times[rows], where, stops - starts, sums, meta=False))


def _some(traced: step_stats.Runs, rows: Places) -> step_stats.Runs:
    return step_stats.Runs(
        traced.starts[rows], traced.stops[rows], traced.tags.take(pa.array(rows)), traced.steps[rows]
    )
