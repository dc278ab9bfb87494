"""Schemas of NVTX payloads: what a program said about the bytes that it attached to its ranges and marks.

A schema lists entries like a struct of C: a type, a name, an offset; an entry may hold another schema, an enum, or an
array of a fixed length. From it follows a plan of the JSON text that nsys makes of a payload: constant pieces with the
values of the bytes between them. Schemas whose layout depends on the values themselves have no plan.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, TypeAlias

from tracekit.readers.common.damage import Damage
from tracekit.readers.nsys_rep.fields import fields_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from tracekit.readers.common.protobuf.wire import Message

FIRST_SCHEMA = 1 << 24
STATIC, UNION, UNION_WITH_SELECTOR = 1, 3, 4
POINTER, FIXED_ARRAY, ARRAYS, OFFSETS = 1 << 1, 1 << 4, 7 << 4, 3 << 2
MAX_DEPTH, MAX_NESTED, MAX_VALUES, MAX_WIDTH = 8, 64, 4096, 1 << 20
MAX_PLANNED = 1 << 16
"""Values in the plans of all schemas of a report; an array of thousands takes a few bytes in its schema."""
POINTER_SIZE = 8
NUMBER_WIDTH, ESCAPED = 48, 6
_U64 = (1 << 64) - 1
_ESCAPES = {n: f"\\u{n:04X}" for n in range(32)} | {
    ord(c): f"\\{short}" for c, short in zip('\\"/\b\f\n\r\t', '\\"/bfnrt', strict=True)
}


class Form(Enum):
    """How the text of a value is made of its bytes."""

    SIGNED = "signed integer"
    UNSIGNED = "unsigned integer"
    REAL = "floating point number"
    ADDRESS = "hexadecimal number"
    BYTE = "hexadecimal number of one byte"
    TEXT = "characters"
    ENUM = "name of a number"
    BLANK = "nothing: nsys gives an empty text"


@dataclass(frozen=True, slots=True)
class Value:
    """One value of a payload.

    Attributes:
        form: How its text is made.
        at: Where its bytes begin.
        size: How many there are; 0 for all that follow.
        labels: Names of its numbers.
    """

    form: Form
    at: int
    size: int
    labels: Labels | None = None

    @property
    def width(self) -> int:
        """Most characters that its text has."""
        return NUMBER_WIDTH + ESCAPED * self.size if self.labels is None else self.labels.width


Pieces: TypeAlias = "list[str | Value]"
Key: TypeAlias = tuple[int, int, int]


@dataclass(frozen=True)
class Plan:
    """How the text of payloads is put together.

    Attributes:
        pieces: Constant text, and values between it.
        size: Size that payloads must have; None if a larger one will do.
    """

    pieces: Pieces
    size: int | None = None

    @property
    def least(self) -> int:
        """Least size of payloads that have all the values."""
        return max((p.at + p.size for p in self.pieces if not isinstance(p, str)), default=0)

    @functools.cached_property
    def width(self) -> int:
        """Most characters that the text of one payload has, but for those of texts of any length."""
        return sum(len(p) if isinstance(p, str) else p.width for p in self.pieces)


@dataclass(frozen=True)
class Labels:
    """Names of the numbers of an enum; those of flags may be combined."""

    size: int
    names: Mapping[int, str]
    flags: Mapping[int, str]

    @functools.cached_property
    def width(self) -> int:
        """Most characters that a name has."""
        return NUMBER_WIDTH + ESCAPED * sum(map(len, (*self.names.values(), *self.flags.values())))

    def of(self, number: int) -> str:
        """Name a number as nsys does."""
        if number in self.names:
            return self.names[number]
        return ", ".join(n for bit, n in self.flags.items() if number & bit) or f"{number} - not registered"


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry of a schema."""

    type: int
    flags: int
    offset: int
    detail: int
    name: str


@dataclass(frozen=True, slots=True)
class Schema:
    """One schema; of unknown size if it says 0."""

    kind: int
    name: str
    entries: Sequence[Entry]
    size: int
    pack: int


_TYPES = {
    Form.SIGNED: (3, 5, 7, 9, 11, 13, 15, 17),
    Form.UNSIGNED: (2, 4, 6, 8, 10, 12, 14, 16, 18, 22, 80),
    Form.REAL: (19, 20, 43, 44),
    Form.ADDRESS: (23,),
    Form.BYTE: (32,),
    Form.TEXT: (1,),
    Form.BLANK: (21, 24, 26, 27, 33, 34, 42, 45, 50, 52, *range(68, 75), 77, 78),
}
FORMS = {number: form for form, numbers in _TYPES.items() for number in numbers}
STRINGS = {75: 1, 76: 1, 77: 2, 78: 4}
_OF_C_TYPES = (1, 1, 2, 2, 4, 4, 8, 8, 8, 8, 1, 1, 2, 2, 4, 4, 8, 8, 4, 8, 16, 8, 8, 4, 0, 2, 4)
SIZES = dict(enumerate(_OF_C_TYPES, 1)) | {
    32: 1, 33: 16, 34: 16, 42: 2, 43: 4, 44: 8, 45: 16, 50: 2, 52: 4,
    68: 4, 69: 4, 70: 8, 71: 4, 72: 8, 73: 4, 74: 8, 80: 8,
}  # fmt: skip


