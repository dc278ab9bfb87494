"""Locate the tables in CSV that nvprof printed."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from tracekit.readers.common.damage import Damage
from tracekit.readers.nvprof_csv import HEADER

if TYPE_CHECKING:
    from collections.abc import Iterator

_END = re.compile(rb"^(?:==|\r?\n)", re.MULTILINE)
"""What follows a table: a line that nvprof begins with ``==``, or an empty line."""
_MAX_TABLES = 512


def locate_tables(content: bytes) -> Iterator[tuple[re.Match[bytes], int, int]]:
    """Yield the header of each table, and the start and end offset of its rows.

    A table ends at an empty line, or at a line that nvprof begins with ``==``.

    Raises:
        Damage: The last table is truncated, or there are too many tables.
    """
    headers = list(HEADER.finditer(content))
    if headers and b"Time(%)" not in headers[-1][0] and not content.endswith(b"\n"):
        raise Damage("the last row does not end with a line break, so it is truncated")
    if len(headers) > _MAX_TABLES:
        raise Damage(f"the file has more than {_MAX_TABLES} tables")
    for header, following in zip(headers, [*headers[1:], None], strict=True):
        stop = following.start() if following else len(content)
        end = _END.search(content, header.end(), stop)
        yield header, min(header.end() + 1, len(content)), end.start() if end else stop
