"""Traced runs that ``tf.summary.trace_export`` of TensorFlow 2 wrote: run metadata that are the text of a value."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from tracekit.readers.common.damage import Damage, located
from tracekit.readers.common.protobuf.occurrences import occurrences
from tracekit.readers.tensorflow.fields import buffer_of
from tracekit.readers.tfevents import records, step_stats
from tracekit.readers.tfevents.events import Graphs

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
        CorruptTraceError: Some are damaged, or their file has changed.
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
    """Take over n run metadata of a batch, which lies in memory as a whole once more."""
    at = np.searchsorted(points.values.owners, rows)
    starts, stops = points.values.starts[at], points.values.stops[at]
    begin, size = int(starts[0]), int(stops[-1] - starts[0])
    offset = points.offset + begin
    buffer = buffer_of(records.again(file.path, offset, size))
    traced = step_stats.Runs(starts - begin, stops - begin, tags, points.steps[rows])
    try:
        file.executions += step_stats.read(buffer, traced)
        others, own = np.flatnonzero(~of_functions), np.flatnonzero(of_functions)
        file.counts.update(step_stats.others(buffer, traced.starts[others], traced.stops[others]))
        _take_functions(file, buffer, _some(traced, own), points.times[rows[own]], offset)
    except Damage as e:
        raise Damage(f"run metadata: {e} (bytes {offset} to {offset + size})") from e


def _take_functions(file: FileEvents, buffer: Buffer, traced: step_stats.Runs, times: Places, offset: int) -> None:
    """Note where the graphs of functions lie, as they were before TensorFlow changed them; count all others."""
    file.counts.update(step_stats.others(buffer, traced.starts, traced.stops, _OF_RUN))
    (functions,) = occurrences(buffer, traced.starts, traced.stops, (step_stats.FUNCTIONS,))
    file.counts.update(step_stats.others(buffer, functions.starts, functions.stops, _OF_FUNCTION))
    rows, starts, stops = step_stats.deeper(buffer, functions.rows, functions.starts, functions.stops, _AS_WRITTEN)
    if len(rows):
        file.graphs.append(Graphs(traced.steps[rows], times[rows], starts + offset, stops - starts, meta=False))


def _some(traced: step_stats.Runs, rows: Places) -> step_stats.Runs:
    return step_stats.Runs(
        traced.starts[rows], traced.stops[rows], traced.tags.take(pa.array(rows)), traced.steps[rows]
    )
