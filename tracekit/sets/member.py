"""Describe the captures of a set, and read what each capture records about its rank in the job."""

from __future__ import annotations

import json
import os
import re
from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tracekit.errors import TracekitError
from tracekit.system.files import FileState
from tracekit.trace import prefetch, read_launch_metadata

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    import polars as pl

    from tracekit.registry.interface import Reader
    from tracekit.registry.source import Source
    from tracekit.system.remote import KeptCopy
    from tracekit.text.names import TableName
    from tracekit.trace import Trace

NCCL = "NCCL"
MAX_RANK = 10_000_000
"""Ranks are numbers below this limit. Larger recorded numbers are ignored."""
_INIT = r"^ncclCommInitRank"
_RANK = r'(?i)"rank"'
_RANK_KEYS, _SIZE_KEYS = ("rank",), ("no. of ranks", "nranks", "number of ranks")
_RANK_VARIABLES = ("RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK")
_DEVICE_TABLES: tuple[TableName, ...] = ("kernels", "memcpys")


@dataclass(frozen=True, slots=True)
class RankEvidence:
    """The rank of a capture according to one source, such as MPI or an environment variable.

    Attributes:
        source: Name of the source in messages, such as ``MPI`` or ``the variable RANK``.
        ranks: Ranks according to the source, ascending. A capture of several processes may have several
            ranks.
        size: Number of ranks of the job according to the source. None if the source does not state it.
    """

    source: str
    ranks: tuple[int, ...]
    size: int | None = None


@dataclass(frozen=True, slots=True)
class RecordedMetadata:
    """The metadata that a capture records about its rank and its job.

    Attributes:
        path: Absolute path of the capture.
        format: Name of the format of the capture.
        evidence: The ranks of the capture according to each source, such as MPI.
        devices: Ids of the GPUs with activities, ascending.
        origin_utc_ns: UTC time of the trace origin in ns since 1970. None if it is not recorded.
        duration_ns: Duration of the capture in ns. None if it is not recorded.
        local_rank: Rank of the process among those of its machine. None if it is not recorded.
        host: Name of the machine, which is private. None if it is not recorded.
        is_read: Whether the capture was opened. If False, only its path and possibly its format and rank are known.
        state: State of the file when it was loaded. None for a folder.
    """

    path: Path
    format: str
    evidence: tuple[RankEvidence, ...] = ()
    devices: tuple[int, ...] = ()
    origin_utc_ns: int | None = None
    duration_ns: int | None = None
    local_rank: int | None = None
    host: str | None = field(default=None, repr=False)
    is_read: bool = True
    state: FileState | None = None


@dataclass(frozen=True, slots=True)
class Member:
    """One capture of a set, with its rank and the properties of the job that it records.

    Attributes:
        path: Absolute path of the capture.
        rank: Rank of the capture in the set.
        format: Name of the format of the capture.
        source: Source of the rank, such as ``MPI``, ``the file name``, or ``given`` if the user specified it.
        world_size: Number of ranks of the job. None if it is not recorded.
        devices: Ids of the GPUs with activities, ascending.
        origin_utc_ns: UTC time of the trace origin in ns since 1970. None if it is not recorded.
        duration_ns: Duration of the capture in ns. None if it is not recorded.
        recorded_ranks: Ranks of the processes, if the capture contains several ranks.
        local_rank: Rank of the process among those of its machine. None if it is not recorded.
        host: Name of the machine, which is private and not shown. None if it is not recorded.
        via: Name of the program that exports the capture before it is read. None if it is read directly.
        is_read: Whether the capture was opened. If False, its recorded metadata except the rank and the number of ranks
            are unknown, and its format may be empty.
        url: URL from which the process that reads the capture downloads it. None for a local file. The URL may contain
            a password and is not shown.
        state: State of the file or folder when the set was loaded. None if it is unknown.
        kept_copy: The copy of the downloaded file, which all reads use. None for a local file.
    """

    path: Path
    rank: int
    format: str
    source: str = "given"
    world_size: int | None = None
    devices: tuple[int, ...] = ()
    origin_utc_ns: int | None = None
    duration_ns: int | None = None
    recorded_ranks: tuple[int, ...] = ()
    local_rank: int | None = None
    host: str | None = field(default=None, repr=False)
    via: str | None = None
    is_read: bool = True
    url: str | None = field(default=None, repr=False)
    state: FileState | None = field(default=None, repr=False)
    kept_copy: KeptCopy | None = field(default=None, repr=False, compare=False)

    @property
    def name(self) -> str:
        """Name of the file or folder."""
        return self.path.name

    def check_unchanged(self) -> None:
        """Check that the file or folder has not changed since the set was loaded.

        Raises:
            TracekitError: The file or folder has changed.
            FileNotFoundError: The file or folder does not exist.
        """
        if self.state is None or self.url is not None:
            return
        if self.state.has_same_content(FileState.read_file(self.path, folders=True)):
            return
        if not self.path.exists():
            raise FileNotFoundError(2, os.strerror(2), str(self.path))
        what = "folder" if self.path.is_dir() else "file"
        raise TracekitError(f"the {what} has changed since the set was loaded", path=self.path, hint="load it again")


def read_rank_before_events(source: Source, reader: Reader) -> RecordedMetadata | None:
    """Return the rank that the profiler recorded before the events of a capture, without reading the events.

    Except for the number of ranks, the result contains no other metadata. It is None if no rank is recorded before the
    events.
    """
    if reader.leading_info is None:
        return None
    evidence = tuple(_read_ranks_from_profiler(reader.leading_info(source)))
    return RecordedMetadata(source.path.absolute(), reader.format, evidence, is_read=False) if evidence else None


