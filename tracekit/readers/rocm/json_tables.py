"""Build declared tables from a JSON file of rocprofv3, which is read in batches when it is opened."""

from __future__ import annotations

import json
import re
from collections import Counter
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np
import polars as pl
import pyarrow as pa

from tracekit.errors import CorruptTraceError, format_count, get_first_line_of_message, warn
from tracekit.readers.common.budget import CELL_BYTES, Budget
from tracekit.readers.common.damage import Damage, convert_damage
from tracekit.readers.common.json.document import DocumentFormat
from tracekit.readers.common.json.nested import NestedDocument
from tracekit.readers.common.json.scanner import NESTED, JsonCells, JsonScanner
from tracekit.readers.common.json.stream import Stream
from tracekit.readers.rocm import DATABASE_MAGICS, tables
from tracekit.readers.rocm.agents import GPU_TYPE, build_devices

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tracekit.registry.source import Source

Frames: TypeAlias = dict[str, pl.DataFrame]
HINT = "copy the file again from where rocprofv3 wrote it, or record it again"
_TOOL = "rocprofiler-sdk-tool"
_PROCESS_ID = f"{_TOOL}.metadata.pid"
_FACTOR = 1 << 32
_SPAN = ("kind", "operation", "thread_id", "correlation_id.internal", "start_timestamp", "end_timestamp")
_LAUNCH = (
    *("agent_id.handle", "queue_id.handle", "kernel_id", "dispatch_id", "private_segment_size", "group_segment_size"),
    *(f"{name}.{axis}" for name in ("workgroup_size", "grid_size") for axis in tables.AXES),
)
_AGENT = (
    *("type", "node_id", "logical_node_type_id", "cu_count", "wave_front_size", "max_waves_per_cu", "lds_size_in_kb"),
    *("gfx_target_version", "max_engine_clk_fcompute", "domain", "location_id", "local_mem_size"),
)
_CALLS = tuple(f"{name}_api" for name in ("hip", "hsa", "marker", "rccl", "rocdecode", "rocjpeg"))
_NOT_READ = {
    "scratch_memory": "allocations of scratch memory",
    "pc_sample_host_trap": "samples of program counters",
    "pc_sample_stochastic": "samples of program counters",
}
FIELDS: Mapping[tuple[str, ...], tuple[str, ...]] = {
    ("agents",): ("id.handle", *_AGENT, "name$", "product_name$", "mem_banks$"),
    ("counters",): ("id.handle", "name$"),
    ("kernel_symbols",): (
        *("kernel_id", "group_segment_size", "arch_vgpr_count", "accum_vgpr_count"),
        *("kernel_name$", "formatted_kernel_name$"),
    ),
    ("strings", "buffer_records"): ("kind$", "operations$"),
    ("strings", "marker_api"): ("key", "value$"),
    ("callback_records", "counter_collection"): (
        *("thread_id", "stream_id.handle", "records$"),
        *(">correlation_id.internal", ">start_timestamp", ">end_timestamp"),
        *(f">dispatch_info.{name}" for name in _LAUNCH),
    ),
    ("buffer_records", "kernel_dispatch"): (*_SPAN, "stream_id.handle", *(f">{name}" for name in _LAUNCH)),
    ("buffer_records", "memory_copy"): (
        *(*_SPAN, "stream_id.handle", "bytes"),
        *("src_agent_id.handle", "dst_agent_id.handle"),
    ),
    ("buffer_records", "memory_allocation"): (
        *(*_SPAN, "agent_id.handle", "allocation_size"),
        *("address", "address.handle", "address.value"),
    ),
    **{("buffer_records", name): _SPAN for name in _CALLS},
    **{("buffer_records", name): ("kind",) for name in _NOT_READ},
}
"""The values that are read from the objects of each array.

``a.b`` is a number in an object, ``>a`` a member of the object that describes the launch, and ``a$`` a text or JSON.
"""
_RENAMED = {
    "start_timestamp": "start_ns",
    "end_timestamp": "end_ns",
    "correlation_id.internal": "correlation_id",
    **{f"{name}.{axis}": f"{name}_{axis}" for name in ("workgroup_size", "grid_size") for axis in tables.AXES},
    **{f"{name}_id.handle": f"{name}_id" for name in ("agent", "queue", "stream", "src_agent", "dst_agent")},
    "formatted_kernel_name": "display_name",
}
_OTHER_MEMBERS = r"(?:[^{}]|\{(?:[^{}]|\{[^{}]*\})*\})*?"
"""Matches the members of an object that precede another one. They may contain objects."""
_LAYOUT = DocumentFormat("", "records", HINT, (_PROCESS_ID,))


