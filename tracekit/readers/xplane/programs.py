"""Read the compiled programs in a profile, and write their instructions as text of HLO."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import polars as pl
import pyarrow as pa

from tracekit import schemas
from tracekit.readers.common.damage import Damage
from tracekit.readers.common.protobuf.messages import load_message_class, parse
from tracekit.readers.xplane.values import METADATA_VALUES, EventValues

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from tracekit.readers.common.budget import Budget
    from tracekit.readers.xplane.space import Plane

SCHEMA = "xla_profile"
METADATA = "/host:metadata"
"""Name of the plane that contains the programs."""
PROGRAM, _PROGRAM_ID = "Hlo Proto", "program_id"
_TYPES = {
    1: "pred",
    2: "s8",
    3: "s16",
    4: "s32",
    5: "s64",
    6: "u8",
    7: "u16",
    8: "u32",
    9: "u64",
    10: "f16",
    11: "f32",
    12: "f64",
    15: "c64",
    16: "bf16",
    17: "token",
    18: "c128",
    14: "opaque",
    19: "f8e5m2",
    20: "f8e4m3fn",
    21: "s4",
    22: "u4",
    23: "f8e4m3b11fnuz",
    24: "f8e5m2fnuz",
    25: "f8e4m3fnuz",
    26: "s2",
    27: "u2",
    28: "f8e4m3",
    29: "f8e3m4",
    30: "s1",
    31: "u1",
    32: "f4e2m1fn",
    33: "f8e8m0fnu",
}
"""Names of element types by number."""
_TUPLE, _MAX_NESTING, _MAX_OPERANDS, _MAX_TEXT = 13, 8, 1 << 12, 1 << 16
_INSTRUCTION_BYTES = 1 << 11
COSTS = ("category", "flop", "model_flop", "accessed_bytes")
"""Columns of ``hlo_instructions`` that profiles of TPUs contain for each op."""
_OPCODE = r"^%[^ ]+ = .*?[\]})] ([a-z][a-z0-9-]*)\("


class CompiledProgram(NamedTuple):
    """A compiled program.

    Attributes:
        id: Number of the program, which events refer to.
        module: The decoded ``HloModuleProto``.
    """

    id: int
    module: Any


def iterate_programs(planes: Iterable[Plane]) -> Iterator[CompiledProgram]:
    """Yield the compiled programs in a profile.

    Raises:
        Damage: A program is invalid.
    """
    message = load_message_class(SCHEMA, "HloProto")
    for plane in planes:
        encoded, names = plane.event_names.metadata, plane.event_names.texts.to_pylist()
        values = EventValues.of_messages(plane, encoded.starts, encoded.stops, METADATA_VALUES)
        ids, has_id = values.get_integers(_PROGRAM_ID)
        for row, start, stop in values.find_bytes(PROGRAM):
            module = parse(message, plane.buffer.data.data[start:stop], "a compiled program").hlo_module
            yield CompiledProgram(
                int(ids[row]) if has_id[row] else _parse_id(names[row], int(plane.event_names.ids[row])), module
            )


PATHS = {"program_id": pl.Int64(), "hlo_op": pl.String(), "path": pl.String()}


def read_paths(programs: Iterable[CompiledProgram]) -> pl.DataFrame:
    """Return the path in the source of each instruction that has one: the columns ``PATHS``.

    Raises:
        Damage: A program is invalid.
    """
    rows = (
        (program.id, _decode(i.name), _decode(i.metadata.op_name))
        for program in programs
        for computation in program.module.computations
        for i in computation.instructions
        if i.metadata.op_name
    )
    return pl.DataFrame(list(rows), PATHS, orient="row").unique(["program_id", "hlo_op"], keep="first")


def _parse_id(name: str, default: int) -> int:
    """Return the number in parentheses at the end of the name of a program, as a signed 64-bit number."""
    digits = name.rpartition("(")[2].removesuffix(")")
    if not (digits.isdecimal() and digits.isascii() and len(digits) <= 20):  # noqa: PLR2004
        return default
    number = int(digits) % (1 << 64)
    return number - (1 << 64) if number >> 63 else number


def build_instruction_table(programs: Iterable[CompiledProgram], budget: Budget) -> pa.Table:
    """Return the table ``hlo_instructions``.

    Raises:
        Damage: There are too many instructions, or an instruction is nested too deeply.
    """
    rows: list[tuple[Any, ...]] = []
    for program in programs:
        computations = {c.id: _decode(c.name) for c in program.module.computations}
        module = _decode(program.module.name)
        schedules = {entry.key: entry.value.instruction_ids for entry in program.module.schedule.sequences}
        for computation in program.module.computations:
            instructions = {i.id: i for i in computation.instructions}
            is_entry = computation.id == program.module.entry_computation_id
            positions = {number: place for place, number in enumerate(schedules.get(computation.id, ()))}
            own = (program.id, module, _decode(computation.name), is_entry)
            for i in budget.reserve_each(computation.instructions, "instructions", _INSTRUCTION_BYTES):
                text = format_instruction(i, instructions, computations)
                budget.reserve(1, len(text), "bytes of instructions")
                described = (_decode(i.opcode), _decode(i.metadata.op_name) or None, text)
                rows.append((*own, _decode(i.name), positions.get(i.id), *described))
    names = ("program_id", "program", "computation", "is_entry", "name", "position", "opcode", "op_name", "text")
    columns = list(zip(*rows, strict=True)) or [()] * len(names)
    types = (pa.int64(), pa.string(), pa.string(), pa.bool_(), pa.string(), pa.int64(), *(pa.string(),) * 3)
    arrays = [pa.array(column, type_) for column, type_ in zip(columns, types, strict=True)]
    table = {"instruction_id": pa.array(range(1, len(rows) + 1), pa.int64()), **dict(zip(names, arrays, strict=True))}
    encoded = ("program", "computation", "opcode", "op_name")
    return pa.table({name: a.dictionary_encode() if name in encoded else a for name, a in table.items()})


def add_costs(table: pa.Table, kinds: pl.DataFrame) -> pa.Table:
    """Add to ``hlo_instructions`` what the profiler recorded about ops: their category and cost.

    Ops whose programs the profile does not contain are added as instructions at the end.

    Args:
        table: The table.
        kinds: What ops are: ``program_id``, ``module``, ``name``, ``text``, ``op_name``, ``category``, ``flop``,
            ``model_flop``, ``accessed_bytes``.
    """
    if kinds.is_empty():
        return table
    keys = ["program_id", "name"]
    rows = pl.DataFrame(pl.from_arrow(table))
    known = rows.join(kinds.select(*keys, *COSTS), on=keys, how="left", maintain_order="left")
    new = kinds.join(rows.select(keys), on=keys, how="anti", maintain_order="left").select(
        instruction_id=pl.int_range(1, pl.len() + 1, dtype=pl.Int64) + rows.height,
        program_id="program_id",
        program=pl.col("module").fill_null(""),
        computation=pl.lit(""),
        is_entry=pl.lit(value=False),
        name="name",
        position=pl.lit(None, pl.Int64),
        opcode=pl.coalesce(pl.col("text").str.extract(_OPCODE), "category", pl.lit("")),
        op_name="op_name",
        text=pl.col("text").fill_null(""),
        **{c: pl.col(c) for c in COSTS},
    )
    texts = ("program", "computation", "opcode", "op_name", "category")
    both = pl.concat([known.cast(dict.fromkeys(texts, pl.String)), new], how="vertical_relaxed")
    merged = both.cast({c: pl.Categorical() for c in texts}).to_arrow()
    return merged.cast(schemas.arrow_schema(schemas.table("hlo_instructions"), merged.column_names))


def format_instruction(instruction: Any, instructions: dict[int, Any], computations: dict[int, str]) -> str:
    """Write an instruction as text of HLO, without the places in source files.

    Args:
        instruction: A decoded ``HloInstructionProto``.
        instructions: The instructions of its computation by id.
        computations: Names of the computations of the program by id.

    Raises:
        Damage: A shape is nested too deeply.
    """
    head = f"%{_decode(instruction.name)} = {format_shape(instruction.shape)} {_decode(instruction.opcode)}"
    ids = (i for i in instruction.operand_ids[:_MAX_OPERANDS] if i in instructions)
    operands = _join((f"{format_shape(instructions[i].shape)} %{_decode(instructions[i].name)}" for i in ids), head)
    if operands is None:
        return f"{head}()"
    text = _join((f"{head}({operands})", *_iterate_attributes(instruction, computations)))
    return f"{head}()" if text is None else text


def _join(texts: Iterable[str], before: str = "") -> str | None:
    """Join texts by commas, or return None as soon as they are too long together with the text before them."""
    parts: list[str] = []
    size = len(before)
    for text in texts:
        parts.append(text)
        size += len(text) + 2
        if size > _MAX_TEXT:
            return None
    return ", ".join(parts)


def _iterate_attributes(i: Any, computations: dict[int, str]) -> Iterator[str]:
    """Yield the attributes of an instruction that its operands do not determine."""
    if i.HasField("dot_dimension_numbers"):
        names = ("lhs_batch", "lhs_contracting", "rhs_batch", "rhs_contracting")
        sizes = {f"{name}_dims": getattr(i.dot_dimension_numbers, f"{name}_dimensions") for name in names}
    else:
        sizes = {"dimensions": i.dimensions}
    called = _join(f"%{computations[c]}" for c in i.called_computation_ids[:_MAX_OPERANDS] if c in computations)
    is_convolution = i.HasField("convolution_dimension_numbers")
    config = _decode(i.backend_config) if i.custom_call_target and i.backend_config[:1] == b"{" else ""
    values = {
        **{name: _format_numbers(numbers) if numbers else "" for name, numbers in sizes.items()},
        "window": f"{{{_format_window(i.window.dimensions)}}}" if i.window.dimensions else "",
        "dim_labels": _format_labels(i.convolution_dimension_numbers) if is_convolution else "",
        **{name: _format_count(getattr(i, name)) for name in ("feature_group_count", "batch_group_count")},
        "custom_call_target": f'"{_decode(i.custom_call_target)}"' if i.custom_call_target else "",
        "kind": _decode(i.fusion_kind),
        "calls": "..." if called is None else f"{{{called}}}" if ", %" in called else called,
        "backend_config": config,
    }
    yield from (f"{name}={value}" for name, value in values.items() if value)


def _format_count(count: int) -> str:
    return str(count) if count > 1 else ""


def format_shape(shape: Any, depth: int = 0) -> str:
    """Write a shape as text of HLO, such as ``f32[256,1024]{1,0}``.

    Raises:
        Damage: The shape is nested too deeply.
    """
    if shape.element_type == _TUPLE:
        if depth == _MAX_NESTING:
            raise Damage(f"a shape is nested more than {_MAX_NESTING} levels deep")
        return f"({', '.join(format_shape(part, depth + 1) for part in shape.tuple_shapes)})"
    name = _TYPES.get(shape.element_type, "opaque")
    layout = _format_numbers(shape.layout.minor_to_major) if shape.layout.minor_to_major else ""
    return f"{name}[{','.join(map(str, shape.dimensions))}]{layout}"


def _format_numbers(numbers: Sequence[int]) -> str:
    return f"{{{','.join(map(str, numbers))}}}"


def _format_window(dimensions: Sequence[Any]) -> str:
    """Write a window, such as ``size=3x3 stride=2x2 pad=1_1x1_1``. EventValues that have no effect are omitted."""
    columns = {
        "size": ([str(d.size) for d in dimensions], ""),
        "stride": ([str(d.stride) for d in dimensions], "1"),
        "pad": ([f"{d.padding_low}_{d.padding_high}" for d in dimensions], "0_0"),
        "lhs_dilate": ([str(d.base_dilation) for d in dimensions], "1"),
        "rhs_dilate": ([str(d.window_dilation) for d in dimensions], "1"),
    }
    return " ".join(f"{name}={'x'.join(texts)}" for name, (texts, none) in columns.items() if {*texts} != {none})


def _format_labels(numbers: Any) -> str:
    """Write the dimensions of a convolution, such as ``b01f_01io->b01f``."""
    lhs = {numbers.input_batch_dimension: "b", numbers.input_feature_dimension: "f"}
    rhs = {numbers.kernel_input_feature_dimension: "i", numbers.kernel_output_feature_dimension: "o"}
    out = {numbers.output_batch_dimension: "b", numbers.output_feature_dimension: "f"}
    for labels, places in (
        (lhs, numbers.input_spatial_dimensions),
        (rhs, numbers.kernel_spatial_dimensions),
        (out, numbers.output_spatial_dimensions),
    ):
        labels.update({place: str(i) for i, place in enumerate(places[:_MAX_NESTING])})
    texts = ["".join(labels[place] for place in sorted(labels)) for labels in (lhs, rhs, out)]
    return f"{texts[0]}_{texts[1]}->{texts[2]}"


def _decode(text: bytes) -> str:
    return bytes(text).decode("utf-8", "replace")
