"""Convert text files in other encodings to UTF-8."""

from __future__ import annotations

import codecs


def convert_to_utf8(content: bytes) -> bytes:
    """Return text in UTF-8, given text in UTF-8 or, with a byte order mark, in UTF-16, as PowerShell writes it.

    Byte order marks are removed. Invalid bytes are replaced.
    """
    if content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return content.decode("utf-16", "replace").encode()
    content = content.removeprefix(codecs.BOM_UTF8)
    try:
        content.decode()
    except UnicodeDecodeError:
        return content.decode("utf-8", "replace").encode()
    return content
