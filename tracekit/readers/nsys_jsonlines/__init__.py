"""Reader of JSON exports of Nsight Systems (``nsys export --type json`` and ``--type jsonlines``).

An export has one event per line. Its first line contains the strings, and its last line the names of threads. It does
not contain GPUs, contexts, streams and properties of the machine.
"""

from __future__ import annotations

import codecs
import re
from typing import TYPE_CHECKING

from tracekit.registry.interface import Reader
from tracekit.system.lazy import create_lazy_function

if TYPE_CHECKING:
    from tracekit.registry.interface import Capture
    from tracekit.registry.source import Source

_FIRST_LINE = re.compile(rb'\{"data":\[(?:"|\])|\{"Type":\d{1,9},"\w{1,60}Event":\{')


def sniff(source: Source) -> bool:
    """Return whether a file begins with the strings or the first event of a JSON export."""
    return _FIRST_LINE.match(source.head.removeprefix(codecs.BOM_UTF8)) is not None


def open_export(source: Source) -> Capture:
    """Open a JSON export of Nsight Systems."""
    from tracekit.readers.nsys_jsonlines.capture import JsonLinesCapture
    from tracekit.readers.nsys_jsonlines.lines import read_tables

    return JsonLinesCapture(read_tables(source))


_redact = create_lazy_function("tracekit.readers.redaction.nsys_jsonlines", "redact")
READER = Reader(
    "nsys-jsonlines",
    "Nsight Systems JSON export (nsys export --type json or jsonlines)",
    (".json", ".jsonl", ".jsonlines"),
    sniff,
    open_export,
    redact=_redact,
    redact_with_key=_redact,
    unredacted=_redact,
)
