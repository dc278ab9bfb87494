"""Write lines of text, such as events in JSON, from columns of numbers and strings.

A line consists of *fields*. A field writes its *lead*, which is constant, and then its value. It writes
nothing in rows in which the value is null.

Importing this module imports ``wasmtime``, which takes about 40 ms. It should be imported when it is first needed.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tracekit.native.arrays import ArraySandbox
from tracekit.native.program import Program

if TYPE_CHECKING:
    from collections.abc import Sequence

CONSTANT, INTEGER, UNSIGNED, THOUSANDTHS, STRING, TEXT = range(6)
"""Forms of values: none; integers, and integers to be divided by 1000; JSON strings; and text that is copied."""
NONE: Final = (1 << 32) - 1
"""Code of a null, and the number of the mask of fields without nulls."""
_SLACK: Final = 64
"""Number of bytes that must be free after a field. The program also reads up to 15 bytes after a string."""
_MIN_OUTPUT_BYTES: Final = 1 << 20
_PER_FIELD = ("forms", "leads", "nexts", "columns", "masks", "tables", "counts")
PROGRAM: Final = Program(
    "lines",
    {
        "lines": (
            *("rows", "fields", "output_bytes", "number_count", "code_count", "flag_count", "offset_count"),
            *("text_bytes", "size"),
        )
    },
    {
        "INTEGER": INTEGER,
        "UNSIGNED": UNSIGNED,
        "THOUSANDTHS": THOUSANDTHS,
        "STRING": STRING,
        "TEXT": TEXT,
        "CONSTANT": CONSTANT,
        "NONE": NONE,
        "SLACK": _SLACK,
        "INVALID": -1,
    },
    {
        "lines": {
            **dict.fromkeys(_PER_FIELD, np.uint32),
            "numbers": np.int64,
            "codes": np.uint32,
            "flags": np.uint8,
            "offsets": np.uint32,
            "text": np.uint8,
            "output": np.uint8,
        }
    },
)


class LineField(NamedTuple):
    """A field of a line.

    Attributes:
        form: Form of the values, such as ``INTEGER``.
        lead: Text that precedes each value.
        values: A 64-bit integer per row, or the code of a string per row, or None if the field is constant. The code
            ``NONE`` is null.
        strings: The strings, by code, as an Arrow array of the type ``string`` or ``large_string``.
        is_valid: Whether each value is not null, or None if no value is null.
        alternatives: Number of the following fields that are skipped in rows in which the value is not null.
    """

    form: int
    lead: bytes
    values: npt.NDArray[Any] | None = None
    strings: pa.StringArray | pa.LargeStringArray | None = None
    is_valid: npt.NDArray[np.bool_] | None = None
    alternatives: int = 0


class _StringTable(NamedTuple):
    """The strings of a field, as parts of the buffers of an Arrow array."""

    offsets: npt.NDArray[Any]
    data: npt.NDArray[np.uint8]

    @classmethod
    def from_array(cls, strings: pa.StringArray | pa.LargeStringArray | None) -> _StringTable:
        """Return the used parts of the buffers of an array, without copying them."""
        if strings is None or not len(strings):
            return cls(np.zeros(1, np.int64), np.zeros(0, np.uint8))
        _, offsets, data = strings.buffers()
        width = np.int32 if strings.type == pa.string() else np.int64
        used = np.frombuffer(offsets, width)[strings.offset : strings.offset + len(strings) + 1]
        first, stop = int(used[0]), int(used[-1])
        return cls(used, np.frombuffer(data, np.uint8)[first:stop] if stop > first else np.zeros(0, np.uint8))


class LineWriter:
    """Writer of lines. Only one thread at a time may use it."""

    def __init__(self) -> None:
        self._sandbox = ArraySandbox(PROGRAM)
        self._arrays: dict[str, npt.NDArray[Any]] = {}
        self._output_bytes = _MIN_OUTPUT_BYTES

    def write(self, fields: Sequence[LineField], rows: int) -> memoryview:
        """Return the lines of all rows. They stay in the memory of the program until the next call overwrites them.

        Args:
            fields: The fields of a line, in order.
            rows: Number of rows.

        Raises:
            MemoryError: The strings of all fields and the lines do not fit into 4 GiB.
            ValueError: A code or the number of alternatives of a field is invalid.
        """
        while True:
            sizes = self._load(fields, rows)
            done = self._sandbox.call("lines", rows=rows, output_bytes=self._output_bytes, **sizes)
            if done < 0:
                raise ValueError("a number, a code or a string of a line lies outside of its array")
            size = self._sandbox.parameter("lines", "size")
            if done == rows:
                return memoryview(self._arrays["output"].data)[:size]
            self._output_bytes = max(2 * self._output_bytes, 2 * size // max(done, 1) * rows)

    def _load(self, fields: Sequence[LineField], rows: int) -> dict[str, int]:
        """Copy all fields into the sandbox. Return the sizes of the arrays as parameters."""
        leads = b"".join(field.lead for field in fields)
        tables = [_StringTable.from_array(field.strings) for field in fields]
        has_codes = [field.strings is not None for field in fields]
        is_number = [field.values is not None and not coded for field, coded in zip(fields, has_codes, strict=True)]
        is_masked = [field.is_valid is not None for field in fields]
        sizes = {
            "number_count": sum(is_number) * rows,
            "code_count": sum(has_codes) * rows,
            "flag_count": sum(is_masked) * rows,
            "offset_count": sum(len(table.offsets) for table in tables),
            "text_bytes": len(leads) + sum(len(table.data) for table in tables),
        }
        self._arrays = arrays = self._sandbox.allocate(
            "lines",
            **dict.fromkeys(_PER_FIELD, len(fields) + 1),
            numbers=sizes["number_count"],
            codes=sizes["code_count"],
            flags=sizes["flag_count"],
            offsets=sizes["offset_count"],
            text=sizes["text_bytes"] + _SLACK,
            output=self._output_bytes + _SLACK,
        )
        numbers, codes, flags = (itertools.count() for _ in range(3))
        arrays["text"][: len(leads)] = np.frombuffer(leads, np.uint8)
        lead, offset, text = 0, 0, len(leads)
        for n, (field, table) in enumerate(zip(fields, tables, strict=True)):
            arrays["forms"][n], arrays["nexts"][n] = field.form, n + 1 + field.alternatives
            arrays["leads"][n : n + 2] = lead, (lead := lead + len(field.lead))
            arrays["columns"][n] = column = next(codes if has_codes[n] else numbers) if field.values is not None else 0
            if field.values is not None:
                arrays["codes" if has_codes[n] else "numbers"][column * rows : (column + 1) * rows] = field.values
            arrays["masks"][n] = mask = NONE if field.is_valid is None else next(flags)
            if field.is_valid is not None:
                arrays["flags"][mask * rows : (mask + 1) * rows] = field.is_valid
            arrays["tables"][n], arrays["counts"][n] = offset, len(table.offsets) - 1
            arrays["offsets"][offset : offset + len(table.offsets)] = table.offsets - table.offsets[0] + text
            arrays["text"][text : text + len(table.data)] = table.data
            offset, text = offset + len(table.offsets), text + len(table.data)
        return {"fields": len(fields), **sizes}
