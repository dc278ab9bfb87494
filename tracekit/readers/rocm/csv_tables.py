"""Build declared tables from the CSV files of rocprofv3 or rocprof, which are read when the capture is opened."""

from __future__ import annotations

import csv
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import polars as pl

from tracekit.errors import CorruptTraceError, UnknownFormatError, get_first_line_of_message, warn
from tracekit.readers.rocm import tables
from tracekit.readers.rocm.agents import build_devices
from tracekit.readers.rocm.csv_files import list_files
from tracekit.registry.detection import describe_unrecognized

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from tracekit.registry.source import Source

HINT = "copy the files again from where rocprofv3 wrote them, or record them again"
_SPAN = {"start_ns": "Start_Timestamp", "end_ns": "End_Timestamp", "correlation_id": "Correlation_Id"}
_LAUNCH = {
    "agent": "Agent_Id",
    "queue_id": "Queue_Id",
    "stream_id": "Stream_Id",
    "dispatch_id": "Dispatch_Id",
    "thread_id": "Thread_Id",
    "process_id": "Process_Id",
    "recorded_name": "Kernel_Name",
    "lds": "LDS_Block_Size",
    "group": "Group_Segment_Size",
    "vgpr": "VGPR_Count",
    "accum": "Accum_VGPR_Count",
    "scratch": "Scratch_Size",
    "private": "Private_Segment_Size",
}
_GRIDS = {axis: f"Grid_Size_{axis.upper()}" for axis in tables.AXES}
_BLOCKS = {axis: f"Workgroup_Size_{axis.upper()}" for axis in tables.AXES}
COLUMNS: Mapping[str, Mapping[str, str]] = {
    "kernels": {**_SPAN, **_LAUNCH, **{n: n for n in (*_GRIDS.values(), *_BLOCKS.values())}},
    "counters": {**_SPAN, **_LAUNCH, "metric": "Counter_Name", "value": "Counter_Value"},
    "calls": {**_SPAN, "category": "Domain", "name": "Function", "process_id": "Process_Id", "thread_id": "Thread_Id"},
    "copies": {
        **_SPAN,
        "kind": "Direction",
        "stream_id": "Stream_Id",
        "src": "Source_Agent_Id",
        "dst": "Destination_Agent_Id",
    },
    "allocations": {
        **_SPAN,
        "recorded": "Operation",
        "agent": "Agent_Id",
        "bytes": "Allocation_Size",
        "hex_address": "Address",
    },
    "rocprof": {
        "start_ns": "BeginNs",
        "end_ns": "EndNs",
        "recorded_name": "KernelName",
        "agent": "gpu-id",
        "queue_id": "queue-id",
        "process_id": "pid",
        "thread_id": "tid",
        "dispatch_id": "Index",
        "lds": "lds",
        "scratch": "scr",
        "vgpr": "arch_vgpr",
        "accum": "accum_vgpr",
    },
}
"""The column of each kind of file that contains each value. A file may lack some of them."""
NOT_READ = {"samples": "samples of program counters", "scratch": "allocations of scratch memory"}
_TEXTS = {"agent", "recorded_name", "metric", "category", "name", "kind", "src", "dst", "recorded", "hex_address"}
_MAX_MESSAGE, _TAIL_BYTES = 200, 1 << 16


@dataclass(slots=True)
class ProcessFiles:
    """The files of a process.

    Attributes:
        name: The name that the files share.
        frames: The rows of the files of each kind.
    """

    name: str
    frames: dict[str, list[pl.DataFrame]] = field(default_factory=dict)

    def get_rows(self, kind: str) -> pl.DataFrame:
        """Return the rows of a kind, which are none if there is no file of this kind."""
        schema = {name: _find_type(name) for name in COLUMNS[kind]}
        return pl.concat([pl.DataFrame(schema=schema), *self.frames.get(kind, [])])

    def find_process_id(self) -> int | None:
        """Return the id of the process, which is in some files only, or the number with which their names begin."""
        for kind in ("calls", "counters", "rocprof"):
            ids = self.get_rows(kind)["process_id"].drop_nulls().unique()
            if len(ids) == 1:
                return int(ids[0])
        start = self.name.partition("_")[0]
        return int(start) if start.isdecimal() and start.isascii() and len(start) <= 10 else None  # noqa: PLR2004

    def list_gpus(self) -> list[dict[str, Any]]:
        """Return the agents that are GPUs, in the order of their nodes."""
        agents = (row for frame in self.frames.get("agents", []) for row in frame.to_dicts())
        return sorted((row for row in agents if row["agent_type"] == "GPU"), key=lambda row: row["node_id"] or 0)

    def find_devices(self) -> pl.DataFrame:
        """Return the number of each GPU (``device_id``) and its label in other files (``agent``)."""
        labels = [
            (label, number)
            for number, row in enumerate(self.list_gpus())
            for label in (f"GPU {number}", f"Agent {row['logical_node_id']}", str(row["logical_node_id"]))
        ]
        return pl.DataFrame(labels, {"agent": pl.String, "device_id": pl.Int64}, orient="row")