class FieldPlace(NamedTuple):
    """Where a value is in an object.

    Attributes:
        slot: Slot of the member that contains the value.
        name: Name of the column.
        pattern: Pattern of the value in the JSON of the member, or None if the member is the value.
        is_text: Whether the value is a text.
    """

    slot: int
    name: str
    pattern: str | None
    is_text: bool


def _find_places() -> tuple[dict[tuple[int, str], int], dict[tuple[str, ...], list[FieldPlace]]]:
    """Return the slot of each member, and the places of the values in the objects of each array."""
    keys = {(0, "dispatch_info"): NESTED, (0, "dispatch_data"): NESTED}
    places: dict[tuple[str, ...], list[FieldPlace]] = {}
    for path, fields in FIELDS.items():
        for text in fields:
            first, *rest = text.strip(">$").split(".")
            slot = keys.setdefault((int(text.startswith(">")), first), len(keys) - 1)
            inner = r"\s*:\s*".join(rf'\{{{_OTHER_MEMBERS}"{re.escape(name)}"' for name in rest)
            pattern = rf"^\s*{inner}\s*:\s*(-?\d{{1,20}})\b" if rest else None
            name = text.strip(">$").removeprefix("dispatch_info.")
            places.setdefault((_TOOL, *path), []).append(FieldPlace(slot, name, pattern, text.endswith("$")))
    return keys, places


_KEYS, _PLACES = _find_places()


class RecordCollector:
    """The records of a file as frames, by the key of their array. The column ``section`` is the number of the process.

    Attributes:
        process_ids: Ids of the processes by section.
        counts: Number of records that are not read, by kind.
    """

    def __init__(self, budget: Budget) -> None:
        self.process_ids: dict[int, int | None] = {}
        self.counts: Counter[str] = Counter()
        self._budget = budget
        self._batches: dict[tuple[str, ...], list[pl.DataFrame]] = {}

    def add_records(self, path: tuple[str, ...], section: int, process_id: Any, cells: JsonCells) -> None:
        """Add the records of a batch.

        Raises:
            Damage: The records exceed the memory limit.
        """
        is_number = isinstance(process_id, int) and not isinstance(process_id, bool)
        self.process_ids[section] = process_id if is_number and 0 <= process_id < _FACTOR else None
        if (noun := _NOT_READ.get(path[-1])) is not None:
            self.counts[noun] += cells.rows
            return
        places = _PLACES[path]
        self._budget.reserve(cells.rows, CELL_BYTES * (len(places) + 1), "records")
        rows = np.arange(cells.rows)
        columns = {_RENAMED.get(place.name, place.name): _read_column(cells, rows, place) for place in places}
        frame = pl.DataFrame(pl.from_arrow(pa.table(columns)))
        texts = [pl.col(_RENAMED.get(p.name, p.name)).cast(pl.String) for p in places if p.is_text]
        self._batches.setdefault(path, []).append(
            frame.with_columns(*texts, section=pl.lit(section, pl.Int64)).rechunk()
        )

    def take(self, *path: str) -> pl.DataFrame:
        """Return the records of an array, and release them. The result has no rows if there are none."""
        places = _PLACES[_TOOL, *path]
        schema = {_RENAMED.get(p.name, p.name): pl.String if p.is_text else pl.Int64 for p in places}
        batches = self._batches.pop((_TOOL, *path), [])
        rows = pl.concat([pl.DataFrame(schema=schema | {"section": pl.Int64}), *batches])
        ids = self.process_ids
        number = pl.col("section").replace_strict([*ids], [*ids.values()], default=None, return_dtype=pl.Int64)
        return rows.with_columns(process_id=number)


def _read_column(cells: JsonCells, rows: Any, place: FieldPlace) -> pa.Array:
    if place.is_text:
        return cells.get_member_strings(place.slot, rows, include_other_types=True)
    if place.pattern is None:
        return cells.get_member_integers(place.slot, rows)
    texts = cells.get_member_strings(place.slot, rows, include_other_types=True)
    numbers = pl.Series(pl.from_arrow(texts.dictionary)).str.extract(place.pattern).str.to_integer(strict=False)
    return numbers.to_arrow().cast(pa.int64()).take(texts.indices)