class NoPlan(Exception):  # noqa: N818 - never leaves this module
    """The layout is not fixed, or not known."""


@dataclass
class Schemas:
    """All schemas and enums of a report, by process, domain and id."""

    schemas: dict[Key, Schema] = field(default_factory=dict)
    enums: dict[Key, Labels] = field(default_factory=dict)
    sizes: dict[int, int] = field(default_factory=lambda: dict(SIZES))
    _plans: dict[Key, Plan | None] = field(default_factory=dict)
    _planned_values: int = 0

    @classmethod
    def of(cls, block: Message) -> Schemas:
        """Read the block of schemas."""
        made = cls()
        types, schema, enum = fields_of("PredefinedType"), fields_of("PayloadSchema"), fields_of("PayloadEnum")
        listed = enumerate(block.messages(fields_of("PayloadSchemas").types), 1)
        made.sizes |= {n: m.number(types.size) or 0 for n, m in listed if m.number(types.size)}
        fields = fields_of("ProcessSchemas")
        for process in block.messages(fields_of("PayloadSchemas").processes):
            pid = _number(process, fields.global_pid)
            for m in process.messages(fields.schemas):
                made.schemas[pid, _number(m, schema.domain_id), _number(m, schema.schema_id)] = _schema(m)
            for m in process.messages(fields.enums):
                made.enums[pid, _number(m, enum.domain_id), _number(m, enum.enum_id)] = _labels(m)
        return made

    def plan(self, process: int, domain: int, number: int) -> Plan | None:
        """Plan the text of payloads of one schema; None if it is not known or its layout not fixed.

        Raises:
            Damage: The plans so far have more values than those of any real report.
        """
        if number < FIRST_SCHEMA:
            return Plan(self._predefined(number))
        key = (process, domain, number)
        schema = self.schemas.get(key)
        if schema is not None and key not in self._plans:
            self._plans[key] = self._planned(process, domain, schema)
        return self._plans.get(key)

    def _planned(self, process: int, domain: int, schema: Schema) -> Plan | None:
        planner = _Planner(self, process, domain)
        try:
            pieces = planner.object(schema, 0, 0)
        except NoPlan:
            return None
        finally:
            self._planned_values += planner.values
            if self._planned_values > MAX_PLANNED:
                raise Damage(f"its payload schemas have more than {MAX_PLANNED} values")
        named = ["{" + quoted(schema.name) + ":", *pieces, "}"] if schema.name else pieces
        plan = Plan(list(_joined(named)), schema.size or None)
        values = sum(not isinstance(p, str) for p in plan.pieces)
        return plan if values <= plan.least and plan.width <= MAX_WIDTH else None

    def _predefined(self, number: int) -> Pieces:
        """Plan the text of a payload that is a value of a predefined type: the first one of several."""
        if STRINGS.get(number) == 1:
            return [Value(Form.TEXT, 0, 0)]
        form, size = FORMS.get(number, Form.BLANK), self.sizes.get(number, 0)
        return ['""'] if form is Form.BLANK or not _fits(form, size) else [Value(form, 0, size)]


