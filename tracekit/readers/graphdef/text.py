"""Convert graphs from the text format of protobuf to its binary format."""

from __future__ import annotations

import re

from tracekit.readers.common.damage import Damage
from tracekit.readers.common.protobuf import messages
from tracekit.readers.tensorflow.types import FILE

MAX_TEXT_BYTES = 1 << 28
"""Maximum size of a text file. Parsing a file of this size takes a few minutes."""


_LONG_ESCAPES = re.compile(r"\\{1001}")
"""Pattern of more than 1000 consecutive backslashes. The parser of protobuf takes time quadratic in their number."""


def check_text_size(size: int) -> None:
    """Check that a text of the given size in bytes is not too large to be parsed.

    Raises:
        Damage: The size exceeds ``MAX_TEXT_BYTES``.
    """
    if size > MAX_TEXT_BYTES:
        raise Damage(
            f"the graph has {size:,} bytes of text, but tracekit supports at most {MAX_TEXT_BYTES:,}: "
            "save the graph in binary format"
        )


def encode_text_message(data: bytes | memoryview, name: str) -> bytes:
    """Convert a message from text format to binary format. Fields that the schema does not declare are dropped.

    Args:
        data: The message in text format.
        name: Name of the message type.

    Raises:
        Damage: The text is not a message of this type. The error contains the position of the first invalid token.
    """
    from google.protobuf import text_format

    check_text_size(len(data))
    text = bytes(data).decode("utf-8", "replace").removeprefix("\ufeff")
    if _LONG_ESCAPES.search(text):
        raise Damage(f"the {name} contains more than 1,000 consecutive backslashes, the most that tracekit supports")
    parsed = messages.load_message_class(FILE, name)()
    try:
        text_format.Parse(text, parsed, allow_unknown_field=True)
        return bytes(parsed.SerializeToString())
    except text_format.ParseError as e:
        line, column = e.GetLine(), e.GetColumn()
        position = "" if line is None else f" at line {line}, column {column or 1}"
        raise Damage(f"the protobuf text of the {name} is invalid or truncated{position}") from e
    except RecursionError as e:
        raise Damage(f"the {name} is nested too deeply") from e
    except (ValueError, OverflowError) as e:
        raise Damage(f"a value in the {name} is out of range") from e