def read_records(source: Source) -> tables.BuiltCapture:
    """Read a JSON file of rocprofv3, and return its tables. A truncated file is read up to its last whole record.

    Raises:
        CorruptTraceError: The file is no JSON file of rocprofv3, is damaged, or has no records.
        TracekitError: The file cannot be read, or changed while it was read.
    """
    path, scanner, repairs = source.path, JsonScanner(_KEYS), Counter[str]()
    compressed = source.head.startswith(DATABASE_MAGICS[1])
    collector = RecordCollector(Budget(source.size))
    with source.open() as file, convert_damage(path, file=file), Stream(file, compressed=compressed) as stream:
        document = NestedDocument(path, stream, scanner, _LAYOUT, list(_PLACES))
        for _ in document.parse_in_batches():
            process_id = document.metadata.get(_PROCESS_ID)
            collector.add_records(document.path, document.section, process_id, JsonCells(scanner, repairs))
        file.check_unchanged()
        try:
            frames = build_tables(collector)
        except pl.exceptions.PolarsError as e:
            raise Damage(get_first_line_of_message(e)) from e
    if not document.has_array:
        raise CorruptTraceError("the file contains no records of rocprofv3", path=path, hint=HINT)
    if document.truncated or stream.damage:
        what = stream.damage or "the file ends before the end of its JSON"
        warn(f"{what}: it is read up to the last whole record", path=path)
    if document.invalid:
        rest, rest_of_one = "that are not valid JSON were skipped", "that is not valid JSON was skipped"
        warn(format_count(document.invalid, "record", rest, rest_of_one), path=path)
    info = {"tool": "rocprofv3", "device_vendors": "AMD"}
    return tables.BuiltCapture(path, HINT, frames, tables.count_as_undecoded(collector.counts), info)


def build_tables(collector: RecordCollector) -> Frames:
    """Build the tables of all processes.

    Raises:
        polars.exceptions.PolarsError: JSON in a record does not have the expected form.
    """
    agents = collector.take("agents").filter(pl.col("type") == GPU_TYPE)
    agents = agents.with_columns(device_id=pl.coalesce("logical_node_type_id", "node_id"))
    devices = agents.select("section", "device_id", agent_id="id.handle").unique(["section", "agent_id"], keep="first")
    names = _read_names(collector.take("strings", "buffer_records"))
    launches = collector.take("buffer_records", "kernel_dispatch").drop("kind", "operation", "thread_id")
    counted = collector.take("callback_records", "counter_collection")
    if not launches.height:
        launches = counted.select(launches.columns)
    symbols = collector.take("kernel_symbols").with_columns(_create_key_expr("kernel_id").alias("symbol"))
    symbols = tables.describe_symbols(symbols, "symbol")
    copies = _add_names(collector.take("buffer_records", "memory_copy"), names)
    allocations = _add_names(collector.take("buffer_records", "memory_allocation"), names)
    calls = pl.concat([collector.take("buffer_records", name) for name in _CALLS])
    ranges = _describe_ranges(_add_names(calls, names), collector.take("strings", "marker_api"))
    is_mark = pl.col("start_ns") == pl.col("end_ns")
    frames = {
        "kernels": _build_kernels(launches, symbols, devices),
        "memcpys": _build_memcpys(copies, devices),
        "api_calls": _build_calls(_add_names(calls, names)),
        "nvtx_ranges": ranges.filter(~is_mark),
        "nvtx_marks": ranges.filter(is_mark).rename({"start_ns": "timestamp_ns"}).drop("end_ns", "kind"),
        "profiler_metrics": _build_metrics(counted, collector.take("counters"), symbols, devices),
        "memory_events": _build_memory_events(allocations, devices),
    }
    collector.counts["copies between processors"] += copies.height - frames["memcpys"].height
    collector.counts["allocations of memory of processors"] += allocations.height - frames["memory_events"].height
    rows = [row | {"mem_banks": _parse_list(row["mem_banks"])} for row in agents.drop_nulls("device_id").to_dicts()]
    threads = calls.select("process_id", "thread_id").unique()
    processes = pl.DataFrame({"process_id": [*collector.process_ids.values()]}, {"process_id": pl.Int64})
    used = [frames[name].select("device_id").unique() for name in ("kernels", "memcpys", "memory_events")]
    described = build_devices((row["device_id"], row) for row in rows)
    parts = [{"devices": described, "threads": threads, "processes": processes}, *({"devices": each} for each in used)]
    return frames | tables.merge_tables(parts)


def _create_key_expr(column: str) -> pl.Expr:
    """Return an expression for a key that is unique in all processes, given a column whose ids are unique in one."""
    identifier = pl.col(column)
    return pl.when((identifier >= 0) & (identifier < _FACTOR)).then(pl.col("section") * _FACTOR + identifier)


def _read_names(kinds: pl.DataFrame) -> pl.DataFrame:
    """Return the names of operations, with their ``section``, ``kind``, ``category`` and ``operation``."""
    kinds = kinds.select(
        "section",
        kind=pl.int_range(pl.len(), dtype=pl.Int64).over("section"),
        category="kind",
        name=pl.col("operations").str.json_decode(pl.List(pl.String)),
    )
    names = kinds.explode("name", empty_as_null=True)
    return names.with_columns(operation=pl.int_range(pl.len(), dtype=pl.Int64).over("section", "kind"))


