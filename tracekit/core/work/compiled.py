"""Find the instructions of compiled programs (HLO) that launched kernels, and compute their work.

XLA names the range of an operation after its instruction and its program, which ``hlo_instructions`` contains. If XLA
runs a program as a CUDA graph, the range is that of the whole graph. Then the name of a kernel tells the instruction,
because XLA names the kernels that it compiles after their instructions. If several instructions are equal, they share
a kernel, which is named after one of them: their work is the same. Kernels of libraries do not tell their instruction.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from tracekit.core import categories, trees
from tracekit.core.work import hlo
from tracekit.system.sorting import create_series

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from tracekit.core.correlate import Frames
    from tracekit.core.work.hlo import Computation

MAX_INSTRUCTIONS = 1 << 18
"""Maximum number of instructions of the programs that are parsed. The work of the instructions of others is unknown."""
COLUMNS = {
    "op": pl.String,
    "shapes": pl.String,
    "types": pl.String,
    "kind": pl.Categorical,
    "type": pl.Categorical,
    "flop": pl.Int64,
    "read_bytes": pl.Int64,
    "written_bytes": pl.Int64,
}
_OPERATION, _PROGRAM = r"[#,]hlo_op=([^,#]+)", r"[#,]program_id=(-?\d{1,19})(?:[,#]|$)"
_KEY = ("program_id", "name")
_RESULT_TYPE = re.compile(r" = \(?([a-z]\w{1,20})\[")
_KINDS = {
    "gemm": "matrix_product",
    "convolution": "convolution",
    "reduction": hlo.REDUCTION,
    "copy": hlo.COPY,
    "communication": hlo.COLLECTIVE,
}
"""The kind of work of each category of kernels."""


def are_programs_recorded(frames: Frames) -> bool:
    """Return whether instructions of compiled programs were recorded."""
    return bool(frames("hlo_instructions").select(pl.len()).collect().item())


def read_ranges_of_operations(frames: Frames, rows: pl.Series) -> pl.DataFrame:
    """Return the ranges of operations of compiled programs.

    Args:
        frames: Function that returns the declared table with a given name.
        rows: Rows of ranges in ``nvtx_ranges``.

    Returns:
        Columns ``row``, ``program_id``, ``name`` (of the instruction), with one row per range of an operation.
    """
    texts = frames("nvtx_ranges").select("name").collect().to_series().gather(rows)
    distinct = pl.DataFrame({"text": texts.unique()})
    text = pl.col("text").cast(pl.String)
    program = text.str.extract(_PROGRAM).cast(pl.Int64, strict=False)
    parsed = distinct.select("text", program_id=program, name=text.str.extract(_OPERATION)).drop_nulls()
    ranges = pl.DataFrame({"row": rows, "text": texts})
    return ranges.join(parsed, on="text", how="inner", maintain_order="left").drop("text")


def compute_compiled_work(
    frames: Frames, rows: pl.Series, kernels: pl.DataFrame, parent: pl.Series
) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Return the work of the instructions of compiled programs that launched kernels.

    Args:
        frames: Function that returns the declared table with a given name.
        rows: Rows in ``nvtx_ranges`` of the ranges in which kernels were launched.
        kernels: ``name``, and ``row``, the row in ``nvtx_ranges`` of the innermost range in which the kernel was
            launched.
        parent: Row of the parent of each range, or null.

    Returns:
        Two frames with the columns ``row`` and ``COLUMNS``: the ranges of instructions whose work is known, and the
        kernels in ranges of other operations whose names tell their instructions. The second one also has ``kernel``,
        the row of the kernel, and its rows are numbered from the number of ranges.
    """
    if not are_programs_recorded(frames):
        no_work = pl.DataFrame(schema={"row": pl.Int64, **COLUMNS})
        return no_work, no_work.with_columns(kernel=pl.lit(None, pl.UInt32))
    ranges = read_ranges_of_operations(frames, rows)
    is_operation = np.zeros(len(parent), np.bool_)
    is_operation[ranges["row"].to_numpy()] = True
    nearest = trees.find_nearest_matching_rows(parent, create_series(is_operation)).gather(kernels["row"])
    launched = kernels.select(kernel=pl.int_range(pl.len(), dtype=pl.UInt32), label=kernel_name_expr(), row=nearest)
    launched = launched.join(ranges.select("row", "program_id"), on="row", maintain_order="left")
    named = launched.select("program_id", name="label").unique()
    work = compute_work_of_instructions(frames, ranges, named)
    of_ranges = work.filter(~pl.col("is_kernel")).drop("is_kernel")
    compiled = ranges.join(of_ranges, on=_KEY, maintain_order="left").drop(_KEY)
    others = launched.join(compiled, on="row", how="anti", maintain_order="left").drop("row")
    in_graphs = others.join(
        work.filter("is_kernel"), left_on=("program_id", "label"), right_on=_KEY, maintain_order="left"
    )
    numbers = pl.int_range(len(parent), len(parent) + pl.len(), dtype=pl.Int64)
    return compiled.select("row", *COLUMNS), in_graphs.select("kernel", *COLUMNS, row=numbers)


