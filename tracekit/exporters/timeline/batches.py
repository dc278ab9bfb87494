"""Write a file in batches. Several threads format and compress the batches, which are written in order."""

from __future__ import annotations

import contextvars
import os
import zlib
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, NamedTuple, Protocol, Self

import polars as pl

from tracekit.exporters.timeline import kinds
from tracekit.exporters.timeline.kinds import INTEGER, Arg, ArgumentValue

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable
    from concurrent.futures import Future
    from pathlib import Path
    from types import TracebackType

    from tracekit.exporters.timeline.kinds import EventKind
MAX_THREADS = 4


class FileClock(NamedTuple):
    """The conversion of times in the capture to times in the file.

    Attributes:
        shift_ns: Number of ns to add to every time, so that no time is negative.
        end_ns: End of the capture in ns, used as the end of events that were never closed, or 0 if there are none.
        drift: Number of ns to add to every time per ns of that time, so that several traces share one clock.
    """

    shift_ns: int = 0
    end_ns: int = 0
    drift: float = 0.0

    def converted_time_expr(self, time: pl.Expr) -> pl.Expr:
        """Return an expression that converts times in the capture to times in the file, both in ns."""
        drifted = time + (time * self.drift).round().cast(pl.Int64) if self.drift else time
        return drifted + self.shift_ns if self.shift_ns else drifted


def choose_event_columns(kind: EventKind, names: Collection[str]) -> list[str]:
    """Return the columns needed to draw events of a kind, or an empty list if the table lacks a required column.

    Args:
        kind: The kind of the events.
        names: Names of the columns of the table.
    """
    required = [
        *list_position_columns(kind),
        *list_column_names(*value_exprs(get_key_arg(kind)), kind.name, kind.where),
    ]
    if not set(required) <= set(names):
        return []
    args = select_available_args(kind.row_args + kind.repeated_args, names)
    links = [c for c in (*kind.links, *(["api_call_id"] if kind.launched else [])) if c in names]
    return list(dict.fromkeys([*required, *list_column_names(*value_exprs(*args)), *links]))


def get_key_arg(kind: EventKind) -> Arg:
    """Return the first argument of the events of a kind. The argument is never null."""
    return Arg(kind.key, kind.key_values or (ArgumentValue(INTEGER, pl.col(kind.key)),))


def value_exprs(*args: Arg) -> list[pl.Expr]:
    """Return the expressions of all alternative values of the given arguments."""
    return [value.expression for arg in args for value in arg.values]


def list_position_columns(kind: EventKind) -> list[str]:
    """Return the columns that determine the position of an event: the keys of its track, and its start and end."""
    times = list_column_names(kind.start, kind.end) if kind.phase == kinds.SLICE else list_column_names(kind.start)
    return list(dict.fromkeys([*kind.placement.keys, *times]))


def select_available_args(args: tuple[Arg, ...], names: Collection[str]) -> list[Arg]:
    """Return the arguments whose columns are all contained in ``names``."""
    return [arg for arg in args if set(list_column_names(*value_exprs(arg))) <= set(names)]


def list_anomaly_args(kind: EventKind) -> list[Arg]:
    """Return the additional arguments of slices that were never closed or that end before they start."""
    if kind.phase != kinds.SLICE:
        return []
    duration = kind.end - kind.start
    return [
        Arg("open", (ArgumentValue(kinds.TRUE, pl.when(kind.end.is_null()).then(pl.lit(value=True))),)),
        Arg("negative_duration_ns", (ArgumentValue(INTEGER, pl.when(duration < 0).then(duration)),)),
    ]


def list_column_names(*expressions: pl.Expr | None) -> list[str]:
    """Return the names of the columns that the given expressions use."""
    return [name for e in expressions if e is not None for name in e.meta.root_names()]


def start_expr(kind: EventKind, clock: FileClock) -> pl.Expr:
    """Return an expression for the start of events in ns, as written to the file."""
    return clock.converted_time_expr(kind.start)


def duration_expr(kind: EventKind, clock: FileClock) -> pl.Expr:
    """Return an expression for the duration of slices in ns, as written to the file.

    A slice that was never closed ends with the capture. A slice that ends before it starts has the duration 0.
    """
    end = kind.end.fill_null(clock.end_ns)
    duration = (
        clock.converted_time_expr(end) - clock.converted_time_expr(kind.start) if clock.drift else end - kind.start
    )
    return duration.clip(lower_bound=0)


