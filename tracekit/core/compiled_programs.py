"""Present the programs that XLA compiled as captures in which each instruction launches its kernel in a range.

XLA may run a program as a CUDA graph. Then a profile contains the kernels of the graph, but not the operations that
launched them. The program contains the operations in the order in which they run (its schedule). So the layers of the
graph are those of a capture in which the operations of the program run one by one, which this module makes up. Its
times have no meaning, except for the order.

XLA names a kernel after the instruction that it compiles. It compiles equal instructions only once, so the kernels of
all of them have the name of the first one.
"""

from __future__ import annotations

import functools
import re
from typing import TYPE_CHECKING, Any

import polars as pl

from tracekit import schemas
from tracekit.core.ops.xla import DOMAIN
from tracekit.core.series import decode_categories
from tracekit.core.work.compiled import sanitize_name
from tracekit.core.work.hlo import FREE_OPCODES

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    Frames = Callable[[str], pl.LazyFrame]

TABLE = "hlo_instructions"
MAX_INSTRUCTIONS = 1 << 18
"""Maximum number of instructions of programs that are presented."""
_WITHOUT_KERNELS = (*FREE_OPCODES, "while", "conditional", "call", "domain")
_DONE = r"-done$"
_COPIES = ("copy", "copy-start")
_NAME = re.compile(r"%([^\s,(){}=]+)")
_CALLED = r"calls=%([^\s,(){}=]+)"
_GRAPH_OF_PROGRAM = r"[#,]hlo_op=command_buffer.*[#,]program_id=(-?\d{1,19})(?:[,#]|$)"
_READ = ("program_id", "program", "computation", "is_entry", "name", "position", "opcode", "op_name", "text")
_STEP, _CALL_NS = 10, 8
"""Time from one operation to the next, and duration of its range."""


def present_programs(frames: Frames) -> Frames | None:
    """Return the tables of a capture in which the instructions of programs run one by one.

    Args:
        frames: Function that returns the declared table with a given name.

    Returns:
        A function that returns the table with a given name. None if no program with a schedule runs as a CUDA graph.
    """
    texts = frames("nvtx_ranges").select(pl.col("name").unique()).collect().to_series()
    programs = decode_categories(texts).str.extract(_GRAPH_OF_PROGRAM).cast(pl.Int64, strict=False).drop_nulls()
    table = frames(TABLE).filter(pl.col("program_id").is_in(programs.implode()))
    instructions = table.select(_READ).head(MAX_INSTRUCTIONS).collect()
    opcode = decode_categories(instructions["opcode"])
    launches = ~opcode.is_in(_WITHOUT_KERNELS) & ~opcode.str.contains(_DONE)
    rows = instructions.filter(launches, pl.col("position").is_not_null(), "is_entry").sort("program_id", "position")
    if rows.is_empty():
        return None
    tables = _build_tables(rows.hstack([_name_kernels(instructions, rows)]))

    def get_table(name: str) -> pl.LazyFrame:
        return tables.get(name, pl.DataFrame(schema=schemas.polars_schema(schemas.table(name)))).lazy()

    return get_table


def _name_kernels(instructions: pl.DataFrame, rows: pl.DataFrame) -> pl.Series:
    """Return the name of the kernel of each instruction: that of the first instruction of the program that is equal."""
    called = rows["text"].str.extract(_CALLED)
    inner = instructions.filter(decode_categories(instructions["computation"]).is_in(called.implode()))
    bodies: dict[tuple[Any, ...], str] = {
        key: _normalize("\n".join(part["text"]))
        for key, part in inner.partition_by("program_id", "computation", as_dict=True, maintain_order=True).items()
    }
    firsts: dict[tuple[object, ...], str] = {}
    names = []
    for (program, name, text), computation in zip(
        rows.select("program_id", "name", "text").iter_rows(), called, strict=True
    ):
        key = (program, _normalize(text.replace(f"%{computation}", "")), bodies.get((program, computation)))
        names.append(firsts.setdefault(key, sanitize_name(name)))
    return pl.Series("kernel", names, pl.String)


def _normalize(text: str) -> str:
    """Replace the names in the text of instructions with numbers, in the order of their first occurrence."""
    numbers: dict[str, str] = {}
    return _NAME.sub(lambda match: numbers.setdefault(match[1], f"%{len(numbers)}"), text)


def _build_tables(rows: pl.DataFrame) -> Mapping[str, pl.DataFrame]:
    """Return the tables of the capture by name.

    Args:
        rows: The instructions that launch kernels, in the order of programs and schedules, with the column ``kernel``.
    """
    rows = rows.with_row_index("row").with_columns(start=(pl.col("row").cast(pl.Int64) + 1) * _STEP)
    number = pl.col("row").cast(pl.Int64) + 1
    same = {"process_id": pl.lit(0, pl.Int64), "thread_id": pl.lit(0, pl.Int64)}
    path = pl.format("name={},", pl.col("op_name").cast(pl.String)).fill_null("")
    values = pl.format("hlo_op={},hlo_module={},program_id={}", "name", "program", "program_id")
    ranges = rows.select(
        start_ns="start", end_ns=pl.col("start") + _CALL_NS, name=pl.format("Thunk:#{}{}#", path, values)
    )
    launched = rows.with_columns(
        **same,
        start_ns=pl.col("start") + 1,
        end_ns=pl.col("start") + 2,
        correlation_id=number,
        device_id=pl.lit(0, pl.Int32),
        stream_id=pl.lit(0, pl.Int64),
    )
    is_copy = decode_categories(rows["opcode"]).is_in(_COPIES)
    frames = {
        "nvtx_ranges": ranges.with_columns(
            **same, range_id=pl.int_range(1, pl.len() + 1), kind=pl.lit("push_pop"), domain=pl.lit(DOMAIN), domain_id=1
        ),
        "api_calls": launched.with_columns(api_call_id=number, name=pl.lit("cuLaunchKernel")),
        "kernels": launched.filter(~is_copy).with_columns(kernel_id=number, name="kernel", short_name="kernel"),
        "memcpys": launched.filter(is_copy).with_columns(memcpy_id=number),
    }
    return {name: _conform(name, frame) for name, frame in frames.items()}


@functools.cache
def _list_types(table: str) -> dict[str, pl.DataType]:
    return dict(schemas.polars_schema(schemas.table(table)))


def _conform(table: str, frame: pl.DataFrame) -> pl.DataFrame:
    """Return the declared columns of a table. Columns that the frame lacks are null."""
    return frame.select(
        (pl.col(c) if c in frame.columns else pl.lit(None)).cast(kind).alias(c)
        for c, kind in _list_types(table).items()
    )