def compute_work_of_instructions(frames: Frames, operations: pl.DataFrame, kernels: pl.DataFrame) -> pl.DataFrame:
    """Return the work of the instructions that launched kernels.

    Args:
        frames: Function that returns the declared table with a given name.
        operations: Columns ``program_id`` and ``name`` of instructions.
        kernels: Columns ``program_id`` and ``name`` of kernels, whose names tell their instructions.

    Returns:
        Columns ``program_id``, ``name``, ``is_kernel`` (whether the row belongs to a name of ``kernels``) and
        ``COLUMNS``, with one row per distinct instruction and kernel whose work is known.
    """
    table = frames("hlo_instructions").select("program_id", "computation", "name", "text")
    programs = pl.concat([operations.select("program_id"), kernels.select("program_id")]).unique()
    used = table.join(programs.lazy(), on="program_id", how="semi").head(MAX_INSTRUCTIONS).collect()
    names = {
        False: _group_names(operations),
        True: _group_names(kernels),
    }
    rows = []
    for (program,), own in used.partition_by("program_id", as_dict=True, maintain_order=True).items():
        computations = {
            str(name): hlo.parse_computation(part["text"])
            for (name,), part in own.partition_by("computation", as_dict=True, maintain_order=True).items()
        }
        instructions = {i.name: i for computation in computations.values() for i in computation.values()}
        by_kernel = _name_kernels(instructions)
        matches = [(name, name, False) for name in names[False].get(program, ())]
        matches += [(name, by_kernel[name], True) for name in names[True].get(program, ()) if name in by_kernel]
        for name, instruction, is_kernel in matches:
            if described := _describe(instruction, instructions, computations):
                rows.append((program, name, is_kernel, *described))
    schema = {"program_id": pl.Int64, "name": pl.String, "is_kernel": pl.Boolean, **COLUMNS}
    work = pl.DataFrame(rows, schema=schema, orient="row")
    return pl.concat([work, _read_recorded_work(frames, operations, work).select(work.columns)])


def _read_recorded_work(frames: Frames, operations: pl.DataFrame, work: pl.DataFrame) -> pl.DataFrame:
    """Return the work that the profiler recorded for instructions whose text does not tell it.

    The number of bytes is that of bytes read and written together, as ``read_bytes``. The type is that of the result.
    """
    flop = pl.coalesce("model_flop", "flop")
    table = frames("hlo_instructions").filter(flop.is_not_null() & pl.col("accessed_bytes").is_not_null())
    rows = table.select(*_KEY, "category", "op_name", "text", flop=flop, read_bytes="accessed_bytes").collect()
    rows = rows.join(operations.select(_KEY).unique(), on=_KEY, how="semi", maintain_order="left")
    rows = rows.join(work.filter(~pl.col("is_kernel")).select(_KEY), on=_KEY, how="anti", maintain_order="left")
    values = [
        (strip_number(name), *_classify_recorded_work(category or "", path or "", text))
        for name, category, path, text in rows.select("name", "category", "op_name", "text").iter_rows()
    ]
    described = pl.DataFrame(values, schema={"op": pl.String, "kind": pl.String, "type": pl.String}, orient="row")
    return rows.hstack(described).with_columns(
        pl.col("kind", "type").cast(pl.Categorical),
        is_kernel=pl.lit(value=False),
        shapes=pl.lit("[]"),
        types=pl.lit("[]"),
        written_bytes=pl.lit(0, pl.Int64),
    )


def _classify_recorded_work(category: str, path: str, text: str) -> tuple[str, str | None]:
    """Return the kind and the type of the work of an instruction, given its category, its path and its text."""
    of_category = categories.classify_kernel(f"{category} {path.rpartition('/')[2]}".strip()).category
    result = _RESULT_TYPE.search(text)
    scalar = hlo.find_element_type(result[1]) if result else None
    return _KINDS.get(of_category, hlo.POINTWISE), scalar.name if scalar else None


def _group_names(keys: pl.DataFrame) -> dict[object, list[str]]:
    grouped = keys.select(_KEY).unique(maintain_order=True).group_by("program_id", maintain_order=True).agg("name")
    return dict(grouped.iter_rows())


def _name_kernels(instructions: Iterable[str]) -> dict[str, str]:
    """Return the instruction after which XLA names each kernel. Names that several instructions give are left out."""
    names: dict[str, list[str]] = {}
    for instruction in instructions:
        names.setdefault(sanitize_name(instruction), []).append(instruction)
    return {kernel: matches[0] for kernel, matches in names.items() if len(matches) == 1}


def _describe(
    name: str, instructions: Mapping[str, hlo.Instruction], computations: Mapping[str, Computation]
) -> tuple[str | int | None, ...] | None:
    """Return the values of ``COLUMNS`` of an instruction, or None if its work is unknown."""
    instruction = instructions.get(name)
    work = instruction and hlo.compute_instruction_work(instruction, computations)
    if not instruction or not work:
        return None
    target = instruction.attributes.get("custom_call_target", "").strip('"')
    arrays = [array for operand in instruction.operands for array in operand.arrays or ()]
    shapes = json.dumps([array.shape for array in arrays], separators=(",", ":"))
    types = json.dumps([array.type.name if array.type else "" for array in arrays], separators=(",", ":"))
    numbers = (work.flop, work.read_bytes, work.written_bytes)
    return target or strip_number(name), shapes, types, work.kind, work.type, *numbers


def sanitize_name(instruction: str) -> str:
    """Return the name of the kernel of an instruction, such as ``dot_3`` for ``dot.3``."""
    return "".join(c if c.isalnum() else "_" for c in instruction)


def strip_number(name: str) -> str:
    """Return the name of an instruction without the number that makes it unique, such as ``dot`` for ``dot.3.1``."""
    stem = name.rstrip("0123456789._")
    return stem or name


def kernel_name_expr() -> pl.Expr:
    """Return an expression for the names of kernels without the suffix of AMD's."""
    return pl.col("name").cast(pl.String).str.strip_suffix(".kd")
