"""CSV of Nsight Compute (``ncu --csv``): every page, of 2019 to 2025, with what is printed around it."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from tracekit.registry import HEAD_BYTES, Reader

if TYPE_CHECKING:
    import pyarrow as pa

    from tracekit.registry import Source

_FAR_BYTES = 1 << 20
_MARKS = re.compile(
    rb'"ID","Process ID","|"Process ID","Process Name","|"Domain","Range:PL_Type'
    rb'|"Metric Name","Metric Unit","|^"(?:Launch|Session) Attribute","Value"'
    rb'|^"Kernel Name","[^"\n]*",?\r?\n"(?:#","Address|Address|#)","Source"'
    rb"|^==(?:PROF|WARNING|ERROR)== |^ {4}Section: \S",
    re.MULTILINE,
)
_UTF16 = (b"\xff\xfe", b"\xfe\xff")


def sniff(source: Source) -> bool:
    """Whether a file holds a table of ncu or its remarks, near the beginning: a program may have printed before."""
    if _MARKS.search(_text(source.head)):
        return True
    if len(source.head) < HEAD_BYTES or b"\0" in _text(source.head):
        return False
    with source.path.open("rb") as file:
        return _MARKS.search(_text(file.read(_FAR_BYTES))) is not None


def open_(source: Source) -> dict[str, pa.Table]:
    """Read a file."""
    from tracekit.readers.ncu_csv.capture import read

    return read(source)


def _text(data: bytes) -> bytes:
    """Take out the zeros of UTF-16; marks are ASCII."""
    return data.replace(b"\0", b"") if data.startswith(_UTF16) else data


READER = Reader("ncu-csv", "Nsight Compute CSV (ncu --csv)", (".csv", ".txt", ".log"), sniff, open_)
