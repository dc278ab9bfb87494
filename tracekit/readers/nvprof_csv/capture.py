"""Build declared tables from the tables of a CSV file, which is read when it is opened."""

from __future__ import annotations

import csv
import io
import re
from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

import polars as pl

from tracekit.errors import CorruptTraceError, get_first_line_of_message, warn
from tracekit.readers.common.budget import Budget
from tracekit.readers.common.damage import Damage
from tracekit.readers.common.encodings import convert_to_utf8
from tracekit.readers.common.frame_capture import FrameCapture, convert_frame
from tracekit.readers.common.kernel_names import shorten_kernel_name
from tracekit.readers.nvprof_csv import HEADER

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    import pyarrow as pa

    from tracekit.registry.source import Source

PRINT_AGAIN = "print it again: nvprof --csv --print-gpu-trace -i FILE"
_PROCESS = re.compile(rb"^==(\d{1,18})== ", re.MULTILINE)
_TITLE = re.compile(rb"^==[^\n]{0,40}== ([A-Za-z ]{1,60}):", re.MULTILINE)
_END = re.compile(rb"^==", re.MULTILINE)
"""What follows a table: a line that nvprof begins with ``==``."""
_OTHER_LINE = re.compile(rb"^(?!==|\s*$)", re.MULTILINE)
_MAX_TABLES, _MAX_COLUMNS, _CELL_BYTES, _CHUNK_BYTES = 512, 32, 24, 1 << 22
_TIME_UNITS = {"s": 1e9, "ms": 1e6, "us": 1e3, "ns": 1.0}
_SIZE_UNITS = {unit: float(1 << 10 * n) for n, unit in enumerate(("B", "KB", "MB", "GB", "TB"))}
_CELL, _CORRELATION = r"^\s*([-+.\deE]+?)\s*([A-Za-z%]*)\s*$", r" \[(\d+)\]\)?$"
_SIDES = {"H": "Host", "D": "Device", "A": "Array", "P": "Peer"}
_MAX_NUMBER = float(1 << 61)
_KEYS = {"kernels": "kernel_id", "memcpys": "memcpy_id", "memsets": "memset_id", "api_calls": "api_call_id"}
_NUMBERS = {
    **{f"{part}_{axis}": f"{part.title()} {axis.upper()}" for part in ("grid", "block") for axis in "xyz"},
    "registers_per_thread": "Registers Per Thread",
    "context_id": "Context",
    "stream_id": "Stream",
    "static_shared_memory_bytes": "Static SMem",
    "dynamic_shared_memory_bytes": "Dynamic SMem",
    "bytes": "Size",
    "src_context_id": "Src Ctx",
    "dst_context_id": "Dst Ctx",
}
"""Columns of the file by declared column of kernels, copies and sets."""
_SMALL = [*list(_NUMBERS)[:7], "static_shared_memory_bytes", "dynamic_shared_memory_bytes"]
_MEMORY = {"src_memory_kind": "SrcMemType", "dst_memory_kind": "DstMemType"}
_TIMES, _ENDS = ("Start", "Duration", "Correlation_ID"), ("start_ns", "end_ns")
_FACTORS = dict.fromkeys(("Start", "Duration", "Time", "Min", "Max"), _TIME_UNITS)
_FACTORS |= dict.fromkeys(("Size", "Static SMem", "Dynamic SMem"), _SIZE_UNITS)
"""The units of columns. Numbers in other columns have none."""
_READ_AS_NUMBERS = {*_TIMES, *_FACTORS, *_NUMBERS.values(), "Calls"}
_DEVICES = {"device_id": "Device", "src_device_id": "Src Dev", "dst_device_id": "Dst Dev"}


class PrintedTable(NamedTuple):
    """A table in the file.

    Attributes:
        columns: Names of the columns.
        rows: The cells: numbers if each column has a unit, and strings otherwise.
        units: Unit of each column. It is empty if the units are in the cells.
        process_id: The process that the preceding line names, or None.
        contains_calls: Whether the preceding line says that the table contains API calls.
    """

    columns: list[str]
    rows: pl.DataFrame
    units: Mapping[str, str]
    process_id: int | None
    contains_calls: bool


def read_file(source: Source) -> PrintedCapture:
    """Read a CSV file.

    Raises:
        CorruptTraceError: A row is damaged.
        TracekitError: The file cannot be read, or changed while it was read.
    """
    with source.open() as file:
        try:
            return PrintedCapture(source.path, convert_to_utf8(file.read(0, file.size)), Budget(file.size))
        except (Damage, pl.exceptions.PolarsError) as e:
            file.check_unchanged()
            what = f"a row cannot be read: {get_first_line_of_message(e)[:300]}"
            raise CorruptTraceError(what, path=source.path, hint=PRINT_AGAIN) from e


