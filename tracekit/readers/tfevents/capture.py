"""Event files as declared tables. They are read at once; columns are made, and graphs are read, when asked for."""

from __future__ import annotations

import functools
from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tracekit import schemas
from tracekit.errors import CorruptTraceError, MissingTableError, TracekitError, UnknownFormatError, warn
from tracekit.files import CHANGED_HINT
from tracekit.readers.common.columns import compact
from tracekit.readers.common.damage import located
from tracekit.readers.tensorflow.graph import EDGES, NODES
from tracekit.readers.tfevents import events, exported, folders, graphs, step_stats
from tracekit.readers.tfevents.events import FileEvents, NoEvents
from tracekit.readers.tfevents.records import Rooms
from tracekit.readers.tfevents.runs import Run
from tracekit.registry import UNKNOWN, Capture, Source, describe
from tracekit.threads import in_order

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from tracekit.readers.tensorflow.graph import Graph

SCALARS, TEXTS, STEPS, INFO = "scalars", "texts", "step_stats", "capture_info"
THREADS = 4
_IDS = {SCALARS: "scalar_id", TEXTS: "text_id", STEPS: "execution_id"}
_AGAIN = "copy it again from where it was written"


def read(source: Source) -> EventsCapture:
    """Read an event file, or those below a folder.

    Raises:
        CorruptTraceError: A file is damaged, or none can be read.
        MissingTableError: There is only the mark of a profile.
        UnknownFormatError: The records are no events.
        TracekitError: A file cannot be read.
    """
    path = source.path
    paths = folders.runs(path)
    if not paths:
        hint = "give an event file, events.out.tfevents.*, or a folder of them"
        raise CorruptTraceError("a folder without event files", path=path, hint=hint)
    rooms = Rooms()
    jobs = [(run, file) for run, files in paths.items() for file in files]
    found = zip(jobs, in_order(lambda job: _one(job[1], rooms), jobs, THREADS), strict=True)
    by_run: dict[str, list[FileEvents]] = {run: [] for run in paths}
    for (run, file), made in found:
        if isinstance(made, FileEvents):
            _tell(made)
            by_run[run].append(made)
        elif file == path:
            raise made.kind(made.what, path=path, hint=made.hint)
        else:
            warn(f"{made.what}: left out", path=file)
    runs = [exported.read(Run(run, files)) for run, files in by_run.items() if files]
    _check(path, runs, [file for _, file in jobs])
    return EventsCapture(path, runs)


class Refusal(NamedTuple):
    """Why a file is none of events: the error that says so if it is the only one, and its text."""

    kind: type[CorruptTraceError | UnknownFormatError]
    what: str
    hint: str


def _one(path: Path, rooms: Rooms) -> FileEvents | Refusal:
    """Read a file, if it is one of events."""
    try:
        with located(path):
            made = events.read(path, rooms)
    except NoEvents:
        what = "a TFRecord file, but its records are no events of TensorBoard"
        return Refusal(UnknownFormatError, what, "give files named events.out.tfevents.*")
    except FileNotFoundError as e:
        raise TracekitError("was removed while it was read", path=path, hint=CHANGED_HINT) from e
    if made.records or not made.damage:
        return made
    what, hint = describe(Source(path))
    if what == UNKNOWN:
        what, hint = "no event file: it does not begin with a record", _AGAIN
    return Refusal(CorruptTraceError, what, hint)


def _tell(made: FileEvents) -> None:
    """Warn of what could not be read."""
    rest = made.size - made.end
    if made.damage:
        warn(
            f"{made.damage} at byte {made.end}: the {made.records} records before it are read, {rest} bytes are not",
            path=made.path,
        )
    elif rest:
        warn(
            f"ends within a record, as a file does that is still being written: {made.records} records are read, "
            f"the last {rest} bytes are not",
            path=made.path,
        )


def _check(path: Path, runs: Sequence[Run], files: Sequence[Path]) -> None:
    """Refuse what holds nothing for a reason that can be told."""
    if not runs:
        what = f"of {len(files)} files that are named as event files, none is one"
        raise CorruptTraceError(what, path=path, hint=_AGAIN)
    held = any(f.points or f.executions or f.graphs or f.counts for run in runs for f in run.files)
    if not held and all(file.name.endswith(folders.PROFILE_MARK) for file in files):
        raise MissingTableError(
            "holds no events: it marks a profile of TensorFlow's profiler, in plugins/profile, which is not read",
            path=path,
            hint="give an event file with scalars, graphs or run metadata, or the trace of another profiler",
        )