def read_recorded_metadata(trace: Trace, path: Path) -> RecordedMetadata:
    """Return the metadata that a capture records about its rank and its job."""
    info = trace.info
    prefetch(
        trace,
        {
            "nvtx_ranges": ["domain", "payload_text"],
            "mpi_ranks": ["rank"],
            "mpi_communicators": ["size"],
            **{table: ["device_id"] for table in _DEVICE_TABLES},
        },
    )
    launch = read_launch_metadata(trace)
    origin = trace._view.plan.source.origin  # noqa: SLF001 - as for exporters
    evidence = (
        *_read_ranks_from_mpi(trace),
        *_read_ranks_from_nccl(trace),
        *_read_ranks_from_profiler(info),
        *_read_ranks_from_environment(launch.variables),
    )
    return RecordedMetadata(
        path.absolute(),
        trace.format,
        evidence,
        _list_device_ids(trace),
        _parse_int(info.get("origin_utc_ns")),
        _parse_int(info.get("duration_ns")),
        launch.variables.get("LOCAL_RANK"),
        launch.host,
        state=getattr(origin, "state", None),
    )


def _read_ranks_from_environment(variables: Mapping[str, int]) -> Iterator[RankEvidence]:
    """Yield the rank and the number of ranks according to each environment variable of a launcher.

    ``SLURM_PROCID`` is used only if no other variable is recorded, because programs of other launchers inherit it.
    """
    stated = [name for name in _RANK_VARIABLES if name in variables] or ["SLURM_PROCID"]
    for name in stated:
        if name in variables:
            yield RankEvidence(
                f"the variable {name}", _select_valid_ranks([variables[name]]), variables.get("WORLD_SIZE")
            )


def _list_device_ids(trace: Trace) -> tuple[int, ...]:
    """Return the ids of the GPUs on which kernels or memory copies ran, ascending."""
    used: set[int] = set()
    for table in _DEVICE_TABLES:
        used.update(_read_non_null_values(trace, table, "device_id").unique())
    return tuple(sorted(used))


def _read_non_null_values(trace: Trace, table: TableName, column: str) -> pl.Series:
    """Return the non-null values of a column of a table."""
    import polars as pl

    return pl.Series(trace.table(table, [column])[column]).drop_nulls()


def _read_ranks_from_mpi(trace: Trace) -> Iterator[RankEvidence]:
    """Yield the MPI ranks of the processes, and the size of the largest communicator."""
    ranks = _read_non_null_values(trace, "mpi_ranks", "rank")
    if len(ranks):
        size: Any = _read_non_null_values(trace, "mpi_communicators", "size").max()
        yield RankEvidence("MPI", _select_valid_ranks(ranks.to_list()), size)


def _read_ranks_from_nccl(trace: Trace) -> Iterator[RankEvidence]:
    """Yield the ranks of the processes in the largest NCCL communicator whose creation was recorded."""
    by_size: dict[int, set[int]] = defaultdict(set)
    for payload in _read_communicator_payloads(trace).unique():
        rank, size = _parse_rank_and_communicator_size(payload)
        if rank is not None and size is not None:
            by_size[size].add(rank)
    if by_size:
        size = max(by_size)
        yield RankEvidence(NCCL, _select_valid_ranks(by_size[size]), size)


def _read_communicator_payloads(trace: Trace) -> pl.Series:
    """Return the NVTX payloads of the calls that created NCCL communicators, in JSON.

    The names of ranges are read only if a payload of NCCL contains a rank, because reading many unique names takes
    long.
    """
    import polars as pl
    import pyarrow as pa

    is_nccl = pl.col("domain").cast(pl.String) == NCCL
    has_rank = pl.col("payload_text").cast(pl.String).str.contains(_RANK)
    ranges = pl.DataFrame(trace.table("nvtx_ranges", ["domain", "payload_text"]))
    selected = ranges.select((is_nccl & has_rank).fill_null(value=False)).to_series()
    if not selected.any():
        return pl.Series(dtype=pl.String)
    texts = trace.table("nvtx_ranges", ["name", "payload_text"]).filter(selected.to_arrow())
    rows = pl.DataFrame({name: texts[name].cast(pa.string()) for name in texts.column_names})
    return rows.filter(pl.col("name").str.contains(_INIT))["payload_text"]


def _parse_rank_and_communicator_size(payload: str) -> tuple[int | None, int | None]:
    """Return the rank and the communicator size in the JSON payload of a call of ``ncclCommInitRank``.

    If either of them is missing or invalid, return ``(None, None)``.
    """
    try:
        values = json.loads(payload)
    except ValueError:
        return None, None
    if not isinstance(values, dict):
        return None, None
    lowered = {str(key).lower(): value for key, value in values.items()}
    rank: Any
    size: Any
    rank, size = (next((lowered[k] for k in keys if k in lowered), None) for keys in (_RANK_KEYS, _SIZE_KEYS))
    if not (_is_rank(rank) and _is_rank(size)):
        return None, None
    return (rank, size) if rank < size else (None, None)


def _read_ranks_from_profiler(info: Mapping[str, str]) -> Iterator[RankEvidence]:
    """Yield the rank and the number of ranks that the PyTorch profiler recorded."""
    rank = _parse_int(info.get("distributed_rank"))
    if rank is not None:
        yield RankEvidence("the profiler", _select_valid_ranks([rank]), _parse_int(info.get("distributed_world_size")))


def _select_valid_ranks(ranks: list[int] | set[int]) -> tuple[int, ...]:
    return tuple(sorted({rank for rank in ranks if _is_rank(rank)}))


def _is_rank(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < MAX_RANK


def _parse_int(text: str | None) -> int | None:
    return int(text) if text is not None and re.fullmatch(r"[0-9]{1,19}", text) else None