def read_files(source: Source) -> tables.BuiltCapture:
    """Read one or several CSV files, and return their tables.

    Raises:
        UnknownFormatError: No file is a CSV file of rocprofv3 or rocprof.
        CorruptTraceError: A file is damaged.
    """
    undecoded: Counter[str] = Counter()
    processes: dict[str, ProcessFiles] = {}
    for file, kind, name in list_files(source):
        frame = read_file(file, kind)
        if kind in NOT_READ:
            undecoded[NOT_READ[kind]] += frame.height
        processes.setdefault(name, ProcessFiles(name)).frames.setdefault(kind, []).append(frame)
    if not processes:
        what, hint = describe_unrecognized(source, ("this is no CSV file of rocprofv3", "pass a *_trace.csv file"))
        raise UnknownFormatError(what, path=source.path, hint=hint)
    frames = tables.merge_tables([build_process_tables(process, undecoded) for process in processes.values()])
    kinds = {kind for process in processes.values() for kind in process.frames}
    info = {"tool": "rocprof" if kinds == {"rocprof"} else "rocprofv3", "device_vendors": "AMD"}
    return tables.BuiltCapture(source.path, HINT, frames, tables.count_as_undecoded(undecoded), info)


def read_file(file: Source, kind: str) -> pl.DataFrame:
    """Read the rows of a file."""
    with file.open() as opened:
        frame = read_agents(file.path) if kind == "agents" else read_rows(file.path, COLUMNS.get(kind, {}))
        opened.check_unchanged()
    return frame


def build_process_tables(process: ProcessFiles, undecoded: Counter[str]) -> dict[str, pl.DataFrame]:
    """Build the tables of a process, of which no other table is needed."""
    process_id, devices = process.find_process_id(), process.find_devices()
    counters = number_devices(process.get_rows("counters"), devices)
    kernels = [number_devices(process.get_rows(kind), devices) for kind in ("kernels", "rocprof")]
    if not any(frame.height for frame in kernels):
        keys = ["process_id", "dispatch_id"]
        kernels.append(counters.drop_nulls("start_ns").unique(keys, keep="first", maintain_order=True))
    launches = pl.concat(kernels, how="diagonal_relaxed")
    metrics = build_metrics(counters, launches)
    undecoded["counters of kernels without times"] += counters.height - metrics.height
    calls = process.get_rows("calls")
    copies = process.get_rows("copies")
    memory = build_memory_events(process.get_rows("allocations"), devices)
    undecoded["allocations of memory of processors"] += process.get_rows("allocations").height - memory.height
    built = {
        "kernels": build_kernels(launches),
        "memcpys": build_memcpys(copies, devices),
        "profiler_metrics": metrics,
        "memory_events": memory,
        "api_calls": build_calls(calls),
        "nvtx_ranges": build_ranges(calls.filter(pl.col("start_ns") != pl.col("end_ns"))),
        "nvtx_marks": build_ranges(calls.filter(pl.col("start_ns") == pl.col("end_ns"))),
    }
    undecoded["copies between processors"] += copies.height - built["memcpys"].height
    built["nvtx_marks"] = built["nvtx_marks"].rename({"start_ns": "timestamp_ns"}).drop("end_ns", "kind")
    owner = pl.lit(process_id, pl.Int64)
    for name, frame in built.items():
        recorded = pl.col("process_id") if "process_id" in frame.columns else pl.lit(None, pl.Int64)
        built[name] = frame.with_columns(process_id=pl.coalesce(recorded, owner))
    threads = [built[n].select("process_id", "thread_id") for n in ("api_calls", "nvtx_ranges", "nvtx_marks")]
    activities = ("kernels", "memcpys", "memory_events", "profiler_metrics")
    used = [built[n].select("device_id").unique() for n in activities]
    numbers = dict(devices.rows())
    described = build_devices((numbers[f"Agent {gpu['logical_node_id']}"], gpu) for gpu in process.list_gpus())
    return built | {
        "devices": pl.concat([described, *used], how="diagonal_relaxed"),
        "threads": pl.concat(threads),
        "processes": pl.DataFrame({"process_id": [process_id]}, {"process_id": pl.Int64}),
    }


