"""Graphs written as text, turned into what is written as bytes; the runtime of protobuf reads them."""

from __future__ import annotations

import re

from tracekit.readers.common.damage import Damage
from tracekit.readers.common.protobuf import messages
from tracekit.readers.tensorflow.types import FILE

MOST = 1 << 28
"""Bytes of text that are read; they take some minutes."""


_ESCAPES = re.compile(r"\\{1001}")
"""Backslashes in a row, for which the runtime's parser takes time that grows with the square of their number."""


def check_size(size: int) -> None:
    """Check that so many bytes of text are read.

    Raises:
        Damage: They are too many.
    """
    if size > MOST:
        raise Damage(f"{size} bytes of text are more than are read: write it as binary")


def encoded(octets: bytes | memoryview, name: str) -> bytes:
    """Read a message written as text: its binary form, without the fields that are not declared.

    Raises:
        Damage: It is none; the message says where it ceases to be.
    """
    from google.protobuf import text_format

    check_size(len(octets))
    text = bytes(octets).decode("utf-8", "replace").removeprefix("\ufeff")
    if _ESCAPES.search(text):
        raise Damage(f"the {name}: more than 1,000 backslashes in a row")
    made = messages.message(FILE, name)()
    try:
        text_format.Parse(text, made, allow_unknown_field=True)
        return bytes(made.SerializeToString())
    except text_format.ParseError as e:
        line, column = e.GetLine(), e.GetColumn()
        place = "" if line is None else f", line {line}, column {column or 1}"
        raise Damage(f"the {name}{place}: no text of protobuf, or cut short") from e
    except RecursionError as e:
        raise Damage(f"the {name} is nested too deep") from e
    except (ValueError, OverflowError) as e:
        raise Damage(f"the {name}: a value is out of range") from e
