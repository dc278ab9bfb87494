"""The declarations in ``schemas/`` as JSON, because Python needs 20 times as long to parse TOML.

``python -m tests.compiled_schemas`` writes ``schemas/_compiled.json`` anew, and ``schemas/why.json`` (see
``tests/why_schema.py``); ``tests/test_schemas.py`` fails if one of the files is out of date.
"""

from __future__ import annotations

import json
import tomllib
from typing import Any

from google.protobuf import descriptor_pb2
from tests import why_schema
from tracekit import schemas

FILE = schemas.FOLDER / "_compiled.json"


def tables() -> dict[str, Any]:
    """Return the content of the files in ``schemas/arrow``, by name."""
    return {p.stem: tomllib.loads(p.read_text("utf-8")) for p in sorted((schemas.FOLDER / "arrow").glob("*.toml"))}


def tensor_core_rules() -> dict[str, Any]:
    """Return the content of ``schemas/tensor_cores.toml``."""
    return tomllib.loads((schemas.FOLDER / "tensor_cores.toml").read_text("utf-8"))


def messages() -> dict[str, Any]:
    """Return the number and message type of each field, by schema file and message."""
    files = sorted((schemas.FOLDER / "proto").glob("*.binpb"))
    compiled = {p.stem: descriptor_pb2.FileDescriptorSet.FromString(p.read_bytes()).file[0] for p in files}
    return {name: {m.name: fields_of(m) for m in file.message_type} for name, file in compiled.items()}


def fields_of(message: descriptor_pb2.DescriptorProto) -> dict[str, Any]:
    """Return the number and the name of the message type, or null, of each field of a message."""
    return {f.name: [f.number, f.type_name.rpartition(".")[2] or None] for f in message.field}


def text() -> str:
    """Return the content of the file, with one line per table, schema file or group of rules."""
    parts = []
    compiled = {"tables": tables(), "messages": messages(), "tensor_core_rules": tensor_core_rules()}
    for name, listed in compiled.items():
        lines = [f"    {json.dumps(key)}: {json.dumps(value, ensure_ascii=False)}" for key, value in listed.items()]
        parts.append(f"  {json.dumps(name)}: {{\n" + ",\n".join(lines) + "\n  }")
    return "{\n" + ",\n".join(parts) + "\n}\n"


if __name__ == "__main__":
    FILE.write_text(text(), "utf-8")
    why_schema.FILE.write_text(why_schema.text(), "utf-8")