def read_rows(path: Path, columns: Mapping[str, str]) -> pl.DataFrame:
    """Read columns of a CSV file under other names. Columns that the file lacks are null.

    Raises:
        CorruptTraceError: The file is damaged, or a value is no number.
    """
    present = read_header(path)
    check_last_row(path, len(present))
    types = {source: _find_type(name) for name, source in columns.items() if source in present}
    if not columns:
        types = {present[0]: pl.String}
    try:
        rows = pl.read_csv(path, columns=[*types], schema_overrides=types)
    except pl.exceptions.PolarsError as e:
        raise CorruptTraceError(get_first_line_of_message(e)[:_MAX_MESSAGE], path=path, hint=HINT) from e
    if not columns:
        return rows
    values = {n: pl.col(c) if c in present else pl.lit(None, _find_type(n)) for n, c in columns.items()}
    return rows.filter(~pl.all_horizontal(pl.all().is_null())).select(**values)  # blank lines


def check_last_row(path: Path, column_count: int) -> None:
    """Check that the last row of a CSV file that does not end with a line break has a value for each column.

    Its last value may be truncated, which is a warning, unless it ends with a quote.

    Raises:
        CorruptTraceError: It has fewer values, so that the file is truncated.
    """
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - _TAIL_BYTES))
        line = file.read(_TAIL_BYTES).rpartition(b"\n")[2].decode("utf-8", "replace").rstrip("\r")
    if not line:
        return
    cells = next(csv.reader([line]))
    if len(cells) < column_count or line.count('"') % 2:
        what = f"the file is truncated: its last row has {len(cells)} of {column_count} values"
        raise CorruptTraceError(what, path=path, hint=HINT)
    if not line.endswith('"'):
        warn("the last row does not end with a line break, so its last value may be truncated", path=path)


def read_header(path: Path) -> list[str]:
    """Return the names of the columns of a CSV file.

    Raises:
        CorruptTraceError: The header is damaged.
    """
    try:
        return pl.scan_csv(path, infer_schema=False, n_rows=0).collect_schema().names()
    except pl.exceptions.PolarsError as e:
        raise CorruptTraceError(get_first_line_of_message(e)[:_MAX_MESSAGE], path=path, hint=HINT) from e


def read_agents(path: Path) -> pl.DataFrame:
    """Return the agents in a file, with the names of their values in ``rocprofiler_agent_t``."""
    texts, names = {"Agent_Type", "Name", "Vendor_Name", "Product_Name", "Model_Name"}, read_header(path)
    check_last_row(path, len(names))
    types = {name: pl.String if name in texts else pl.Int64 for name in names}
    try:
        agents = pl.read_csv(path, schema_overrides=types, ignore_errors=True)
        return agents.select(pl.all().name.to_lowercase())
    except pl.exceptions.PolarsError as e:
        raise CorruptTraceError(get_first_line_of_message(e)[:_MAX_MESSAGE], path=path, hint=HINT) from e


def number_devices(
    rows: pl.DataFrame, devices: pl.DataFrame, column: str = "agent", name: str = "device_id"
) -> pl.DataFrame:
    """Add the number of the GPU that a label such as ``Agent 1``, ``GPU 0`` or ``1`` denotes.

    Without a file of agents, it is the number in the label.
    """
    if devices.height:
        numbered = devices.rename({"agent": column, "device_id": name})
        return rows.join(numbered.unique(column), on=column, how="left", maintain_order="left")
    number = pl.col(column).str.extract(r"(?i)^(?:agent |gpu )?(\d{1,9})$").cast(pl.Int64)
    return rows.with_columns(number.alias(name))


