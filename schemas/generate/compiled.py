"""The declarations in ``schemas/`` as one JSON file, because Python needs 20 times as long to parse TOML.

In a checkout, ``tracekit.schemas`` writes ``schemas/_compiled.json`` with this module whenever a source has changed.
The build writes the file for the wheel.
"""

from __future__ import annotations

import contextlib
import json
import os
import threading
import tomllib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path


def refresh(folder: Path, stamp: str) -> dict[str, Any]:
    """Return the compiled declarations, and write them and the stamp of their sources unless the folder is read-only.

    Several processes can do this at the same time: each writes a file of its own, which replaces the previous one.
    """
    compiled = {"stamp": stamp, **compile_declarations(folder)}
    written = folder / f"_compiled.{os.getpid()}.{threading.get_ident()}.tmp"
    with contextlib.suppress(OSError):
        try:
            written.write_text(json.dumps(compiled, ensure_ascii=False), "utf-8")
            written.replace(folder / "_compiled.json")
        finally:
            written.unlink(missing_ok=True)
    return compiled


def compile_declarations(folder: Path) -> dict[str, Any]:
    """Return the declared tables and analyses, the fields of the messages, and the other files of rules by name."""
    tables = {p.stem: tomllib.loads(p.read_text("utf-8")) for p in sorted((folder / "arrow").glob("*.toml"))}
    rules = {p.stem: tomllib.loads(p.read_text("utf-8")) for p in sorted(folder.glob("*.toml"))}
    messages = {p.stem: _list_fields(p.read_bytes()) for p in sorted((folder / "proto").glob("*.binpb"))}
    analyses = {p.stem: tomllib.loads(p.read_text("utf-8")) for p in sorted((folder / "analyses").glob("*.toml"))}
    return {"tables": tables, "analyses": analyses, "messages": messages, "rules": rules}


def _list_fields(descriptor: bytes) -> dict[str, Any]:
    """Return the number and the name of the message type, or None, of each field of each message."""
    from google.protobuf import descriptor_pb2

    (file,) = descriptor_pb2.FileDescriptorSet.FromString(descriptor).file
    return {
        message.name: {f.name: [f.number, f.type_name.rpartition(".")[2] or None] for f in message.field}
        for message in file.message_type
    }
