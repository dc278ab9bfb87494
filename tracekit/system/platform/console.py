"""Print on terminals and streams whose encoding is not UTF-8, or that do not interpret escape sequences."""

from __future__ import annotations

import codecs
import os
import sys
from typing import IO, Any

from tracekit.system.platform.modules import is_windows

UTF_8 = "utf-8"
_SUBSTITUTES = {"…": "...", "─": "-", "█": "#", "→": "->", "×": "x", "µ": "u", "≥": ">=", "≤": "<=", "·": "."}
"""ASCII characters for those that the command line prints itself."""
_ERRORS = "tracekit.substitute"


def accept_all_characters() -> None:
    """Let the standard streams print characters that their encoding lacks as ASCII, instead of raising an error.

    Streams whose encoding is UTF-8 are not changed.
    """
    for stream in (sys.stdout, sys.stderr):
        configure: Any = getattr(stream, "reconfigure", None)
        if configure is not None and get_encoding(stream) != UTF_8:
            configure(errors=_ERRORS)


def get_encoding(stream: Any) -> str:
    """Return the normalized name of the encoding of a text stream, which is UTF-8 if the stream does not state it."""
    try:
        return codecs.lookup(getattr(stream, "encoding", None) or UTF_8).name
    except LookupError:
        return UTF_8


def encode(text: str, encoding: str) -> bytes:
    """Encode text. Characters that the encoding lacks become ASCII, and surrogates the bytes that they stand for."""
    return text.encode(encoding, "surrogateescape" if encoding == UTF_8 else _ERRORS)


def interprets_escape_sequences(stream: IO[Any]) -> bool:
    """Return whether a terminal interprets escape sequences, after enabling this for a console of Windows."""
    if is_windows():
        from tracekit.system.platform import windows

        return windows.enable_escape_sequences(stream.fileno())
    return os.environ.get("TERM") != "dumb"


def _substitute(error: UnicodeError) -> tuple[str | bytes, int]:
    """Return what is printed for characters that cannot be encoded, as ``codecs.register_error`` requires."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    text = error.object[error.start : error.end]
    escaped = (_SUBSTITUTES.get(c) or c.encode("ascii", "backslashreplace").decode("ascii") for c in text)
    return "".join(escaped), error.end


codecs.register_error(_ERRORS, _substitute)
