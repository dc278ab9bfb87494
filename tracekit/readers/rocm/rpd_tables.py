"""Build declared tables from a database of rocmProfileData. Each table is read when it is used.

A row of ``rocpd_op`` is an activity of a GPU, and a row of ``rocpd_api`` a call or a range of a thread.
``rocpd_api_ops`` links them. Activities have no size of their own: ``rocpd_kernelapi`` and ``rocpd_copyapi`` contain
the arguments of the calls, which belong to the activity only if the call has a single one.
"""

from __future__ import annotations

import functools
from collections import Counter
from typing import TYPE_CHECKING

import polars as pl
import pyarrow as pa

from tracekit.readers.common.columns import DICTIONARY
from tracekit.readers.common.sqlite.compressed import open_database
from tracekit.readers.rocm import tables
from tracekit.registry.interface import Undecoded

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from tracekit.registry.source import Source

HINT = "copy the file again from where rocmProfileData wrote it, or record it again"
_MARKER = "UserMarker"
_OVERHEAD = r"^\w+Table::\w+$|^hcc_activity_callback$|^rpdflush$|^roctracer_\w+$"
"""Names of the work of the tracer itself."""
_APIS = {
    r"^hip[A-Z]": "HIP runtime",
    r"^__hip[A-Z]": "HIP compiler",
    r"^hsa_": "HSA",
    r"^cuda[A-Z]": "CUDA runtime",
    r"^cu[A-Z]": "CUDA driver",
}
_VENDORS = {"AMD": r"^(?:hip[A-Z]|hsa_)\w{0,100}$", "NVIDIA": r"^cuda?[A-Z]\w{0,100}$"}
"""Regular expression for the functions of the runtimes of a maker. Kernels for AMD can have the names of CUDA."""
_COPY = r"^(?:Copy|MEMORY_COPY|Memcpy)"
_FILL = r"^(?:Fill|Memset)"
_KERNELS = ("KernelExecution", "Task")
_WORK_ITEMS = r"^hip(?:Ext|Hcc)ModuleLaunchKernel$"
"""Names of the calls whose grid is counted in work-items rather than blocks."""
_SDK_COPY = "MEMORY_COPY"
"""Start of the names of copies if rocmProfileData used rocprofiler-sdk, which counts all grids in work-items."""
_KINDS = {0: "Host-to-Host", 1: "Host-to-Device", 2: "Device-to-Host", 3: "Device-to-Device"}
"""The members of ``hipMemcpyKind``."""
_GRIDS = {axis: f"grid{axis.upper()}" for axis in tables.AXES}
_BLOCKS = {axis: f"workgroup{axis.upper()}" for axis in tables.AXES}
_CALL_STREAM = r"stream = (?:0x)?([0-9a-fA-F]{1,15})\b"
_PARTS = {"seq": ", seq = {}", "op_id": ", op_id = {}", "sizes": ", sizes = {}", "input_op_ids": ", input_op_ids = {}"}
"""The parts of the text of a range of ``emit_nvtx`` after its name, by column of ``ext_autogradapi``."""


