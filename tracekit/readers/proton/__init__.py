"""Read profiles of Proton, the profiler of Triton (``.hatchet``).

A profile is a tree of functions and scopes with the sums of their kernels. It has no timeline.

Source: ``third_party/proton`` of Triton.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from tracekit.registry.interface import Reader
from tracekit.system.lazy import create_lazy_function

if TYPE_CHECKING:
    from tracekit.readers.proton.capture import ProtonCapture
    from tracekit.registry.source import Source

_START = re.compile(rb'(?:\xef\xbb\xbf)?\s{0,99}\[\s{0,99}\{\s{0,99}"(?:children|frame)"\s{0,99}:')
_FRAME = re.compile(rb'"frame"\s{0,99}:\s{0,99}\{\s{0,99}"name"|"children"\s{0,99}:\s{0,99}\[')


def sniff(source: Source) -> bool:
    """Return whether a file begins like the tree of a profile of Proton."""
    return _START.match(source.head) is not None and _FRAME.search(source.head) is not None


def open_capture(source: Source) -> ProtonCapture:
    """Open a profile of Proton."""
    from tracekit.readers.proton.capture import read_profile

    return read_profile(source)


_redact = create_lazy_function("tracekit.readers.redaction.kineto", "redact")
READER = Reader(
    "proton",
    "Profile of Proton, the profiler of Triton (.hatchet)",
    (".hatchet",),
    sniff,
    open_capture,
    redact=_redact,
    redact_with_key=_redact,
    unredacted=_redact,
)
