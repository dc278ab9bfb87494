"""Recognize the header of Nsight Compute CSV that another program saved again."""

from __future__ import annotations

import re

_BEFORE, _AFTER = rb" {0,256}[\"']?", rb"[\"']? {0,256}"
_INDEX_CELL = _BEFORE + rb"(?:index|Unnamed: \d{1,3}(?:\.\d{1,3})?)?" + _AFTER + rb"(?P=separator)"
_LEADING_CELLS = (
    (rb"ID", rb"Process ID"),
    (rb"Process ID", rb"Process Name"),
    (rb"Domain", rb"Range:[^,;|\t\r\n]*"),
)
RESAVED_HEADER = re.compile(
    rb"^(?:\xef\xbb\xbf|\xff\xfe|\xfe\xff)?"
    rb"(?=[^,;|\t\r\n]{0,768}(?P<separator>[,;|\t]))(?P<index>(?:"
    + _INDEX_CELL
    + rb"){0,8})(?:"
    + b"|".join(
        _BEFORE + first + _AFTER + rb"(?P=separator)" + _BEFORE + second + _AFTER for first, second in _LEADING_CELLS
    )
    + rb")(?P=separator)",
    re.MULTILINE,
)
"""The beginning of the header of a table: columns with row numbers, and the first two columns of ncu.

A header that is exactly as ncu prints it also matches.
"""
