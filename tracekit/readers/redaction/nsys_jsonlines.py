"""Write a copy of a JSON export of Nsight Systems without values that identify people and machines."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from tracekit.readers.redaction import kineto

if TYPE_CHECKING:
    from pathlib import Path

    from tracekit.registry.source import Source

_FORM = kineto.JsonForm(
    string_table=re.compile(rb'^\{"data":\[', re.MULTILINE), program=re.compile(rb'"Command"\s{0,200}:\s{0,200}"')
)


def redact(source: Source, target: Path | None = None, key: bytes | None = None) -> dict[str, int]:
    """Write a copy of an export without values that identify people and machines.

    The strings of the first line are redacted one by one, because environments and names of kernels are among them. The
    arguments, results and errors are those of ``kineto.redact``.
    """
    return kineto.redact_json(source, target, key, _FORM)