def _add_names(rows: pl.DataFrame, names: pl.DataFrame) -> pl.DataFrame:
    """Add the category and the name of the operation of records."""
    categories = names.select("section", "kind", "category").unique(["section", "kind"], keep="first")
    rows = rows.join(categories, on=["section", "kind"], how="left", maintain_order="left")
    operations = names.select("section", "kind", "operation", "name")
    return rows.join(operations, on=["section", "kind", "operation"], how="left", maintain_order="left")


def _add_devices(rows: pl.DataFrame, devices: pl.DataFrame, column: str, name: str) -> pl.DataFrame:
    """Add the number of the GPU with the id of an agent, which is null for processors."""
    renamed = devices.rename({"agent_id": column, "device_id": name})
    return rows.join(renamed, on=["section", column], how="left", maintain_order="left")


def _build_kernels(launches: pl.DataFrame, symbols: pl.DataFrame, devices: pl.DataFrame) -> pl.DataFrame:
    rows = _add_devices(launches, devices, "agent_id", "device_id")
    rows = rows.with_columns(_create_key_expr("kernel_id").alias("symbol"))
    rows = tables.join_first(rows, symbols, left_on="symbol", right_on="symbol")
    return tables.describe_kernels(
        rows.with_columns(stream_id=tables.choose_stream_expr(rows), correlation_id=tables.correlation_expr())
    )


def _build_memcpys(rows: pl.DataFrame, devices: pl.DataFrame) -> pl.DataFrame:
    for end in ("src", "dst"):
        rows = _add_devices(rows, devices, f"{end}_agent_id", f"{end}_device_id")
    return tables.describe_copies(rows.with_columns(kind="name", correlation_id=tables.correlation_expr()))


def _build_calls(rows: pl.DataFrame) -> pl.DataFrame:
    """Return the calls of HIP and HSA."""
    rows = rows.with_columns(api=tables.find_api_expr(pl.col("category")), correlation_id=tables.correlation_expr())
    columns = ("start_ns", "end_ns", "process_id", "thread_id", "correlation_id", "api", "name")
    return rows.drop_nulls("api").select(columns)


def _describe_ranges(rows: pl.DataFrame, messages: pl.DataFrame) -> pl.DataFrame:
    """Return the markers, and the calls of other libraries. A marker has the name of its message."""
    rows = rows.filter(tables.find_api_expr(pl.col("category")).is_null())
    texts = messages.select(_create_key_expr("key").alias("marker"), message="value")
    rows = rows.with_columns(_create_key_expr("correlation_id").alias("marker"))
    rows = tables.join_first(rows, texts, left_on="marker", right_on="marker")
    return rows.select(
        *("start_ns", "end_ns", "process_id", "thread_id"),
        *tables.describe_range_exprs(pl.col("category"), pl.col("name"), pl.col("kind")),
        name=pl.coalesce("message", "name"),
    )


def _build_metrics(
    rows: pl.DataFrame, counters: pl.DataFrame, symbols: pl.DataFrame, devices: pl.DataFrame
) -> pl.DataFrame:
    """Return the counters of kernels, summed over the instances of a counter."""
    value = pl.Struct({"counter_id": pl.Struct({"handle": pl.Int64}), "value": pl.Float64})
    rows = _add_devices(rows, devices, "agent_id", "device_id").with_columns(
        _create_key_expr("kernel_id").alias("symbol")
    )
    names = symbols.select("symbol", range_name="name")
    rows = tables.join_first(rows, names, left_on="symbol", right_on="symbol")
    rows = rows.select(
        *("section", "process_id", "start_ns", "end_ns", "device_id", "range_name"),
        profiler_range_id=pl.col("dispatch_id") + pl.col("section") * _FACTOR,
        record=pl.col("records").str.json_decode(pl.List(value)),
    )
    rows = rows.explode("record", empty_as_null=True).drop_nulls("record").unnest("record")
    rows = rows.with_columns(pl.col("counter_id").struct.field("handle").alias("counter"))
    names = counters.select("section", counter="id.handle", metric="name")
    keys = ["section", "counter"]
    rows = rows.join(names.unique(keys, keep="first"), on=keys, how="left", maintain_order="left")
    first = (pl.col(name).first() for name in ("start_ns", "end_ns", "device_id", "range_name"))
    return rows.group_by("profiler_range_id", "metric", maintain_order=True).agg(*first, value=pl.col("value").sum())


def _build_memory_events(rows: pl.DataFrame, devices: pl.DataFrame) -> pl.DataFrame:
    rows = _add_devices(rows, devices, "agent_id", "device_id")
    address = pl.coalesce("address", "address.handle", "address.value")
    return tables.describe_allocations(rows.with_columns(bytes="allocation_size", address=address), pl.col("name"))


def _parse_list(text: str | None) -> Any:
    try:
        return json.loads(text or "")
    except (ValueError, RecursionError):
        return None
