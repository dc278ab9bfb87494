"""The messages in ``schemas/proto/*.proto``, compiled by protoc to descriptors."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

FOLDER = Path(__file__).parents[1] / "proto"
FILES = {path.with_suffix(".binpb"): path for path in sorted(FOLDER.glob("*.proto"))}
"""The source of each compiled file."""


def compile_messages(source: Path) -> bytes:
    """Return the descriptors of a file of messages, without comments."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "compiled"
        command = [*("-m", "grpc_tools.protoc", f"-I{source.parent}"), f"--descriptor_set_out={out}", source.name]
        subprocess.run([sys.executable, *command], check=True)
        return out.read_bytes()