class RpdCapture(tables.RocmCapture):
    """An open database of rocmProfileData."""

    def __init__(self, source: Source) -> None:
        super().__init__(source.path, HINT)
        self.database = open_database(source, HINT)

    def names(self) -> list[str]:
        """Return the names of the declared tables that may have rows."""
        return [*_BUILDERS, "capture_info"]

    def build_table(self, name: str) -> pl.DataFrame:
        """Build a table."""
        return _BUILDERS[name](self)

    def count_undecoded(self) -> Mapping[str, Undecoded]:
        """Return the number of events that are in no table, by kind."""
        self.time_span  # noqa: B018 (counts the events without valid times)
        counts = Counter({tables.UNTIMED: self.untimed})
        for kind, number in self.operations.filter(pl.col("class").is_null()).group_by("type").len().iter_rows():
            counts[f"activities of the type {kind or 'unknown'}"] += number
        is_range = pl.col("class") == "range"
        arguments = self.calls.filter(~is_range | (pl.col("function") != _MARKER), pl.col("arguments") != "")
        counts["frames of call stacks"] = self._count("rocpd_stackframe")
        counts["counters of other activities"] = self._count("rocpd_counter") - build_metrics(self).height
        counts["signals of activities"] = self._count("rocpd_barrierop") + self._count("rocpd_op_inputSignals")
        undecoded = tables.count_as_undecoded(counts)
        details = {tables.ARGUMENTS: arguments.height, "pairs of nested calls": self._count("ext_callstack")}
        return undecoded | {kind: Undecoded(n, is_auxiliary=True) for kind, n in details.items() if n}

    def close(self) -> None:
        """Close the database."""
        self.database.close()

    def measure_time_span(self) -> tuple[int, int]:
        """Return the earliest and the latest recorded time."""
        names = {"start": "start_ns", "end": "end_ns"}
        spans = [self.read_rows(table, names).rename(names) for table in ("rocpd_api", "rocpd_op", "rocpd_monitor")]
        spans[2] = spans[2].with_columns(
            end_ns=pl.max_horizontal("start_ns", "end_ns")
        )  # the last value may have no end
        self.untimed = sum(map(tables.count_untimed_rows, spans))
        return tables.find_time_span(spans)

    def describe_capture(self) -> dict[str, str]:
        """Return the metadata of the profile."""
        rows = self.read_rows("rocpd_metadata", (), ("tag", "value"))
        version = rows.filter(tag="schema_version")["value"].first()
        info = {"tool": "rocmProfileData", "device_vendors": self._find_vendor(), "schema_version": version}
        return {name: value for name, value in info.items() if isinstance(value, str)}

    def _find_vendor(self) -> str | None:
        """Return the maker of the GPUs, which follows from the runtime whose functions were called, or None."""
        names = self.strings["string"]
        return next((vendor for vendor, pattern in _VENDORS.items() if names.str.contains(pattern).any()), None)

    def read_rows(
        self, table: str, integers: Sequence[str] | Mapping[str, str], strings: Sequence[str] = ()
    ) -> pl.DataFrame:
        """Read columns of a table. Columns that the table lacks are null.

        Raises:
            CorruptTraceError: The table is damaged, or a value does not have the requested type.
        """
        types = dict.fromkeys(integers, pa.int64()) | dict.fromkeys(strings, DICTIONARY)
        frame = tables.read_frame(self.database, table, types)
        return frame.with_columns(pl.col(c).cast(pl.String) for c in strings)

    def _count(self, table: str) -> int:
        return self.database.count_table_rows(table)

    @functools.cached_property
    def strings(self) -> pl.DataFrame:
        """The strings of the database, by ``string_id``."""
        return self.read_rows("rocpd_string", ("id",), ("string",)).rename({"id": "string_id"})

    def add_strings(self, rows: pl.DataFrame, names: Mapping[str, str]) -> pl.DataFrame:
        """Replace columns of ids with columns of strings.

        Args:
            rows: The rows.
            names: The name of the column of strings, by column of ids.
        """
        for ids, name in names.items():
            rows = tables.join_first(rows, self.strings, left_on=ids, right_on="string_id")
            rows = rows.rename({"string": name}).drop(ids)
        return rows

    @functools.cached_property
    def calls(self) -> pl.DataFrame:
        """The calls and ranges of threads, with their ``class``: call, range or overhead."""
        columns = ("id", "pid", "tid", "start", "end", "apiName_id", "args_id", "domain_id", "category_id")
        rows = self.read_rows("rocpd_api", columns)
        names = {"apiName_id": "function"}
        if "rocpd_ustring" in self.database.columns:
            texts = self.read_rows("rocpd_ustring", ("id",), ("string",)).rename({"string": "arguments"})
            rows = tables.join_first(rows, texts, left_on="args_id", right_on="id").drop("args_id")
            numbered = rows.with_columns(domain_number="domain_id")
            rows = self.add_strings(numbered, names | {"domain_id": "domain", "category_id": "category"})
        else:
            rows = self.add_strings(rows, names | {"args_id": "arguments"}).drop("domain_id", "category_id")
        function = pl.col("function").fill_null("")
        api = pl.lit(None, pl.String)
        for pattern, name in _APIS.items():
            api = pl.when(function.str.contains(pattern)).then(pl.lit(name)).otherwise(api)
        distinct = rows.select("function").unique().with_columns(api=api, is_overhead=function.str.contains(_OVERHEAD))
        rows = rows.join(distinct, on="function", how="left", nulls_equal=True, maintain_order="left")
        kind = pl.when(pl.col("api").is_not_null()).then(pl.lit("call")).when("is_overhead").then(pl.lit("overhead"))
        rows = rows.with_columns(kind.otherwise(pl.lit("range")).alias("class")).drop("is_overhead")
        return rows.with_columns(pl.col("function", "api", "class").cast(pl.Categorical)).rename(
            {"id": "call_id", "pid": "process_id", "tid": "thread_id", "start": "start_ns", "end": "end_ns"}
        )

    @functools.cached_property
    def operations(self) -> pl.DataFrame:
        """The activities of GPUs with their calls, and with their ``class``: kernel, copy, fill or null."""
        rows = self.read_rows("rocpd_op", ("id", "gpuId", "queueId", "start", "end", "description_id", "opType_id"))
        rows = self.add_strings(rows, {"description_id": "description", "opType_id": "type"})
        links = self.read_rows("rocpd_api_ops", ("api_id", "op_id"))
        rows = tables.join_first(rows, links, left_on="id", right_on="op_id")
        stream = _parse_handle_expr("arguments", _CALL_STREAM)
        calls = self.calls.select("call_id", "process_id", "function", stream_of_call=stream)
        rows = tables.join_first(rows, calls, left_on="api_id", right_on="call_id")
        kind = pl.col("type").fill_null("")
        is_kernel = kind.is_in(_KERNELS) | (pl.col("description").fill_null("") != "")
        rows = rows.with_columns(
            pl.when(kind.str.contains(_COPY))
            .then(pl.lit("copy"))
            .when(kind.str.contains(_FILL))
            .then(pl.lit("fill"))
            .when(is_kernel)
            .then(pl.lit("kernel"))
            .cast(pl.Categorical)
            .alias("class"),
            pl.col("description", "type").cast(pl.Categorical),
        )
        numbers = {"copy": 0, "fill": 1, "kernel": 2}
        number = pl.col("class").cast(pl.String).replace_strict(numbers, default=3, return_dtype=pl.Int64)
        is_single = (pl.col("api_id") * 4 + number).is_unique() & pl.col("api_id").is_not_null()
        return rows.with_columns(is_single=is_single).rename(
            {
                "id": "operation_id",
                "gpuId": "device_id",
                "start": "start_ns",
                "end": "end_ns",
                "api_id": "correlation_id",
            }
        )

    def select_operations(self, kind: str, arguments: pl.DataFrame) -> pl.DataFrame:
        """Return the activities of a class with their streams, and the arguments of calls with a single activity.

        Args:
            kind: The class.
            arguments: Arguments of calls by ``api_ptr_id``, with the handle of the stream as ``stream``.
        """
        rows = self.operations.filter(pl.col("class") == kind)
        rows = tables.join_first(rows, arguments, left_on="correlation_id", right_on="api_ptr_id")
        others = [c for c in arguments.columns if c not in ("api_ptr_id", "stream")]
        stream = pl.coalesce(_parse_handle_expr("stream"), "stream_of_call", "queueId")
        return rows.with_columns(pl.when("is_single").then(pl.col(others)), stream_id=stream)


