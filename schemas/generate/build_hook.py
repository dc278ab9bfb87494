"""Compile the declarations when a wheel is built."""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

sys.path.insert(0, str(Path(__file__).parent))
import compiled


class CompiledDeclarations(BuildHookInterface[Any]):
    """Adds ``_schemas/_compiled.json`` to the wheel. An editable installation uses the file in the checkout."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if version == "editable":
            return
        text = json.dumps(compiled.compile_declarations(Path(self.root) / "schemas"), ensure_ascii=False)
        with tempfile.NamedTemporaryFile("w", encoding="utf-8", suffix=".json", delete=False) as file:
            file.write(text)
        build_data["force_include"][file.name] = "tracekit/_schemas/_compiled.json"
        self._written = Path(file.name)

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:  # noqa: ARG002
        if version != "editable":
            self._written.unlink()