class EventsCapture(Capture):
    """Event files, by run.

    Attributes:
        path: The file or folder.
        runs: What each run holds.
    """

    def __init__(self, path: Path, runs: Sequence[Run]) -> None:
        self.path = path
        self.runs = runs

    def names(self) -> list[str]:
        """Names of the tables that event files may hold rows for."""
        return [SCALARS, TEXTS, STEPS, NODES, EDGES, INFO]

    def count(self, name: str) -> int:
        """Number of rows of a table."""
        if name in (SCALARS, TEXTS, STEPS):
            return sum(self._counts(name))
        return int(self.read(name, schemas.table(name).names[:1]).num_rows)

    def read(self, name: str, columns: Sequence[str]) -> pa.Table:
        """Read some columns of a table.

        Raises:
            CorruptTraceError: A graph is damaged.
        """
        if name in (NODES, EDGES):
            made: pa.Table = (self._graphs.nodes if name == NODES else self._graphs.edges).select(list(columns))
            return made
        if name == INFO:
            return pa.table({c: [row[c] for row in self._facts()] for c in columns})
        return self._joined(name, columns)

    def count_undecoded(self) -> Mapping[str, int]:
        """Return the number of events, by name, that the file holds and no table has."""
        return self.undecoded

    @functools.cached_property
    def undecoded(self) -> dict[str, int]:
        """What the files hold and no table does, by name."""
        counts: Counter[str] = Counter()
        for run in self.runs:
            counts.update(run.undecoded())
        return dict(counts)

    @functools.cached_property
    def _graphs(self) -> Graph:
        return graphs.read(self.runs)

    @functools.cached_property
    def _origin(self) -> int:
        return min((f.first for run in self.runs for f in run.files if f.first is not None), default=0)

    def _counts(self, name: str) -> list[int]:
        if name == STEPS:
            return [sum(e.rows for f in run.files for e in f.executions) for run in self.runs]
        return [len(run.scalars if name == SCALARS else run.texts) for run in self.runs]

    def _joined(self, name: str, columns: Sequence[str]) -> pa.Table:
        """Put the rows of runs one after the other; numbers and runs are of the whole."""
        counts = self._counts(name)
        schema = schemas.arrow_schema(schemas.table(name), columns)
        own = [c for c in columns if c not in ("run", _IDS[name])]
        pieces = [piece for run in self.runs for piece in self._pieces(name, run, own)]
        made: dict[str, pa.Array | pa.ChunkedArray] = {}
        for field in schema:
            if field.name == "run":
                made["run"] = _runs(self.runs, counts)
            elif field.name == _IDS[name]:
                made[field.name] = pa.array(np.arange(1, sum(counts) + 1))
            else:
                made[field.name] = pa.chunked_array([_typed(p, field) for p in pieces], field.type)
        return pa.table(made)

    def _pieces(self, name: str, run: Run, own: Sequence[str]) -> Iterator[Mapping[str, pa.Array]]:
        if name == SCALARS:
            yield run.scalar_columns(own)
        elif name == TEXTS:
            yield run.text_columns(own)
        else:
            for made in (e for f in run.files for e in f.executions):
                empty = pa.nulls(made.rows)
                found = {c: made.columns.get(c, empty) for c in own}
                yield {c: self._since_origin(v) if c in step_stats.TIMES else v for c, v in found.items()}

    def _since_origin(self, times: pa.Array) -> pa.Array:
        return pc.subtract(times, self._origin) if pa.types.is_integer(times.type) else times

    def _facts(self) -> list[dict[str, str]]:
        files = [f for run in self.runs for f in run.files]
        writers = dict.fromkeys(f.writer for f in files if f.writer)
        versions = dict.fromkeys(f.version for f in files if f.version)
        last = max((f.last for f in files if f.last is not None), default=None)
        facts = {"tool": ", ".join(writers) or "TensorFlow events", "schema_version": ", ".join(versions)}
        facts["runs"] = str(len(self.runs))
        if last is not None:
            facts |= {"origin_utc_ns": str(self._origin), "duration_ns": str(last - self._origin)}
        return [{"name": name, "value": value} for name, value in facts.items() if value]


def _runs(runs: Sequence[Run], counts: Sequence[int]) -> pa.DictionaryArray:
    codes = np.repeat(np.arange(len(runs), dtype=np.int32), counts)
    return compact(pa.array(codes), pa.array([run.name for run in runs], pa.string()))


def _typed(piece: Mapping[str, pa.Array], field: pa.Field) -> pa.Array:
    """Return a column of a piece in its declared type."""
    found = piece[field.name]
    if pa.types.is_dictionary(field.type) and pa.types.is_dictionary(found.type):
        return found
    return found.cast(field.type)