def _parse_handle_expr(column: str, pattern: str = r"^(?:0x)?([0-9a-fA-F]{1,15})$") -> pl.Expr:
    """Return an expression for a hexadecimal handle in a text."""
    return pl.col(column).str.extract(pattern).str.to_integer(base=16, strict=False)


def build_kernels(capture: RpdCapture) -> pl.DataFrame:
    """Return the kernels, also those of graphs, with ``operation_id``."""
    sizes = (*_GRIDS.values(), *_BLOCKS.values(), "groupSegmentSize", "privateSegmentSize")
    arguments = capture.read_rows("rocpd_kernelapi", ("api_ptr_id", "kernelName_id", *sizes), ("stream",))
    rows = capture.select_operations("kernel", capture.add_strings(arguments, {"kernelName_id": "launched"}))
    types = capture.operations["type"].unique().cast(pl.String)
    is_sdk = types.str.starts_with(_SDK_COPY).any()
    in_blocks = pl.lit(value=not is_sdk) & ~pl.col("function").cast(pl.String).str.contains(_WORK_ITEMS).fill_null(
        value=False
    )
    description = pl.col("description").cast(pl.String)
    described = pl.when(description != "").then(description)
    name = tables.clean_kernel_name_expr(pl.coalesce(described, "launched"))
    return tables.add_short_names(
        rows.select(
            *("operation_id", "start_ns", "end_ns", "process_id", "device_id", "stream_id", "correlation_id"),
            *tables.build_grid_exprs(_GRIDS, _BLOCKS, in_blocks=in_blocks),
            name=name,
            dynamic_shared_memory_bytes=pl.lit(None, pl.Int64) if is_sdk else "groupSegmentSize",
            shared_memory_executed_bytes="groupSegmentSize" if is_sdk else pl.lit(None, pl.Int64),
            local_memory_per_thread_bytes="privateSegmentSize" if is_sdk else pl.lit(None, pl.Int64),
        )
    )


