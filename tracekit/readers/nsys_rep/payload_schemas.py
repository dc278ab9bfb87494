"""Determine how to format NVTX payloads as JSON, based on the schemas that a program registered for them.

A schema describes the layout of payloads like a struct in C. It lists entries with types, names and offsets. The type
of an entry may be another schema or an enum, and an entry may be an array of fixed length. A plan is computed
from each schema. It lists, in order, the constant strings and the values that make up the JSON text of a payload. A
schema has no plan if its layout depends on values in the payload.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from tracekit.readers.common.damage import Damage
from tracekit.readers.nsys_rep.layout import load_fields

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from tracekit.readers.common.protobuf.decoding import Message

FIRST_SCHEMA = 1 << 24
STATIC, UNION, UNION_WITH_SELECTOR = 1, 3, 4
POINTER, FIXED_ARRAY, ARRAYS, OFFSETS = 1 << 1, 1 << 4, 7 << 4, 3 << 2
MAX_DEPTH, MAX_NESTED, MAX_VALUES, MAX_WIDTH = 8, 64, 4096, 1 << 20
MAX_PLANNED = 1 << 16
"""Maximum number of values in all plans of a report.

The number is limited because a few bytes of a schema can declare an array of thousands of values.
"""
POINTER_SIZE = 8
NUMBER_WIDTH, ESCAPED = 48, 6
_U64 = (1 << 64) - 1
_ESCAPES = {n: f"\\u{n:04X}" for n in range(32)} | {
    ord(c): f"\\{short}" for c, short in zip('\\"/\b\f\n\r\t', '\\"/bfnrt', strict=True)
}


class ValueFormat(Enum):
    """Formats of the values of a payload."""

    SIGNED = "signed integer"
    UNSIGNED = "unsigned integer"
    REAL = "floating point number"
    ADDRESS = "hexadecimal number"
    BYTE = "hexadecimal number of one byte"
    TEXT = "characters"
    ENUM = "name of an enum value"
    BLANK = "empty string, which nsys writes for types that it does not format"


class PayloadValue(NamedTuple):
    """The location, size and format of one value of a payload.

    Attributes:
        form: Format of the value in JSON.
        at: Offset of the value in the payload in bytes.
        size: Size of the value in bytes, or 0 if it extends to the end of the payload.
        labels: Names of the enum values, or None if the value is not an enum.
    """

    form: ValueFormat
    at: int
    size: int
    labels: EnumLabels | None = None

    @property
    def max_width(self) -> int:
        """Maximum number of characters of the formatted value."""
        return NUMBER_WIDTH + ESCAPED * self.size if self.labels is None else self.labels.max_width


Fragments: TypeAlias = "list[str | PayloadValue]"
Key: TypeAlias = tuple[int, int, int]


@dataclass(frozen=True)
class PayloadFormat:
    """A plan for formatting the payloads of one schema as JSON text.

    Attributes:
        fragments: Constant strings and values, in the order in which they occur in the JSON text.
        size: Exact size of a payload in bytes, or None if a payload may have any size of at least ``min_size``.
    """

    fragments: Fragments
    size: int | None = None

    @property
    def min_size(self) -> int:
        """Size in bytes of the smallest payload that contains all values."""
        return max((p.at + p.size for p in self.fragments if not isinstance(p, str)), default=0)

    @functools.cached_property
    def max_width(self) -> int:
        """Maximum number of characters of one formatted payload, not counting strings of unlimited length."""
        return sum(len(p) if isinstance(p, str) else p.max_width for p in self.fragments)


@dataclass(frozen=True)
class EnumLabels:
    """The names of the values of an enum. Values that are flags may be combined.

    Attributes:
        size: Size in bytes of an enum value in a payload.
        names: Name of each enum value.
        flags: Name of each enum value that is a flag.
    """

    size: int
    names: Mapping[int, str]
    flags: Mapping[int, str]

    @functools.cached_property
    def max_width(self) -> int:
        """Maximum number of characters of a formatted value of the enum."""
        return NUMBER_WIDTH + ESCAPED * sum(map(len, (*self.names.values(), *self.flags.values())))

    def format_enum_value(self, value: int) -> str:
        """Return the name that nsys writes for an enum value."""
        if value in self.names:
            return self.names[value]
        return ", ".join(n for bit, n in self.flags.items() if value & bit) or f"{value} - not registered"


class SchemaEntry(NamedTuple):
    """One entry of a payload schema, as stored in a report.

    Attributes:
        type: Number of a predefined type, or id of a schema or enum.
        flags: Flags for pointers and arrays.
        offset: Offset in the payload in bytes. If it is 0, the entry follows the previous entry.
        length: Number of values of an array, or number of characters of a string.
        name: Name of the entry.
    """

    type: int
    flags: int
    offset: int
    length: int
    name: str


class PayloadSchema(NamedTuple):
    """One payload schema, as stored in a report.

    Attributes:
        kind: Kind of layout, such as ``STATIC`` or ``UNION``.
        name: Name of the schema.
        entries: Entries in order.
        size: Size of a payload in bytes, or 0 if it is unknown.
        pack: Maximum alignment of the entries in bytes, or 0 for their natural alignment.
    """

    kind: int
    name: str
    entries: Sequence[SchemaEntry]
    size: int
    pack: int


class PayloadInstance(NamedTuple):
    """A payload that a program recorded separately from any event.

    Attributes:
        process: Global id of the process.
        domain: Id of the domain.
        schema: Id of the schema.
        time: Time in ns since the trace origin, or None if it is missing.
        data: Bytes of the payload.
    """

    process: int
    domain: int
    schema: int
    time: int | None
    data: bytes


_TYPES = {
    ValueFormat.SIGNED: (3, 5, 7, 9, 11, 13, 15, 17),
    ValueFormat.UNSIGNED: (2, 4, 6, 8, 10, 12, 14, 16, 18, 22, 80),
    ValueFormat.REAL: (19, 20, 43, 44),
    ValueFormat.ADDRESS: (23,),
    ValueFormat.BYTE: (32,),
    ValueFormat.TEXT: (1,),
    ValueFormat.BLANK: (21, 24, 26, 27, 33, 34, 42, 45, 50, 52, *range(68, 75), 77, 78),
}
FORMS = {number: form for form, numbers in _TYPES.items() for number in numbers}
STRINGS = {75: 1, 76: 1, 77: 2, 78: 4}
_C_TYPE_SIZES = (1, 1, 2, 2, 4, 4, 8, 8, 8, 8, 1, 1, 2, 2, 4, 4, 8, 8, 4, 8, 16, 8, 8, 4, 0, 2, 4)
SIZES = dict(enumerate(_C_TYPE_SIZES, 1)) | {
    32: 1, 33: 16, 34: 16, 42: 2, 43: 4, 44: 8, 45: 16, 50: 2, 52: 4,
    68: 4, 69: 4, 70: 8, 71: 4, 72: 8, 73: 4, 74: 8, 80: 8,
}  # fmt: skip


class _NoPlanError(Exception):
    """Error that is raised if the layout of a schema is unknown or depends on values in the payload."""


@dataclass
class Schemas:
    """The NVTX payload schemas and enums of a report.

    Attributes:
        schemas: Payload schemas by process, domain and id.
        enums: Names of enum values by process, domain and id of the enum.
        instances: Payloads that programs recorded separately from any event.
        sizes: Size of each predefined type in bytes.
    """

    schemas: dict[Key, PayloadSchema] = field(default_factory=dict)
    enums: dict[Key, EnumLabels] = field(default_factory=dict)
    instances: list[PayloadInstance] = field(default_factory=list)
    sizes: dict[int, int] = field(default_factory=lambda: dict(SIZES))
    _plans: dict[Key, PayloadFormat | None] = field(default_factory=dict)
    _planned_values: int = 0

    @classmethod
    def parse(cls, message: Message) -> Schemas:
        """Parse the message that contains the payload schemas of a report."""
        parsed = cls()
        types, schema, enum = load_fields("PredefinedType"), load_fields("PayloadSchema"), load_fields("PayloadEnum")
        listed = enumerate(message.messages(load_fields("PayloadSchemas").types), 1)
        parsed.sizes |= {n: m.int_value(types.size) or 0 for n, m in listed if m.int_value(types.size)}
        fields = load_fields("ProcessSchemas")
        for process in message.messages(load_fields("PayloadSchemas").processes):
            pid = _read_unsigned_number(process, fields.global_pid)
            for m in process.messages(fields.schemas):
                parsed.schemas[
                    pid, _read_unsigned_number(m, schema.domain_id), _read_unsigned_number(m, schema.schema_id)
                ] = _parse_schema(m)
            parsed.instances += [_parse_payload_instance(pid, m) for m in process.messages(fields.instances)]
            for m in process.messages(fields.enums):
                parsed.enums[pid, _read_unsigned_number(m, enum.domain_id), _read_unsigned_number(m, enum.enum_id)] = (
                    _parse_enum(m)
                )
        return parsed

    def plan_formatting(self, process_id: int, domain_id: int, schema_id: int) -> PayloadFormat | None:
        """Return a plan for formatting the payloads of a schema as JSON, or None if formatting is not possible.

        The result is None if the layout of the payloads is unknown, depends on their values, or is too large.

        Args:
            process_id: Global process id of the process that registered the schema.
            domain_id: Id of the NVTX domain of the schema.
            schema_id: Id of the schema. Ids below ``FIRST_SCHEMA`` are predefined types.

        Raises:
            Damage: All schemas together have more than ``MAX_PLANNED`` values.
        """
        if schema_id < FIRST_SCHEMA:
            return PayloadFormat(self._plan_predefined_type(schema_id))
        key = (process_id, domain_id, schema_id)
        schema = self.schemas.get(key)
        if schema is not None and key not in self._plans:
            self._plans[key] = self._plan_schema_formatting(process_id, domain_id, schema)
        return self._plans.get(key)

    def _plan_schema_formatting(self, process_id: int, domain_id: int, schema: PayloadSchema) -> PayloadFormat | None:
        """Return a plan for formatting the payloads of a schema as JSON, or None if formatting is not possible."""
        planner = _Planner(self, process_id, domain_id)
        try:
            fragments = planner.plan_struct(schema, 0, 0)
        except _NoPlanError:
            return None
        finally:
            self._planned_values += planner.values
            if self._planned_values > MAX_PLANNED:
                number = self._planned_values
                raise Damage(f"the payload schemas have {number} values, but tracekit supports at most {MAX_PLANNED}")
        named = ["{" + encode_json_string(schema.name) + ":", *fragments, "}"] if schema.name else fragments
        plan = PayloadFormat(list(_join_adjacent_constants(named)), schema.size or None)
        values = sum(not isinstance(p, str) for p in plan.fragments)
        return plan if values <= plan.min_size and plan.max_width <= MAX_WIDTH else None

    def _plan_predefined_type(self, type_id: int) -> Fragments:
        """Return the JSON fragments of payloads that have a predefined type instead of a schema.

        If a payload contains several values, only the first value is formatted.
        """
        if STRINGS.get(type_id) == 1:
            return [PayloadValue(ValueFormat.TEXT, 0, 0)]
        form, size = FORMS.get(type_id, ValueFormat.BLANK), self.sizes.get(type_id, 0)
        return (
            ['""'] if form is ValueFormat.BLANK or not _is_size_supported(form, size) else [PayloadValue(form, 0, size)]
        )


class _Planner:
    """A builder of the plan for formatting the payloads of one schema as JSON text."""

    def __init__(self, report: Schemas, process_id: int, domain_id: int) -> None:
        self.report = report
        self.key = (process_id, domain_id)
        self.alignments: dict[int, int] = {}
        self.values = 0

    def plan_struct(self, schema: PayloadSchema, offset: int, depth: int) -> Fragments:
        """Return the JSON fragments of a struct: constant strings, and values to format.

        Args:
            schema: Schema of the struct.
            offset: Offset of the struct in the payload in bytes.
            depth: Number of structs that contain this struct.
        """
        if schema.kind != STATIC or depth > MAX_DEPTH:
            raise _NoPlanError
        fragments: Fragments = []
        after = 0
        for nth, entry in enumerate(schema.entries):
            self._add_to_value_count(1)
            size, align = self.compute_size_and_alignment(entry)
            behind = _align_up(after, min(align, schema.pack or align))
            start = entry.offset if entry.offset or not nth else behind
            after = behind + size * _count_entry_values(entry)
            if schema.size and start + size * _count_entry_values(entry) > schema.size:
                raise _NoPlanError
            fragments_of_entry = self.plan_entry(entry, offset + start, size, depth)
            fragments += ["," if fragments else "", *fragments_of_entry] if fragments_of_entry else []
        return ["{", *fragments, "}"]

    def plan_entry(self, entry: SchemaEntry, offset: int, size: int, depth: int) -> Fragments:
        """Return the JSON fragments of a struct entry: constant strings, and values to format.

        The result is empty for a union, which nsys omits.
        """
        inner = self.report.schemas.get((*self.key, entry.type))
        if inner is not None and inner.kind in (UNION, UNION_WITH_SELECTOR):
            return []
        if not _is_array_entry(entry):
            return [
                f"{encode_json_string(_format_entry_name(entry, inner))}:",
                *self.plan_value(entry, inner, offset, size, depth),
            ]
        self._add_to_value_count(entry.length)
        items = (self.plan_value(entry, inner, offset + i * size, size, depth) for i in range(entry.length))
        return [
            f"{encode_json_string(entry.name)}:[",
            *(p for i, item in enumerate(items) for p in ("," * (i > 0), *item)),
            "]",
        ]

    def plan_value(
        self, entry: SchemaEntry, nested_schema: PayloadSchema | None, offset: int, size: int, depth: int
    ) -> Fragments:
        """Return the JSON fragments of one value of a struct entry: constant strings, and values to format.

        An array entry has several values.
        """
        if entry.flags & POINTER:
            return ['""']
        if nested_schema is not None:
            return self.plan_struct(nested_schema, offset, depth + 1)
        labels = self.report.enums.get((*self.key, entry.type))
        if labels is not None:
            return [PayloadValue(ValueFormat.ENUM, offset, size, labels)]
        form = (
            ValueFormat.TEXT
            if STRINGS.get(entry.type) == 1 and entry.length
            else FORMS.get(entry.type, ValueFormat.BLANK)
        )
        return ['""'] if form is ValueFormat.BLANK else [PayloadValue(form, offset, size)]

    def compute_size_and_alignment(self, entry: SchemaEntry) -> tuple[int, int]:
        """Return the size and alignment in bytes of one value of a schema entry.

        Raises:
            _NoPlanError: The size is unknown or depends on values in the payload.
        """
        if entry.flags & OFFSETS or entry.flags & ARRAYS not in (0, FIXED_ARRAY):
            raise _NoPlanError
        if entry.flags & POINTER:
            return POINTER_SIZE, POINTER_SIZE
        labels = self.report.enums.get((*self.key, entry.type))
        if labels is not None:
            if not _is_size_supported(ValueFormat.ENUM, labels.size):
                raise _NoPlanError
            return labels.size, labels.size
        inner = self.report.schemas.get((*self.key, entry.type))
        if inner is not None:
            return inner.size, self.compute_alignment(entry.type, inner)
        if entry.type in STRINGS:
            unit = STRINGS[entry.type]
            return (unit * entry.length, unit) if entry.length else (POINTER_SIZE, POINTER_SIZE)
        size, form = self.report.sizes.get(entry.type, 0), FORMS.get(entry.type)
        if not size or form is None or not _is_size_supported(form, size):
            raise _NoPlanError
        return size, size

    def compute_alignment(self, schema_id: int, schema: PayloadSchema) -> int:
        """Return the alignment of a struct in bytes: the largest alignment of its entries, limited by ``schema.pack``.

        Raises:
            _NoPlanError: The struct contains itself, or its size is unknown.
        """
        if schema_id not in self.alignments:
            if len(self.alignments) == MAX_NESTED:
                raise _NoPlanError
            self.alignments[schema_id] = 0
            widest = max((self.compute_size_and_alignment(e)[1] for e in schema.entries), default=1)
            self.alignments[schema_id] = min(widest, schema.pack or widest)
        if not self.alignments[schema_id] or not schema.size:
            raise _NoPlanError
        return self.alignments[schema_id]

    def _add_to_value_count(self, count: int) -> None:
        self.values += count
        if self.values > MAX_VALUES:
            raise _NoPlanError


def _read_unsigned_number(message: Message, field_number: int) -> int:
    """Return the unsigned integer value of a field, or 0 if the field is absent."""
    return (message.int_value(field_number) or 0) & _U64


def _parse_schema(message: Message) -> PayloadSchema:
    field = load_fields("PayloadSchema")
    entries = [_parse_entry(entry) for entry in message.messages(field.entries)]
    name, kind = message.text(field.name) or "", _read_unsigned_number(message, field.kind)
    return PayloadSchema(
        kind, name, entries, _read_unsigned_number(message, field.size), _read_unsigned_number(message, field.packing)
    )


def _parse_payload_instance(process: int, message: Message) -> PayloadInstance:
    field = load_fields("PayloadInstance")
    domain, schema = _read_unsigned_number(message, field.domain_id), _read_unsigned_number(message, field.schema_id)
    return PayloadInstance(
        process, domain, schema, message.int_value(field.time), bytes(message.bytes_value(field.data))
    )


def _parse_entry(message: Message) -> SchemaEntry:
    field = load_fields("PayloadEntry")
    kind, flags = _read_unsigned_number(message, field.type), _read_unsigned_number(message, field.flags)
    return SchemaEntry(
        kind,
        flags,
        _read_unsigned_number(message, field.offset),
        _read_unsigned_number(message, field.length),
        message.text(field.name) or "",
    )


def _parse_enum(message: Message) -> EnumLabels:
    enum, entry = load_fields("PayloadEnum"), load_fields("PayloadEnumEntry")
    listed = [
        (_read_unsigned_number(e, entry.value), e.text(entry.name) or "", bool(e.int_value(entry.is_flag)))
        for e in message.messages(enum.entries)
    ]
    names = {number: name for number, name, _ in reversed(listed)}
    return EnumLabels(
        _read_unsigned_number(message, enum.size), names, {number: name for number, name, is_flag in listed if is_flag}
    )


def _is_array_entry(entry: SchemaEntry) -> bool:
    return bool(entry.flags & FIXED_ARRAY) and entry.type not in STRINGS


def _count_entry_values(entry: SchemaEntry) -> int:
    """Return the number of values of a schema entry, which is 1 unless the entry is an array."""
    return entry.length if _is_array_entry(entry) else 1


def _is_size_supported(value_format: ValueFormat, size: int) -> bool:
    """Return whether values of the given size in bytes can be formatted in the given format."""
    return (
        size
        in {ValueFormat.REAL: (4, 8), ValueFormat.TEXT: (1,), ValueFormat.BYTE: (1,)}.get(value_format, (1, 2, 4, 8))
        or value_format is ValueFormat.BLANK
    )


def _align_up(offset: int, alignment: int) -> int:
    """Round an offset up to the next multiple of an alignment."""
    return -(-offset // max(1, alignment)) * max(1, alignment)


def _format_entry_name(entry: SchemaEntry, nested_schema: PayloadSchema | None) -> str:
    """Return the JSON key of a schema entry.

    The key of a nested struct begins with the name of its schema.
    """
    schema = "" if nested_schema is None else nested_schema.name
    return f"{schema}:{entry.name}" if schema and entry.name else schema or entry.name


def encode_json_string(text: str) -> str:
    """Encode a string as JSON like nsys, which escapes slashes but not non-ASCII characters."""
    return f'"{text.translate(_ESCAPES)}"'


def _join_adjacent_constants(fragments: Fragments) -> Iterator[str | PayloadValue]:
    """Yield the fragments of a plan, but concatenate adjacent constant strings."""
    constant = ""
    for fragment in fragments:
        if isinstance(fragment, str):
            constant += fragment
        else:
            yield constant
            yield fragment
            constant = ""
    yield constant