def build_kernels(rows: pl.DataFrame) -> pl.DataFrame:
    """Return the kernels."""
    sizes = {*_GRIDS.values(), *_BLOCKS.values()} - {*rows.columns}
    rows = rows.with_columns(pl.lit(None, pl.Int64).alias(name) for name in sizes)
    return tables.add_short_names(
        rows.select(
            *("start_ns", "end_ns", "process_id", "device_id"),
            *tables.build_grid_exprs(_GRIDS, _BLOCKS, in_blocks=pl.lit(value=False)),
            correlation_id=tables.correlation_expr(),
            stream_id=tables.choose_stream_expr(rows),
            name=tables.clean_kernel_name_expr(pl.col("recorded_name").str.strip_chars('"')),
            registers_per_thread=pl.col("vgpr") + pl.col("accum").fill_null(0),
            shared_memory_executed_bytes=pl.coalesce("lds", "group"),
            local_memory_per_thread_bytes=pl.coalesce("scratch", "private"),
        )
    )


def build_memcpys(rows: pl.DataFrame, devices: pl.DataFrame) -> pl.DataFrame:
    """Return the copies to or from GPUs. Without a file of agents, the direction tells which end is a GPU."""
    for end in ("src", "dst"):
        rows = number_devices(rows, devices, end, f"{end}_device_id")
    if not devices.height:
        places = {"src": r"(HOST|DEVICE)_TO", "dst": r"TO_(HOST|DEVICE)"}
        rows = rows.with_columns(
            pl.when(pl.col("kind").str.extract(place) != "HOST").then(f"{end}_device_id").alias(f"{end}_device_id")
            for end, place in places.items()
        )
    empty = {name: pl.lit(None, pl.Int64) for name in ("bytes", "process_id")}
    rows = rows.with_columns(**empty, correlation_id=tables.correlation_expr())
    return tables.describe_copies(rows)


def build_metrics(counters: pl.DataFrame, launches: pl.DataFrame) -> pl.DataFrame:
    """Return the counters of kernels. Old files have no times, which are those of the kernel with the same dispatch."""
    spans = launches.drop_nulls("dispatch_id").select("dispatch_id", launch_start="start_ns", launch_end="end_ns")
    rows = tables.join_first(counters, spans, left_on="dispatch_id", right_on="dispatch_id")
    return rows.select(
        *("process_id", "device_id", "metric"),
        pl.when(pl.col("value").is_finite()).then("value"),
        start_ns=pl.coalesce("start_ns", "launch_start"),
        end_ns=pl.coalesce("end_ns", "launch_end"),
        range_name=tables.clean_kernel_name_expr(pl.col("recorded_name")),
        profiler_range_id="dispatch_id",
    ).drop_nulls("start_ns")


def build_calls(rows: pl.DataFrame) -> pl.DataFrame:
    """Return the calls of HIP and HSA."""
    rows = rows.with_columns(api=tables.find_api_expr(pl.col("category")), correlation_id=tables.correlation_expr())
    return rows.drop_nulls("api").drop("category")


def build_ranges(rows: pl.DataFrame) -> pl.DataFrame:
    """Return the markers, and the calls of other libraries.

    Files do not tell which function began a range, but ranges of ``roctxRangeStart`` have the thread 0.
    """
    others = rows.filter(tables.find_api_expr(pl.col("category")).is_null())
    is_unnested = pl.col("thread_id") == 0
    operation = pl.when(is_unnested).then(pl.lit("roctxRangeStartA"))
    return others.select(
        *("start_ns", "end_ns", "process_id", "name"),
        pl.when(~is_unnested).then("thread_id"),
        *tables.describe_range_exprs(pl.col("category"), operation, tables.number_category_expr()),
    )


def build_memory_events(rows: pl.DataFrame, devices: pl.DataFrame) -> pl.DataFrame:
    """Return the allocations of memory of GPUs."""
    address = pl.col("hex_address").str.extract(r"^0x0*([0-9a-fA-F]{1,15})$").str.to_integer(base=16, strict=False)
    rows = number_devices(rows, devices).with_columns(process_id=pl.lit(None, pl.Int64), address=address)
    return tables.describe_allocations(rows, pl.col("recorded"))


def _find_type(name: str) -> Any:
    return pl.String if name in _TEXTS else pl.Float64 if name == "value" else pl.Int64