class PrintedCapture(FrameCapture):
    """The tables of a CSV file that has been read."""

    def __init__(self, path: Path, content: bytes, budget: Budget) -> None:
        """Build all tables.

        Raises:
            Damage, PolarsError: A row or a value is not valid.
        """
        super().__init__()
        self._path = path
        self._undecoded: Counter[str] = Counter()
        self._devices: dict[str, int] = {}
        parts: dict[str, list[pl.DataFrame]] = {name: [] for name in (*_KEYS, "activity_totals")}
        if not content.endswith((b"\n", b'"')):
            warn("the last row does not end with a line break, so its name may be truncated", path=path)
        for table in _split_tables(content, budget, self._undecoded):
            if "Time(%)" in table.columns:
                parts["activity_totals"].append(_build_totals(table))
            elif "Device" in table.columns:
                for name, frame in self._build_activities(table).items():
                    parts[name].append(frame)
            else:
                parts["api_calls"].append(_build_calls(table))
                self._undecoded["API calls without times"] += table.rows.height - parts["api_calls"][-1].height
        self._tables = {name: _number_rows(name, frames) for name, frames in parts.items()}
        ends = [t["end_ns"].max() for name, t in self._tables.items() if name in _KEYS and t.height]
        devices = {"device_id": self._devices.values(), "name": [n.rpartition(" (")[0] or n for n in self._devices]}
        listed = pl.DataFrame(devices, {"device_id": pl.Int32, "name": pl.String})
        self._tables["devices"] = listed.unique("device_id", keep="first").sort("device_id")
        info = {"tool": "nvprof", **({"duration_ns": str(max(ends))} if ends else {})}  # type: ignore[type-var]
        self._tables["capture_info"] = pl.DataFrame({"name": list(info), "value": list(info.values())})

    def read(self, name: str, columns: Sequence[str]) -> pa.Table:
        """Return the requested columns of a table. Those that the file lacks are null."""
        return convert_frame(name, self._tables[name], columns, self._path, PRINT_AGAIN)

    def count_undecoded(self) -> Mapping[str, int]:
        """Return the number of rows that are in no table, and of lines that are not in a table that is read."""
        return +self._undecoded

    def _build_activities(self, table: PrintedTable) -> dict[str, pl.DataFrame]:
        """Return the kernels, copies and sets of a trace of GPUs."""
        numbers = [c for c in _NUMBERS.values() if c in table.columns]
        values = _convert_numbers(table, [*(c for c in _TIMES if c in table.columns), *numbers])
        rows = _convert_times(table, values)
        memory = {d: table.rows[c].cast(pl.Categorical) for d, c in _MEMORY.items() if c in table.columns}
        devices = {d: self._number_devices(table.rows[c]) for d, c in _DEVICES.items() if c in table.columns}
        sizes = {d: values[c].round() for d, c in _NUMBERS.items() if c in numbers}
        sizes = {d: size.cast(pl.Int32 if d in _SMALL else pl.Int64) for d, size in sizes.items()}
        rows = rows.with_columns(**sizes, **devices, **memory)
        is_valid = pl.col("start_ns").is_not_null() & pl.col("end_ns").is_not_null() & pl.col("device_id").is_not_null()
        is_kernel = pl.col("grid_x").is_not_null() if "grid_x" in rows.columns else pl.lit(value=False)
        copies, sets = (pl.col("kind").eq_missing(pl.lit(kind)) & ~is_kernel for kind in ("memcpy", "memset"))
        self._undecoded["other activities"] += rows.filter(~(is_valid & (is_kernel | copies | sets))).height
        valid = rows.filter(is_valid)
        kernels = valid.filter(is_kernel).drop("copy_kind", "kind", *memory)
        set_rows = valid.filter(sets).with_columns(memory_kind=pl.col("src_memory_kind") if memory else pl.lit(None))
        return {"kernels": kernels, "memcpys": valid.filter(copies), "memsets": set_rows}

    def _number_devices(self, names: pl.Series) -> pl.Series:
        """Return the number of each device, which is at the end of its name, as in ``Tesla V100 (0)``."""
        for name in names.drop_nulls().unique(maintain_order=True):
            number = re.search(r"\((\d{1,4})\)$", name)
            self._devices.setdefault(name, int(number[1]) if number else len(self._devices))
        return names.replace_strict(self._devices, default=None, return_dtype=pl.Int32)


