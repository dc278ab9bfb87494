"""Decode the run metadata that ``tf.summary.trace_export`` of TensorFlow 2 writes as strings in summary values."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from tracekit.errors import TracekitError, convert_to_printable_path, warn
from tracekit.readers.common.damage import Damage, convert_damage
from tracekit.readers.common.protobuf.decoding import find_occurrences
from tracekit.readers.tensorflow.fields import load_buffer
from tracekit.readers.tfevents import step_stats
from tracekit.readers.tfevents.events import GraphSpans, compute_checksums
from tracekit.system.files import find_special_file_kind

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tracekit.readers.common.protobuf.decoding import Buffer, Int64Array, Mask
    from tracekit.readers.tfevents.events import FileEvents, SummaryPoints
    from tracekit.readers.tfevents.runs import Run

NAME_PART = "tfevents"
"""String that the names of event files contain."""
PROFILE_SUFFIX = ".profile-empty"
"""Suffix of empty event files, which TensorFlow writes so that TensorBoard finds a profile in ``plugins/profile``."""
ROOT_RUN = "."
MAX_ENTRIES, MAX_DEPTH = 1 << 20, 32
DETECTION_ENTRIES = 1 << 15
"""Maximum number of entries that are examined to detect the format of a folder."""
_ORIGINAL_GRAPH = 2
_RUN_FIELDS = {number: name for number, name in step_stats.GRAPH_FIELDS.items() if number != step_stats.FUNCTIONS}
_FUNCTION_FIELDS = {1: "partition graph of a function", 3: "optimized graph of a function"}


def has_event_files(folder: Path) -> bool:
    """Return whether a folder or its subfolders contain a file with the name of an event file.

    At most ``DETECTION_ENTRIES`` entries are examined.
    """
    try:
        return next(_find_event_files(folder, DETECTION_ENTRIES), None) is not None
    except TracekitError:
        return False


def list_files_by_run(path: Path) -> dict[str, list[Path]]:
    """Return the event files in a folder, by run name. Runs and files are sorted by path.

    Args:
        path: A folder, or a single event file. A single file belongs to the run ".".

    Raises:
        TracekitError: The folder contains too many files and folders.
    """
    if not path.is_dir():
        return {ROOT_RUN: [path]}
    files: dict[str, list[Path]] = {}
    for file in _find_event_files(path, MAX_ENTRIES, _warn_about_unreadable_folder):
        files.setdefault(convert_to_printable_path(file.parent.relative_to(path).as_posix()), []).append(file)
    return {run: sorted(files[run]) for run in sorted(files)}


def _find_event_files(
    folder: Path, max_entries: int, on_error: Callable[[OSError], None] | None = None
) -> Iterator[Path]:
    """Yield the event files in a folder. Links to folders and links to files outside of the folder are not followed.

    Raises:
        TracekitError: The folder contains more than ``max_entries`` files and folders.
    """
    entry_count, root = 0, folder.resolve()
    for parent, folders, files in os.walk(folder, onerror=on_error):
        entry_count += len(folders) + len(files)
        if entry_count > max_entries:
            raise TracekitError(
                f"the folder contains more than {max_entries} files and folders",
                path=folder,
                hint="read one of its subfolders",
            )
        if len(Path(parent).relative_to(folder).parts) >= MAX_DEPTH:
            folders.clear()
        for path in (Path(parent, name) for name in files if NAME_PART in name):
            if _is_file_inside(path, root):
                yield path
            elif on_error is not None:
                _warn_about_special_file(path)


def _is_file_inside(file: Path, root: Path) -> bool:
    return file.is_file() and (not file.is_symlink() or file.resolve().is_relative_to(root))


def _warn_about_special_file(path: Path) -> None:
    """Warn about a pipe, socket or device that has the name of an event file."""
    kind = None if path.is_symlink() or not path.exists() else find_special_file_kind(path.stat().st_mode)
    if kind is not None:
        warn(f"this is {kind}, not a regular file, and was skipped", path=path)


def _warn_about_unreadable_folder(error: OSError) -> None:
    warn(f"the folder cannot be read and was skipped: {error.strerror}", path=error.filename)


def add_exported_run_metadata(run: Run) -> Run:
    """Decode the run metadata in the summary values of a run, add its contents to the run, and return the run.

    The run is modified in place: the executions, graphs and counts in the run metadata are added to the files.

    Raises:
        CorruptTraceError: A run metadata message is damaged.
    """
    first = 0
    for file in run.files:
        for points in list(file.points):
            rows = first + np.flatnonzero(run.metadata[first : first + len(points.steps)])
            if len(rows):
                with convert_damage(file.path):
                    _add_run_metadata(file, points, rows - first, run.take_tags(rows), run.has_functions[rows])
            first += len(points.steps)
    return run


def _add_run_metadata(
    file: FileEvents, points: SummaryPoints, rows: Int64Array, tags: pa.DictionaryArray, has_functions: Mask
) -> None:
    """Decode the run metadata in the given rows of a batch, and add its executions, graphs and counts to the file."""
    string_rows = np.searchsorted(points.values.owners, rows)
    encoded = points.values.texts.take(pa.array(string_rows))
    buffer, edges = _concat_messages(encoded)
    offsets = points.offset + points.values.starts[string_rows]
    traced_runs = step_stats.TracedRuns(edges[:-1], edges[1:], tags, points.steps[rows])
    try:
        file.executions += step_stats.iterate_execution_batches(buffer, traced_runs)
        other_rows, function_rows = np.flatnonzero(~has_functions), np.flatnonzero(has_functions)
        file.counts.update(
            step_stats.count_fields(buffer, traced_runs.starts[other_rows], traced_runs.stops[other_rows])
        )
        _add_function_graphs(
            file,
            buffer,
            _select_traced_runs(traced_runs, function_rows),
            points.times[rows[function_rows]],
            offsets[function_rows],
        )
    except Damage as e:
        raise Damage(f"run metadata: {e} (bytes {offsets[0]} to {offsets[-1] + edges[-1] - edges[-2]})") from e


def _concat_messages(encoded: pa.BinaryArray) -> tuple[Buffer, Int64Array]:
    """Copy encoded messages into one buffer, and return the buffer and the offset at which each message starts.

    The last offset is the end of the last message.
    """
    edges = np.frombuffer(encoded.buffers()[1], np.int32)[encoded.offset :][: len(encoded) + 1].astype(np.int64)
    data = memoryview(encoded.buffers()[2] or b"")[edges[0] : edges[-1]]
    return load_buffer(data), edges - edges[0]


def _add_function_graphs(
    file: FileEvents, buffer: Buffer, traced_runs: step_stats.TracedRuns, times: Int64Array, offsets: Int64Array
) -> None:
    """Add the locations of the unoptimized graphs of functions to the file, and count all other graphs.

    Args:
        file: The file to which locations and counts are added.
        buffer: The buffer that contains the run metadata.
        traced_runs: Locations of the run metadata messages in the buffer.
        times: Time of each run metadata message in ns since 1970, or ``NO_TIME``.
        offsets: Offset in the file of each run metadata message.
    """
    file.counts.update(step_stats.count_fields(buffer, traced_runs.starts, traced_runs.stops, _RUN_FIELDS))
    (functions,) = find_occurrences(buffer, traced_runs.starts, traced_runs.stops, (step_stats.FUNCTIONS,))
    file.counts.update(step_stats.count_fields(buffer, functions.starts, functions.stops, _FUNCTION_FIELDS))
    rows, starts, stops = step_stats.find_submessages(
        buffer, functions.rows, functions.starts, functions.stops, _ORIGINAL_GRAPH
    )
    if len(rows):
        starts_in_file = starts - traced_runs.starts[rows] + offsets[rows]
        crcs = compute_checksums(buffer, starts, stops)
        file.graphs.append(
            GraphSpans(traced_runs.steps[rows], times[rows], starts_in_file, stops - starts, crcs, meta=False)
        )


def _select_traced_runs(traced_runs: step_stats.TracedRuns, rows: Int64Array) -> step_stats.TracedRuns:
    return step_stats.TracedRuns(
        traced_runs.starts[rows],
        traced_runs.stops[rows],
        traced_runs.tags.take(pa.array(rows)),
        traced_runs.steps[rows],
    )
