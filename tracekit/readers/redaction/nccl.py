"""Write a copy of a log of collectives without values that identify people and machines.

Flight recorders that are pickles are treated like memory snapshots, and JSON like traces of PyTorch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tracekit.readers.redaction import kineto, memory_snapshot

if TYPE_CHECKING:
    from pathlib import Path

    from tracekit.registry.source import Source

_PICKLE = b"\x80"


def redact(source: Source, target: Path | None = None, key: bytes | None = None) -> dict[str, int]:
    """Write a copy of a log without values that identify people and machines.

    Args:
        source: Log to copy.
        target: Path of the copy, which must not exist. If None, the private values are only counted.
        key: Key that determines the pseudonyms, or None for a random key.

    Returns:
        The number of replaced values of each kind.

    Raises:
        CorruptTraceError: The log is damaged or truncated, or contains strings that cannot be replaced.
        TracekitError: The log changed while it was read.
    """
    redact_file = memory_snapshot.redact if source.head.startswith(_PICKLE) else kineto.redact
    return redact_file(source, target, key)