class _Planner:
    """Plans of the schemas of one domain of one process."""

    def __init__(self, known: Schemas, process: int, domain: int) -> None:
        self.known = known
        self.place = (process, domain)
        self.alignments: dict[int, int] = {}
        self.values = 0

    def object(self, schema: Schema, at: int, depth: int) -> Pieces:
        """Plan the text of a struct that begins at a byte."""
        if schema.kind != STATIC or depth > MAX_DEPTH:
            raise NoPlan
        pieces: Pieces = []
        after = 0
        for nth, entry in enumerate(schema.entries):
            self._count(1)
            size, align = self.extent(entry)
            behind = _aligned(after, min(align, schema.pack or align))
            start = entry.offset if entry.offset or not nth else behind
            after = behind + size * _length(entry)
            if schema.size and start + size * _length(entry) > schema.size:
                raise NoPlan
            made = self.entry(entry, at + start, size, depth)
            pieces += ["," if pieces else "", *made] if made else []
        return ["{", *pieces, "}"]

    def entry(self, entry: Entry, at: int, size: int, depth: int) -> Pieces:
        """Plan name and value of an entry; nothing for a union, which nsys leaves out."""
        inner = self.known.schemas.get((*self.place, entry.type))
        if inner is not None and inner.kind in (UNION, UNION_WITH_SELECTOR):
            return []
        if not _is_array(entry):
            return [f"{quoted(_title(entry, inner))}:", *self.value(entry, inner, at, size, depth)]
        self._count(entry.detail)
        items = (self.value(entry, inner, at + i * size, size, depth) for i in range(entry.detail))
        return [f"{quoted(entry.name)}:[", *(p for i, item in enumerate(items) for p in ("," * (i > 0), *item)), "]"]

    def value(self, entry: Entry, inner: Schema | None, at: int, size: int, depth: int) -> Pieces:
        """Plan one value."""
        if entry.flags & POINTER:
            return ['""']
        if inner is not None:
            return self.object(inner, at, depth + 1)
        labels = self.known.enums.get((*self.place, entry.type))
        if labels is not None:
            return [Value(Form.ENUM, at, size, labels)]
        form = Form.TEXT if STRINGS.get(entry.type) == 1 and entry.detail else FORMS.get(entry.type, Form.BLANK)
        return ['""'] if form is Form.BLANK else [Value(form, at, size)]

    def extent(self, entry: Entry) -> tuple[int, int]:
        """Size and alignment of one value of an entry, in bytes."""
        if entry.flags & OFFSETS or entry.flags & ARRAYS not in (0, FIXED_ARRAY):
            raise NoPlan
        if entry.flags & POINTER:
            return POINTER_SIZE, POINTER_SIZE
        labels = self.known.enums.get((*self.place, entry.type))
        if labels is not None:
            if not _fits(Form.ENUM, labels.size):
                raise NoPlan
            return labels.size, labels.size
        inner = self.known.schemas.get((*self.place, entry.type))
        if inner is not None:
            return inner.size, self.alignment(entry.type, inner)
        if entry.type in STRINGS:
            unit = STRINGS[entry.type]
            return (unit * entry.detail, unit) if entry.detail else (POINTER_SIZE, POINTER_SIZE)
        size, form = self.known.sizes.get(entry.type, 0), FORMS.get(entry.type)
        if not size or form is None or not _fits(form, size):
            raise NoPlan
        return size, size

    def alignment(self, number: int, schema: Schema) -> int:
        """Alignment of a struct: that of its widest entry. There is none in a struct that holds itself."""
        if number not in self.alignments:
            if len(self.alignments) == MAX_NESTED:
                raise NoPlan
            self.alignments[number] = 0
            widest = max((self.extent(e)[1] for e in schema.entries), default=1)
            self.alignments[number] = min(widest, schema.pack or widest)
        if not self.alignments[number] or not schema.size:
            raise NoPlan
        return self.alignments[number]

    def _count(self, values: int) -> None:
        self.values += values
        if self.values > MAX_VALUES:
            raise NoPlan


def _number(m: Message, field: int) -> int:
    """The unsigned number of a field; 0 if it is absent."""
    return (m.number(field) or 0) & _U64


def _schema(m: Message) -> Schema:
    field = fields_of("PayloadSchema")
    entries = [_entry(entry) for entry in m.messages(field.entries)]
    name, kind = m.text(field.name) or "", _number(m, field.kind)
    return Schema(kind, name, entries, _number(m, field.size), _number(m, field.packing))


def _entry(m: Message) -> Entry:
    field = fields_of("PayloadEntry")
    kind, flags = _number(m, field.type), _number(m, field.flags)
    return Entry(kind, flags, _number(m, field.offset), _number(m, field.length), m.text(field.name) or "")


def _labels(m: Message) -> Labels:
    enum, entry = fields_of("PayloadEnum"), fields_of("PayloadEnumEntry")
    listed = [
        (_number(e, entry.value), e.text(entry.name) or "", bool(e.number(entry.is_flag)))
        for e in m.messages(enum.entries)
    ]
    names = {number: name for number, name, _ in reversed(listed)}
    return Labels(_number(m, enum.size), names, {number: name for number, name, is_flag in listed if is_flag})


def _is_array(entry: Entry) -> bool:
    return bool(entry.flags & FIXED_ARRAY) and entry.type not in STRINGS


def _length(entry: Entry) -> int:
    return entry.detail if _is_array(entry) else 1


def _fits(form: Form, size: int) -> bool:
    """Whether there are numbers of so many bytes."""
    return size in {Form.REAL: (4, 8), Form.TEXT: (1,), Form.BYTE: (1,)}.get(form, (1, 2, 4, 8)) or form is Form.BLANK


def _aligned(at: int, align: int) -> int:
    return -(-at // max(1, align)) * max(1, align)


def _title(entry: Entry, inner: Schema | None) -> str:
    """Name of an entry; a struct has the name of its schema before its own."""
    schema = "" if inner is None else inner.name
    return f"{schema}:{entry.name}" if schema and entry.name else schema or entry.name


def quoted(text: str) -> str:
    """Quote a text as nsys does: JSON, with slashes escaped and letters of all scripts as they are."""
    return f'"{text.translate(_ESCAPES)}"'


def _joined(pieces: Pieces) -> Iterator[str | Value]:
    """Join constant pieces that stand side by side."""
    constant = ""
    for piece in pieces:
        if isinstance(piece, str):
            constant += piece
        else:
            yield constant
            yield piece
            constant = ""
    yield constant