def build_memcpys(capture: RpdCapture) -> pl.DataFrame:
    """Return the copies."""
    texts = ("stream", "size", "width", "height", "kind")
    arguments = capture.read_rows("rocpd_copyapi", ("api_ptr_id",), texts)
    numbers = {name: pl.col(name).str.to_integer(strict=False) for name in texts[1:]}
    arguments = arguments.select("api_ptr_id", "stream", **numbers)
    rows = capture.select_operations("copy", arguments)
    kind = pl.col("type").cast(pl.String).replace_strict(tables.COPY_KINDS, default=None, return_dtype=pl.String)
    recorded = pl.col("kind").replace_strict(_KINDS, default=None, return_dtype=pl.String)
    return rows.select(
        *("start_ns", "end_ns", "process_id", "device_id", "stream_id", "correlation_id"),
        bytes=pl.coalesce("size", pl.col("width") * pl.col("height")),
        copy_kind=pl.coalesce(kind, recorded),
    )


def build_memsets(capture: RpdCapture) -> pl.DataFrame:
    """Return the memory sets."""
    no_arguments = pl.DataFrame(schema={"api_ptr_id": pl.Int64, "stream": pl.String})
    return capture.select_operations("fill", no_arguments).select(
        "start_ns", "end_ns", "process_id", "device_id", "stream_id", "correlation_id"
    )


def build_calls(capture: RpdCapture) -> pl.DataFrame:
    """Return the calls of HIP, HSA and CUDA."""
    return capture.calls.filter(pl.col("class") == "call").select(
        "start_ns", "end_ns", "process_id", "thread_id", "api", correlation_id="call_id", name="function"
    )


def build_overheads(capture: RpdCapture) -> pl.DataFrame:
    """Return the work of the tracer itself."""
    return capture.calls.filter(pl.col("class") == "overhead").select(
        "start_ns", "end_ns", "process_id", "thread_id", name="function"
    )


def _describe_ranges(capture: RpdCapture) -> pl.DataFrame:
    """Return the ranges and marks of programs. Those of PyTorch's ops have the text that ``emit_nvtx`` gave them."""
    names = ("api_ptr_id", "autogradName_id")
    ops = capture.read_rows("ext_autogradapi", names, tuple(_PARTS))
    ops = capture.add_strings(ops, {"autogradName_id": "op"})
    parts = [
        pl.when(pl.col(column).fill_null("") != "").then(pl.format(text, pl.col(column))).otherwise(pl.lit(""))
        for column, text in _PARTS.items()
    ]
    ops = ops.select("api_ptr_id", text=pl.concat_str(pl.col("op"), *parts))
    rows = capture.calls.filter(pl.col("class") == "range")
    rows = tables.join_first(rows, ops, left_on="call_id", right_on="api_ptr_id")
    if "domain" not in rows.columns:
        texts = [pl.lit(None, pl.String).alias(name) for name in ("domain", "category")]
        rows = rows.with_columns(pl.lit(None, pl.Int64).alias("domain_number"), *texts)
    function = pl.col("function").cast(pl.String)
    is_marker = function == _MARKER
    domain = pl.when(pl.col("domain").fill_null("") != "").then("domain")
    return rows.select(
        *("start_ns", "end_ns", "process_id", "thread_id"),
        timestamp_ns="start_ns",
        kind=pl.lit("push_pop"),
        domain_id=pl.when(domain.is_not_null()).then(pl.col("domain_number")).otherwise(0),
        domain=domain,
        category=pl.when(pl.col("category").fill_null("") != "").then("category"),
        name=pl.coalesce("text", pl.when(is_marker).then("arguments").otherwise(function)),
    )


