"""What the readers of AMD's profilers have in common: units, names, domains, and the conversion to declared tables."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import polars as pl
import pyarrow as pa

from tracekit import schemas
from tracekit.errors import CorruptTraceError, SchemaError
from tracekit.readers.common.damage import Damage
from tracekit.readers.common.kernel_names import shorten_kernel_name
from tracekit.registry.interface import Capture, Undecoded

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence
    from pathlib import Path

    from tracekit.readers.common.sqlite.database import Database, RowFilter

TIMES = ("start_ns", "timestamp_ns", "end_ns")
IDS = {
    "kernels": "kernel_id",
    "memcpys": "memcpy_id",
    "memsets": "memset_id",
    "api_calls": "api_call_id",
    "nvtx_ranges": "range_id",
    "nvtx_marks": "mark_id",
    "counters": "counter_id",
    "profiler_metrics": "profiler_metric_id",
    "memory_events": "memory_event_id",
    "overheads": "overhead_id",
}
"""The column of each table that contains the row number, counted from 1."""
ARGUMENTS = "arguments of API calls"
UNTIMED = "events without valid times"
AXES = ("x", "y", "z")
_GRIDS = {axis: f"grid_size_{axis}" for axis in AXES}
_BLOCKS = {axis: f"workgroup_size_{axis}" for axis in AXES}
LAUNCH = ("private_segment_size", "group_segment_size", *_GRIDS.values(), *_BLOCKS.values())
"""The sizes of a launch, by their names in rocprofiler-sdk."""
_DESCRIPTOR = r"(?: \[clone )?\.kd\]?$"
"""The suffix of the symbol of a kernel descriptor, which rocprof appends to names of kernels."""
_APIS = {"HIP_RUNTIME": "HIP runtime", "HIP_COMPILER": "HIP compiler", "HSA": "HSA"}
_MARKERS = ("MARKER_CORE_API", "MARKER_CORE_RANGE_API")
_OTHER_CATEGORY = 99
_CATEGORIES = {
    "MARKER_CONTROL_API": 8,
    "MARKER_NAME_API": 9,
    "RCCL_API": 14,
    "OMPT": 15,
    "ROCDECODE_API": 18,
    "ROCJPEG_API": 19,
    "ROCDECODE_API_EXT": 23,
}
"""Numbers of the categories of rocprofv3 whose events become ranges."""
_UNNESTED = r"^roctx(?:RangeStart|ProcessRange)"
_PLACES = {"HOST": "Host", "DEVICE": "Device"}
COPY_KINDS = {
    **{f"MEMORY_COPY_{a}_TO_{b}": f"{_PLACES[a]}-to-{_PLACES[b]}" for a in _PLACES for b in _PLACES},
    **{f"{a}_TO_{b}": f"{_PLACES[a]}-to-{_PLACES[b]}" for a in _PLACES for b in _PLACES},
    **{f"Copy{a}To{b}{c}": f"{a}-to-{b}" for a in _PLACES.values() for b in _PLACES.values() for c in ("", "2D")},
}
"""The direction of a copy as nsys names it, by the name of the operation in rocprofv3, rocprof and RPD."""


class RocmCapture(Capture):
    """The tables of a profile of AMD GPUs, which are built when they are used.

    Subclasses build frames that contain declared columns, times as recorded, and no row numbers.
    """

    def __init__(self, path: Path, hint: str) -> None:
        self.path = path
        self.hint = hint
        self._tables: dict[str, pa.Table] = {}
        self.untimed = 0
        """Number of events without valid times, which is known when the time span was measured."""

    def build_table(self, name: str) -> pl.DataFrame:
        """Build a table with the declared columns that the profile contains.

        Raises:
            Damage: The profile is damaged.
        """
        raise NotImplementedError

    def measure_time_span(self) -> tuple[int, int]:
        """Return the earliest and the latest recorded time in ns, or 0 and 0 if the profile has no events."""
        raise NotImplementedError

    def describe_capture(self) -> dict[str, str]:
        """Return the metadata of the profile, except values that may identify a host, user or folder."""
        raise NotImplementedError

    def count(self, name: str) -> int:
        """Return the number of rows of a table."""
        return int(self._read_table(name).num_rows)

    def read(self, name: str, columns: Sequence[str]) -> pa.Table:
        """Return the requested columns of a table.

        Raises:
            CorruptTraceError: The profile is damaged where the table is stored, or contains an invalid value.
        """
        table = self._read_table(name)
        return table.select([column for column in columns if column in table.column_names])

    @functools.cached_property
    def time_span(self) -> tuple[int, int]:
        """The earliest and the latest recorded time in ns."""
        first, last = self.measure_time_span()
        if first < 0:
            raise CorruptTraceError(f"an event has the negative time {first} ns", path=self.path, hint=self.hint)
        return first, last

    def _read_table(self, name: str) -> pa.Table:
        """Build a table when it is used first, with the declared types and times since the trace origin."""
        if name in self._tables:
            return self._tables[name]
        try:
            frame = self._build_capture_info() if name == "capture_info" else self.build_table(name)
            return self._tables.setdefault(name, convert_frame(name, drop_untimed_rows(frame), self.time_span[0]))
        except Damage as e:
            raise CorruptTraceError(str(e), path=self.path, table=name, hint=self.hint) from e
        except SchemaError as e:
            raise CorruptTraceError(e.message, path=self.path, table=name, hint=self.hint) from e

    def _build_capture_info(self) -> pl.DataFrame:
        first, last = self.time_span
        info = self.describe_capture() | {"duration_ns": str(last - first), "origin_clock_ns": str(first)}
        return pl.DataFrame({"name": list(info), "value": list(info.values())}, {"name": pl.String, "value": pl.String})


class BuiltCapture(RocmCapture):
    """A profile whose tables were built when it was opened. A frame is released when it is converted."""

    def __init__(
        self,
        path: Path,
        hint: str,
        frames: dict[str, pl.DataFrame],
        undecoded: Mapping[str, Undecoded],
        info: Mapping[str, str],
    ) -> None:
        super().__init__(path, hint)
        self._frames, self._undecoded, self._info = frames, undecoded, dict(info)
        self._span = find_time_span([*frames.values()])
        self.untimed = sum(count_untimed_rows(frame) for name, frame in frames.items() if name != "profiler_metrics")
        self._names = [*frames, "capture_info"]

    def names(self) -> list[str]:
        """Return the names of the declared tables that may have rows."""
        return self._names

    def build_table(self, name: str) -> pl.DataFrame:
        """Return a table. It can be called once per table."""
        return self._frames.pop(name)

    def count_undecoded(self) -> Mapping[str, Undecoded]:
        """Return the number of events that are in no table, by kind."""
        return {**self._undecoded, **count_as_undecoded({UNTIMED: self.untimed})}

    def measure_time_span(self) -> tuple[int, int]:
        """Return the earliest and the latest recorded time."""
        return self._span

    def describe_capture(self) -> dict[str, str]:
        """Return the metadata of the profile."""
        return self._info


def merge_tables(parts: Sequence[Mapping[str, pl.DataFrame]]) -> dict[str, pl.DataFrame]:
    """Concatenate the tables of several processes, and keep one row per device, process and thread."""
    names = dict.fromkeys(name for part in parts for name in part)
    frames = {n: pl.concat([part[n] for part in parts if n in part], how="diagonal_relaxed") for n in names}
    for name in ("devices", "processes", "threads"):
        key = [*schemas.table(name).key]
        frames[name] = frames[name].drop_nulls(key).unique(key, keep="first", maintain_order=True).sort(key)
    return frames


def count_as_undecoded(counts: Mapping[str, int]) -> dict[str, Undecoded]:
    """Return the numbers of events that are not 0 as undecoded events."""
    return {kind: Undecoded(number) for kind, number in counts.items() if number}


def choose_stream_expr(launches: pl.DataFrame) -> pl.Expr:
    """Return an expression for the stream of activities: that of HIP, unless only several HSA queues were recorded."""
    has_streams = (launches["stream_id"].fill_null(0) != 0).any() or launches["queue_id"].n_unique() <= 1
    first, second = ("stream_id", "queue_id") if has_streams else ("queue_id", "stream_id")
    return pl.coalesce(first, second)


def convert_frame(name: str, frame: pl.DataFrame, origin_ns: int) -> pa.Table:
    """Convert a frame to a declared table: subtract the origin from its times, and number its rows.

    Raises:
        SchemaError: A value does not fit the declared type.
    """
    schema = schemas.table(name)
    times = [column for column in TIMES if column in frame.columns]
    frame = frame.with_columns(pl.col(column) - origin_ns for column in times)
    if times and not frame[times[0]].is_sorted():
        frame = frame.sort(times[0], maintain_order=True)
    if name in IDS:
        frame = frame.with_columns(pl.int_range(1, pl.len() + 1, dtype=pl.Int64).alias(IDS[name]))
    declared = schemas.polars_schema(schema)
    columns = [column for column in declared if column in frame.columns]
    # integers keep their width, so that a value that does not fit is an error of the schema
    strings = (pl.String, pl.Categorical)
    casts = [pl.col(c).cast(declared[c]) if declared[c] in strings else pl.col(c) for c in columns]
    return schemas.conform(frame.select(casts).to_arrow(), schema, columns)


def join_first(left: pl.DataFrame, right: pl.DataFrame, *, left_on: str, right_on: str) -> pl.DataFrame:
    """Add to each row the columns of the first row of another frame whose integer key is equal.

    Damaged files may repeat a key any number of times. The rows are looked up by binary search, which takes no memory
    for a hash table.
    """
    right = right.drop_nulls(right_on)
    keys = right[right_on]
    if not (keys.diff().drop_nulls() > 0).all():
        right = right.sort(right_on, maintain_order=True).filter(pl.col(right_on).is_first_distinct())
        keys = right[right_on]
    columns = right.drop(right_on)
    if not right.height:
        return left.with_columns(pl.lit(None, kind).alias(name) for name, kind in columns.schema.items())
    sought = left[left_on].cast(keys.dtype).fill_null(keys[0])
    places = keys.search_sorted(sought).clip(0, len(keys) - 1)
    is_equal = (keys.gather(places) == sought) & left[left_on].is_not_null()
    places = pl.select(pl.when(is_equal).then(places)).to_series()
    return left.hstack(columns.select(pl.all().gather(places)))


def build_grid_exprs(grids: Mapping[str, str], blocks: Mapping[str, str], *, in_blocks: pl.Expr) -> list[pl.Expr]:
    """Return expressions for the columns of the grid and the block.

    HSA counts the grid in work-items, and the declared grid is counted in blocks (work-groups).

    Args:
        grids: The column with the size of the grid, by axis.
        blocks: The column with the size of a work-group, by axis.
        in_blocks: Whether the recorded size of the grid is counted in blocks already.
    """
    exprs = []
    for axis in AXES:
        grid, block = pl.col(grids[axis]), pl.col(blocks[axis])
        rounded_up = (grid - 1) // pl.when(block > 0).then(block) + 1
        exprs += [
            pl.when(in_blocks).then(grid).otherwise(rounded_up).alias(f"grid_{axis}"),
            block.alias(f"block_{axis}"),
        ]
    return exprs


def correlation_expr(column: str = "correlation_id") -> pl.Expr:
    """Return an expression for a correlation id. rocprofv3 writes 0 for none."""
    return pl.when(pl.col(column) != 0).then(pl.col(column))


def describe_symbols(symbols: pl.DataFrame, *keys: str) -> pl.DataFrame:
    """Return the names and resources of kernels, by the columns of their ids.

    Args:
        symbols: The columns ``kernel_name``, ``display_name``, ``group_segment_size``, ``arch_vgpr_count`` and
            ``accum_vgpr_count``.
        keys: Names of the columns of ids.
    """
    described = symbols.select(
        *keys,
        static="group_segment_size",
        registers_per_thread=pl.sum_horizontal("arch_vgpr_count", "accum_vgpr_count", ignore_nulls=False),
        name=clean_kernel_name_expr(pl.coalesce("display_name", "kernel_name")),
        mangled_name=clean_kernel_name_expr(pl.col("kernel_name")).cast(pl.Categorical),
    )
    return add_short_names(described)


def describe_kernels(rows: pl.DataFrame, *others: str) -> pl.DataFrame:
    """Return the declared columns of launches to which the columns of ``describe_symbols`` were added.

    Args:
        rows: The launches, with the sizes in ``LAUNCH``.
        others: Names of further columns to keep.
    """
    dynamic = pl.col("group_segment_size") - pl.col("static")
    return rows.select(
        *("start_ns", "end_ns", "process_id", "device_id", "stream_id", "correlation_id", *others),
        *("name", "short_name", "mangled_name", "registers_per_thread"),
        *build_grid_exprs(_GRIDS, _BLOCKS, in_blocks=pl.lit(value=False)),
        static_shared_memory_bytes="static",
        dynamic_shared_memory_bytes=pl.when(dynamic >= 0).then(dynamic),
        shared_memory_executed_bytes="group_segment_size",
        local_memory_per_thread_bytes="private_segment_size",
    )


def clean_kernel_name_expr(name: pl.Expr) -> pl.Expr:
    """Return an expression for the names of kernels without the suffix of a kernel descriptor."""
    return name.str.replace(_DESCRIPTOR, "")


def add_short_names(kernels: pl.DataFrame) -> pl.DataFrame:
    """Add the base name of the function of each kernel."""
    names = kernels["name"].unique()
    short = names.map_elements(shorten_kernel_name, pl.String)
    kernels = kernels.with_columns(short_name=pl.col("name").replace_strict(names, short, default=None))
    return kernels.with_columns(pl.col("name", "short_name").cast(pl.Categorical))


def find_api_expr(category: pl.Expr) -> pl.Expr:
    """Return an expression for the API of a category of calls. It is null unless they are calls of HIP or HSA."""
    api = pl.lit(None, pl.String)
    for prefix, name in _APIS.items():
        api = pl.when(category.str.starts_with(prefix)).then(pl.lit(name)).otherwise(api)
    return api


def describe_range_exprs(category: pl.Expr, operation: pl.Expr, number: pl.Expr) -> list[pl.Expr]:
    """Return expressions for the domain and the kind of ranges.

    Markers of ROCTX are in the default domain. Other regions are in a domain with the name of their category.

    Args:
        category: Name of the category, such as MARKER_CORE_API.
        operation: Name of the function that began the range, such as roctxRangePushA.
        number: A number of the category, which becomes the id of its domain.
    """
    is_marker = category.is_in(_MARKERS).fill_null(value=True)
    is_unnested = operation.str.contains(_UNNESTED).fill_null(value=False)
    return [
        pl.when(~is_marker).then(category).alias("domain"),
        pl.when(~is_marker).then(number).otherwise(0).cast(pl.Int64).alias("domain_id"),
        pl.when(is_unnested).then(pl.lit("start_end")).otherwise(pl.lit("push_pop")).alias("kind"),
    ]


def describe_copies(rows: pl.DataFrame) -> pl.DataFrame:
    """Return the declared columns of copies to or from GPUs. Copies between processors are left out.

    Args:
        rows: Copies with the name of their operation as ``kind``, and the numbers of their GPUs as ``src_device_id``
            and ``dst_device_id``, which are null for processors.
    """
    ends = {end: pl.when(pl.col(f"{end}_device_id").is_not_null()).then(pl.lit("Device")) for end in ("src", "dst")}
    return rows.select(
        *("start_ns", "end_ns", "process_id", "stream_id", "correlation_id", "bytes", "src_device_id", "dst_device_id"),
        copy_kind=pl.col("kind").replace_strict(COPY_KINDS, default=None, return_dtype=pl.String),
        device_id=pl.coalesce("dst_device_id", "src_device_id"),
        src_memory_kind=ends["src"],
        dst_memory_kind=ends["dst"],
    ).drop_nulls("device_id")


def describe_allocations(rows: pl.DataFrame, operation: pl.Expr) -> pl.DataFrame:
    """Return the declared columns of allocations of memory of GPUs, by the names of operations in rocprofv3."""
    operation = operation.str.replace("MEMORY_ALLOCATION_", "", literal=True)
    is_allocation, is_virtual = operation.str.ends_with("ALLOCATE"), operation.str.starts_with("VMEM")
    kind = pl.when(is_allocation).then(pl.lit("Allocation"))
    return match_deallocations(
        rows.select(
            *("process_id", "device_id", "bytes", "address"),
            correlation_id=correlation_expr(),
            timestamp_ns="start_ns",
            operation=kind.when(operation.str.ends_with("FREE")).then(pl.lit("Deallocation")),
            memory_kind=pl.when(is_virtual).then(pl.lit("Virtual")).otherwise(pl.lit("Device")),
        )
    )


def match_deallocations(events: pl.DataFrame) -> pl.DataFrame:
    """Add to deallocations the size, kind and device of the latest allocation at the same address.

    Events without an address, a size, a device or a known operation are left out.
    """
    events = events.drop_nulls(["address", "timestamp_ns", "operation"]).sort("timestamp_ns", maintain_order=True)
    events = events.with_columns(owner=pl.col("process_id").fill_null(-1))
    is_allocation = pl.col("operation") == "Allocation"
    columns = ("device_id", "bytes", "memory_kind")
    allocations = events.filter(is_allocation)
    deallocations = events.filter(~is_allocation).drop(columns)
    matched = deallocations.join_asof(
        allocations.select("owner", "address", "timestamp_ns", *columns),
        on="timestamp_ns",
        by=["owner", "address"],
        check_sortedness=False,
    )
    return pl.concat([allocations, matched.select(allocations.columns)]).drop_nulls(["device_id", "bytes"])


def read_frame(
    database: Database,
    table: str | None,
    types: Mapping[str, pa.DataType],
    small: Collection[str] = (),
    where: RowFilter | None = None,
) -> pl.DataFrame:
    """Read columns of a table of a database, with the given types. Columns that the table lacks are null.

    Args:
        database: The database.
        table: Name of the table, or None for a table without rows.
        types: Arrow types by name of the column.
        small: Names of integer columns that are stored with as few bits as their values need.
        where: Filter of the rows.

    Raises:
        CorruptTraceError: The table is damaged, or a value does not have the requested type.
    """
    where = where if table and where and where.column in database.columns.get(table, ()) else None
    present = {} if table is None else {c: t for c, t in types.items() if c in database.columns.get(table, ())}

    def convert(columns: dict[str, Any]) -> pl.DataFrame:
        frame = pl.DataFrame(pl.from_arrow(pa.table(columns)))
        return frame.with_columns(frame[name].shrink_dtype() for name in small if name in columns)

    empty = pl.DataFrame(pl.from_arrow(pa.table({c: pa.nulls(0, kind) for c, kind in types.items()})))
    if table is None or not present:
        return empty
    batches = [batch for batch, _ in database.map_column_batches(table, present, where, convert)]
    frame = pl.concat(batches, how="vertical_relaxed")
    missing = [pl.lit(None, empty.schema[name]).alias(name) for name in types if name not in present]
    return frame.with_columns(missing).select(*types)


def drop_untimed_rows(frame: pl.DataFrame) -> pl.DataFrame:
    """Return the rows without those that start at 0, which stands for an unknown time, or end before they start."""
    start = next((c for c in ("start_ns", "timestamp_ns") if c in frame.columns), None)
    if start is None:
        return frame
    is_untimed = pl.col(start) == 0
    if "end_ns" in frame.columns:
        is_untimed |= pl.col("end_ns") < pl.col(start)
    return frame.filter(~is_untimed.fill_null(value=False))


def count_untimed_rows(frame: pl.DataFrame) -> int:
    """Return the number of rows that ``drop_untimed_rows`` leaves out."""
    return frame.height - drop_untimed_rows(frame).height


def number_category_expr() -> pl.Expr:
    """Return an expression for the number of the column ``category``, for formats that do not contain it."""
    return pl.col("category").replace_strict(_CATEGORIES, default=_OTHER_CATEGORY, return_dtype=pl.Int64)


def find_time_span(frames: Sequence[pl.DataFrame]) -> tuple[int, int]:
    """Return the earliest and the latest valid time in the columns of frames, or 0 and 0 if there is none."""
    bounds: list[Any] = []
    for frame in map(drop_untimed_rows, frames):
        for column in (c for c in frame.columns if c in TIMES):
            bounds += [frame[column].min(), frame[column].max()]
    known = [bound for bound in bounds if isinstance(bound, int)]
    return (min(known), max(known)) if known else (0, 0)