def _split_tables(content: bytes, budget: Budget, undecoded: Counter[str]) -> Iterator[PrintedTable]:
    """Yield the tables. A table ends at a line that nvprof begins with ``==``. Other lines after it are counted."""
    headers = list(HEADER.finditer(content))
    if headers and b"Time(%)" not in headers[-1][0] and not content.endswith(b"\n"):
        raise Damage("the last row does not end with a line break, so it is truncated")
    if headers and b"\0" in content[headers[0].start() :]:
        raise Damage("it contains zeros, as after an interrupted copy")
    if len(headers) > _MAX_TABLES:
        raise Damage(f"the file has more than {_MAX_TABLES} tables")
    previous, process = 0, None
    for header, following in zip(headers, [*headers[1:], None], strict=True):
        before, previous = content[max(previous, header.start() - 4096) : header.start()], header.end()
        next_start = following.start() if following else len(content)
        stop = end.start() if (end := _END.search(content, header.end(), next_start)) else next_start
        undecoded["lines outside of tables"] += sum(1 for _ in _OTHER_LINE.finditer(content, stop, next_start))
        columns = [name.strip().strip('"') for name in header[0].decode("utf-8", "replace").split(",")]
        if len(columns) > _MAX_COLUMNS or len(set(columns)) != len(columns) or "Name" not in columns:
            raise Damage("the header repeats a column, has too many columns, or no column Name")
        processes, titles = _PROCESS.findall(before), _TITLE.findall(before)
        process, has_calls = int(processes[-1]) if processes else process, titles[-1:] == [b"API calls"]
        start = header.end() + 1
        line_end = content.find(b"\n", start, stop) + 1 or stop
        units = _find_units(content[start:line_end], columns)
        for chunk in _split_lines(content, line_end if units else start, stop):
            budget.reserve(chunk.count(b"\n") + 1, _CELL_BYTES * len(columns), "rows")
            cells = _read_cells(chunk, columns, units, is_quoted=header[0].startswith(b'"'))
            yield PrintedTable(columns, cells, units, process, has_calls)


def _split_lines(content: bytes, start: int, stop: int) -> Iterator[bytes]:
    """Yield the lines between two offsets in chunks."""
    while start < stop:
        end = content.find(b"\n", start + _CHUNK_BYTES, stop) + 1 or stop
        yield content[start:end]
        start = end


def _read_cells(body: bytes, columns: Sequence[str], units: Mapping[str, str], *, is_quoted: bool) -> pl.DataFrame:
    """Return the cells of a table. A name that is not quoted may contain commas if it is the last column."""
    schema: dict[str, type[pl.DataType]] = dict.fromkeys(columns, pl.String)
    if not body.strip():
        return pl.DataFrame(schema=schema)
    if columns[-1] == "Name" and not is_quoted and b',"' not in body:
        lines = pl.Series("line", body.decode("utf-8", "replace").split("\n")).str.strip_suffix("\r").to_frame()
        split = pl.col("line").str.splitn(",", len(columns)).struct.rename_fields(list(columns))
        return lines.filter(pl.col("line") != "").select(split).unnest("line").with_columns(pl.all().replace("", None))
    numbers = schema | {name: pl.Float64 for name in columns if name in _READ_AS_NUMBERS and units}
    try:
        rows = pl.read_csv(io.BytesIO(body), has_header=False, schema=numbers, null_values=[""])
    except pl.exceptions.ComputeError:  # a cell is not a number, and the message is to name it
        rows = pl.read_csv(io.BytesIO(body), has_header=False, schema=schema, null_values=[""])
    return rows.filter(~pl.all_horizontal(pl.all().is_null()))  # empty lines


def _convert_numbers(table: PrintedTable, names: Sequence[str]) -> dict[str, pl.Series]:
    """Return columns of numbers, multiplied by their unit, which is in the first row or in each cell.

    Raises:
        Damage: A cell is not a number with a known unit.
    """
    values = {}
    for name in names:
        cells = table.rows[name]
        factors, unit = _FACTORS.get(name, {"": 1.0}), table.units.get(name, "")
        if cells.dtype == pl.String:
            parts = cells.str.extract_groups(_CELL).struct.unnest()
            factor = parts["2"].replace("", unit).replace_strict(factors, default=None, return_dtype=pl.Float64)
            number = parts["1"].cast(pl.Float64, strict=False) * factor
        else:
            number = cells * pl.Series([factors.get(unit)], dtype=pl.Float64)
        is_valid = number.is_finite() & (number.abs() <= _MAX_NUMBER)
        if name not in _FACTORS:
            is_valid &= (number >= 0) & (number == number.round())
        is_wrong = cells.is_not_null() & ~is_valid.fill_null(value=False)
        if is_wrong.any():
            cell = str(cells.filter(is_wrong)[0])[:40]
            raise Damage(f"{cell!r} in the column {name} is not a number with a known unit")
        values[name] = number
    return values