def build_ranges(capture: RpdCapture) -> pl.DataFrame:
    """Return the ranges of programs."""
    return _describe_ranges(capture).filter(pl.col("start_ns") != pl.col("end_ns")).drop("timestamp_ns")


def build_marks(capture: RpdCapture) -> pl.DataFrame:
    """Return the marks of programs, which are ranges without a duration."""
    return _describe_ranges(capture).filter(pl.col("start_ns") == pl.col("end_ns")).drop("start_ns", "end_ns", "kind")


def build_counters(capture: RpdCapture) -> pl.DataFrame:
    """Return the values of monitors, such as the clock of a GPU. A value holds until the next one."""
    rows = capture.read_rows("rocpd_monitor", ("id", "deviceId", "start"), ("deviceType", "monitorType", "value"))
    whole = pl.col("value").str.to_integer(strict=False)
    number = pl.col("value").str.strip_chars().cast(pl.Float64, strict=False)
    kind = pl.when(whole.is_not_null()).then(pl.lit("int64")).when(number.is_not_null()).then(pl.lit("double"))
    return rows.select(
        event_id="id",
        timestamp_ns="start",
        source=pl.lit("rocpd_monitor"),
        name="monitorType",
        field=pl.format("{} {}", "deviceType", "deviceId"),
        value_type=kind,
        value_int=whole,
        value_float=pl.when(whole.is_null()).then(number),
    )


def build_metrics(capture: RpdCapture) -> pl.DataFrame:
    """Return the counters of kernels."""
    types = {"op_id": pa.int64(), "name_id": pa.int64(), "value": pa.float64()}
    rows = tables.read_frame(capture.database, "rocpd_counter", types)
    if not rows.height:
        return pl.DataFrame(schema=dict.fromkeys(("start_ns", "end_ns", "profiler_range_id"), pl.Int64)).with_columns(
            metric=pl.lit(None, pl.String)
        )
    kernels = build_kernels(capture).select("operation_id", "start_ns", "end_ns", "device_id", range_name="name")
    rows = capture.add_strings(rows, {"name_id": "metric"})
    return rows.join(
        kernels.unique("operation_id"), left_on="op_id", right_on="operation_id", how="inner"
    ).with_columns(profiler_range_id="op_id")


def build_devices(capture: RpdCapture) -> pl.DataFrame:
    """Return the GPUs that ran activities. Their names are not recorded."""
    return capture.operations.select(pl.col("device_id").unique().sort()).drop_nulls()


def build_processes(capture: RpdCapture) -> pl.DataFrame:
    """Return the processes of calls and ranges."""
    return capture.calls.select(pl.col("process_id").unique().sort()).drop_nulls()


def build_threads(capture: RpdCapture) -> pl.DataFrame:
    """Return the threads of calls and ranges."""
    return capture.calls.select("process_id", "thread_id").drop_nulls().unique().sort("process_id", "thread_id")


_BUILDERS: Mapping[str, Callable[[RpdCapture], pl.DataFrame]] = {
    "kernels": build_kernels,
    "memcpys": build_memcpys,
    "memsets": build_memsets,
    "api_calls": build_calls,
    "overheads": build_overheads,
    "nvtx_ranges": build_ranges,
    "nvtx_marks": build_marks,
    "counters": build_counters,
    "profiler_metrics": build_metrics,
    "devices": build_devices,
    "processes": build_processes,
    "threads": build_threads,
}