class Compression(Protocol):
    """A compression method. Batches are compressed independently, in any thread, and then concatenated in order."""

    def compress(self, data: memoryview) -> memoryview | bytes:
        """Return a compressed batch. This method may run in any thread."""
        ...

    def finish_batch(self, data: memoryview, compressed: memoryview | bytes) -> memoryview | bytes:
        """Return the bytes to write for the next batch of the file. This method is called in file order."""
        ...

    def finish(self) -> bytes:
        """Return the bytes that complete the file."""
        ...


class NoCompression:
    """Compression method that writes all bytes unchanged."""

    def compress(self, data: memoryview) -> memoryview | bytes:
        """Return the batch unchanged."""
        return data

    def finish_batch(self, _: memoryview, compressed: memoryview | bytes) -> memoryview | bytes:
        """Return the batch unchanged."""
        return compressed

    def finish(self) -> bytes:
        """Return an empty byte string, because an uncompressed file has no trailer."""
        return b""


class GzipCompression:
    """Gzip compression. Batches are compressed independently, and all batches form one gzip member."""

    HEAD = b"\x1f\x8b\x08\0\0\0\0\0\x04\xff"
    """Header of the gzip member: deflate, no file name, no time, fastest level, unknown system."""
    LEVEL = 1

    def __init__(self) -> None:
        self._head = self.HEAD
        self._crc = 0
        self._size = 0

    def compress(self, data: memoryview) -> memoryview | bytes:
        """Return a batch compressed with deflate."""
        deflate = zlib.compressobj(self.LEVEL, zlib.DEFLATED, -zlib.MAX_WBITS)
        return deflate.compress(data) + deflate.flush(zlib.Z_FULL_FLUSH)

    def finish_batch(self, data: memoryview, compressed: memoryview | bytes) -> memoryview | bytes:
        """Return the compressed bytes of the next batch, and update the checksum and the size of the gzip file.

        The first result begins with the header of the file.
        """
        head, self._head = self._head, b""
        self._crc = zlib.crc32(data, self._crc)
        self._size += len(data)
        return head + bytes(compressed) if head else compressed

    def finish(self) -> bytes:
        """Return the end of the gzip file: the last deflate block, the checksum, and the uncompressed size."""
        last = zlib.compressobj(self.LEVEL, zlib.DEFLATED, -zlib.MAX_WBITS).flush()
        return last + self._crc.to_bytes(4, "little") + (self._size % (1 << 32)).to_bytes(4, "little")


class BatchFile:
    """A new file that is written in batches. Files whose names end in ``.gz`` are gzipped.

    Equal batches result in equal bytes.

    Attributes:
        max_waiting_jobs: Maximum number of jobs whose results have not been written yet.
    """

    def __init__(self, path: Path, compression: Compression | None = None) -> None:
        """Open a file for writing.

        Args:
            path: Path of the file.
            compression: The compression if the name does not end in ``.gz``, or None to write uncompressed bytes.
        """
        self._threads = min(MAX_THREADS, os.cpu_count() or 1)
        self.max_waiting_jobs = self._threads + 1
        self._compression = GzipCompression() if path.suffix.lower() == ".gz" else compression or NoCompression()
        self._pool = ThreadPoolExecutor(self._threads, "tracekit-export")
        self._waiting: deque[Future[tuple[memoryview, memoryview | bytes]]] = deque()
        self._file = path.open("wb", buffering=0)

    def write(self, batch: bytes) -> None:
        """Append a batch of bytes to the file."""
        self.write_job_results([lambda: memoryview(batch)])

    def write_job_results(self, jobs: Iterable[Callable[[], memoryview]]) -> None:
        """Append the bytes that jobs (functions) return, in the order of the jobs.

        The jobs run in several threads, and the last ones may still be running when this method returns. The number of
        results in memory exceeds the number of threads by at most one.
        """
        for job in jobs:
            self._waiting.append(self._pool.submit(contextvars.copy_context().run, self._run_job, job))
            if len(self._waiting) > self._threads:
                self._write_batch(*self._waiting.popleft().result())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        with self._file:
            try:
                while kind is None and self._waiting:
                    self._write_batch(*self._waiting.popleft().result())
            finally:
                self._pool.shutdown(cancel_futures=True)
            if kind is None:
                self._file.write(self._compression.finish())

    def _run_job(self, job: Callable[[], memoryview]) -> tuple[memoryview, memoryview | bytes]:
        """Run a job, and return the uncompressed and the compressed bytes of its batch."""
        data = job()
        return data, self._compression.compress(data)

    def _write_batch(self, data: memoryview, compressed: memoryview | bytes) -> None:
        """Write the next batch completely. One ``write`` to an unbuffered file may write only some of the bytes."""
        rest = memoryview(self._compression.finish_batch(data, compressed))
        while rest:
            rest = rest[self._file.write(rest) :]
