"""Read CSV output of Nsight Compute 2019 to 2025 (``ncu --csv``).

The files may also contain output of the profiled program, and may have been saved again by a spreadsheet or a library.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from tracekit.readers.ncu_csv.frame import RESAVED_HEADER
from tracekit.registry.interface import Reader
from tracekit.registry.source import HEAD_BYTES

if TYPE_CHECKING:
    from tracekit.readers.ncu_csv.capture import CsvCapture
    from tracekit.registry.source import Source

_LONG_HEAD_BYTES = 1 << 20
_NCU_OUTPUT = re.compile(
    rb'"ID","Process ID","|"Process ID","Process Name","|"Domain","Range:PL_Type'
    rb'|"Metric Name","Metric Unit","|^"(?:Launch|Session) Attribute","Value"'
    rb'|^"Kernel Name","[^"\n]*",?\r?\n"(?:#","Address|Address|#)","Source"'
    rb"|^==(?:PROF|WARNING|ERROR)== |^ {4}Section: \S",
    re.MULTILINE,
)
_UTF16 = (b"\xff\xfe", b"\xfe\xff")


def sniff(source: Source) -> bool:
    """Return whether the beginning of a file contains a CSV table or a message of ncu, possibly after other output."""
    if _is_output_of_ncu(_strip_utf16_zeros(source.head)):
        return True
    if len(source.head) < HEAD_BYTES or b"\0" in _strip_utf16_zeros(source.head):
        return False
    with source.path.open("rb") as file:
        return _is_output_of_ncu(_strip_utf16_zeros(file.read(_LONG_HEAD_BYTES)))


def open_capture(source: Source) -> CsvCapture:
    """Read an Nsight Compute CSV file, and return its declared tables as a capture."""
    from tracekit.readers.ncu_csv.capture import CsvCapture, read_tables

    return CsvCapture(read_tables(source))


def _is_output_of_ncu(text: bytes) -> bool:
    return _NCU_OUTPUT.search(text) is not None or RESAVED_HEADER.search(text) is not None


def _strip_utf16_zeros(data: bytes) -> bytes:
    """Remove the zero bytes from UTF-16 text, so that ASCII patterns match. Other data is returned unchanged."""
    return data.replace(b"\0", b"") if data.startswith(_UTF16) else data


READER = Reader("ncu-csv", "Nsight Compute CSV (ncu --csv)", (".csv", ".txt", ".log"), sniff, open_capture)