def _find_units(line: bytes, columns: Sequence[str]) -> dict[str, str]:
    """Return the unit of each column, or nothing if the first line of a table contains no units."""
    cells = next(csv.reader([line.decode("utf-8", "replace").strip()]), [])
    units = dict(zip(columns, (cell.strip() for cell in cells), strict=False))
    return units if units.get("Duration", units.get("Time")) in _TIME_UNITS else {}


def _convert_times(table: PrintedTable, values: Mapping[str, pl.Series]) -> pl.DataFrame:
    """Return the times, names, processes and correlation ids of the rows of a trace."""
    start = values["Start"].round().cast(pl.Int64)
    columns = {"start_ns": start, "end_ns": start + values["Duration"].round().cast(pl.Int64)}
    if "Correlation_ID" in values:
        columns["correlation_id"] = values["Correlation_ID"].cast(pl.Int64)
    rows = _describe_names(table.rows["Name"].cast(pl.String))
    return rows.with_columns(**columns, process_id=pl.lit(table.process_id, pl.Int64))


def _describe_names(cells: pl.Series) -> pl.DataFrame:
    """Return what the names of activities and calls tell. Each distinct name is examined once."""
    distinct = cells.unique().to_frame("cell")
    name = pl.col("cell").str.replace(_CORRELATION, "")
    unified = pl.when(name.str.starts_with("[Unified")).then(pl.lit("Unified ")).otherwise(pl.lit(""))
    letters = (name.str.extract(r"([HDAP])to([HDAP])\]$", n) for n in (1, 2))
    sides = (each.replace_strict(_SIDES, default=None, return_dtype=pl.String) for each in letters)
    described = distinct.select(
        "cell",
        name=name,
        short_name=name.map_elements(shorten_kernel_name, pl.String),
        correlation_id=pl.col("cell").str.extract(_CORRELATION).cast(pl.Int64, strict=False),
        kind=name.str.extract(r"^\[(?:CUDA|Unified Memory) ((?i:memcpy|memset)) ?\w*\]$").str.to_lowercase(),
        copy_kind=unified + pl.concat_str(sides, separator="-to-"),
    ).with_columns(pl.col("name", "short_name", "copy_kind").cast(pl.Categorical))
    rows = cells.to_frame("cell").join(described, on="cell", how="left", maintain_order="left", nulls_equal=True)
    return rows.drop("cell")


def _build_calls(table: PrintedTable) -> pl.DataFrame:
    """Return the calls of a trace of API calls. The kernel that a call launches is cut off its name."""
    calls = _convert_times(table, _convert_numbers(table, [c for c in _TIMES if c in table.columns]))
    name = pl.col("name").cast(pl.String).str.extract(r"^(\w+)")
    is_driver, is_runtime = name.str.contains(r"^cu[A-Z]"), name.str.starts_with("cuda")
    api = pl.when(is_driver).then(pl.lit("CUDA driver")).when(is_runtime).then(pl.lit("CUDA runtime"))
    return calls.drop("short_name", "kind", "copy_kind").with_columns(name=name, api=api).drop_nulls(_ENDS)


def _build_totals(table: PrintedTable) -> pl.DataFrame:
    """Return the rows of a summary."""
    values = _convert_numbers(table, ["Time", "Calls", "Min", "Max"])
    is_call = table.rows["Type"] == "API calls" if "Type" in table.columns else table.contains_calls
    names = {"total_ns": "Time", "count": "Calls", "min_ns": "Min", "max_ns": "Max"}
    return pl.DataFrame({c: values[n].round().cast(pl.Int64) for c, n in names.items()}).with_columns(
        **dict.fromkeys(("name", "path"), table.rows["Name"].cast(pl.String).fill_null("")),
        kind=pl.when(is_call).then(pl.lit("api_call")).otherwise(pl.lit("activity")),
        depth=pl.lit(0, pl.Int32),
    )


def _number_rows(name: str, frames: Sequence[pl.DataFrame]) -> pl.DataFrame:
    """Return the rows of several tables with their numbers, those of traces in the order of their starts."""
    empty = pl.DataFrame(schema={"start_ns": pl.Int64, "end_ns": pl.Int64})
    frame = pl.concat([*frames, empty], how="diagonal_relaxed")
    if name in _KEYS and not frame["start_ns"].is_sorted():
        frame = frame.sort("start_ns", maintain_order=True)
    return frame.with_columns(pl.int_range(1, pl.len() + 1, dtype=pl.Int64).alias(_KEYS.get(name, "activity_total_id")))
