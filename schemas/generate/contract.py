"""What programs rely on: columns of tables and results, fields of the envelope, names, options, statuses and formats.

``contract.json`` beside this module lists them. All of them can be added at any time. If one is removed or changed, the
version has to be raised first: ``schemas.SCHEMA_VERSION`` for columns, ``tracekit.answers.envelope.ENVELOPE_VERSION``
for fields, and ``tracekit.__version__`` for all else: its major version, or the minor one for the toolbox of plug-ins.
The answers of further commands can be added as well, because only programs that ask these commands receive them.
"""

from __future__ import annotations

import json
from typing import Any

import tracekit as tk
from schemas.generate import answer_schema, interface
from tracekit import schemas
from tracekit.answers.envelope import ENVELOPE_VERSION
from tracekit.registry import analyses

FILE = schemas.FOLDER / "generate" / "contract.json"
_ANSWER = ("Envelope", "answer")
_PARTS = {"columns": ("table_schema", "SCHEMA_VERSION"), "fields": ("schema", "ENVELOPE_VERSION")}
_PARTS_OF_INTERFACE = {
    "python": ("major_version", "the major version"),
    "command_line": ("major_version", "the major version"),
    "formats": ("major_version", "the major version"),
    "toolbox": ("minor_version", "the minor version"),
}


class BrokenContractError(Exception):
    """What programs rely on has changed, but its version has not been raised."""


def build() -> dict[str, Any]:
    """Return the versions, and the description of each column, field, name, option, status and format by its owner."""
    tables = {name: schema for name, schema in schemas.tables().items() if name in _list_built_in_tables()}
    for kind in analyses.KINDS:
        for analysis in analyses.list_built_in_analyses(kind).values():
            tables |= {f"{kind}.{analysis.name}.{result.name}": result for result in analysis.results}
    columns = {
        name: {c.name: " ".join(filter(None, (c.type, c.unit))) for c in t.columns} for name, t in tables.items()
    }
    envelope = answer_schema.build()
    objects = {"Envelope": envelope, **envelope["$defs"]}
    fields = {
        name: {field: _describe(schema) for field, schema in each["properties"].items()}
        for name, each in objects.items()
    }
    major, minor, *_ = tk.__version__.split(".")
    versions = {
        "table_schema": schemas.SCHEMA_VERSION,
        "schema": ENVELOPE_VERSION,
        "major_version": major,
        "minor_version": f"{major}.{minor}",
    }
    return {**versions, "columns": columns, "fields": fields, **interface.build()}


def _list_built_in_tables() -> set[str]:
    return {path.stem for path in (schemas.FOLDER / "arrow").glob("[!_]*.toml")}


def _describe(schema: dict[str, Any]) -> str:
    """Return the type of a field, without its description and its examples."""
    words = {name: value for name, value in schema.items() if name not in ("description", "examples")}
    return json.dumps(words, sort_keys=True)


def list_changes(before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    """Return what programs relied on and is missing or different, although its version is the same."""
    changes = []
    for part, (version, constant) in _PARTS.items():
        if before[version] != after[version]:
            continue
        for owner, members in before[part].items():
            for name, kind in members.items():
                now = after[part].get(owner, {}).get(name)
                if now != kind and not ((owner, name) == _ANSWER and now is not None and _has_variants(now, kind)):
                    state = "is missing" if now is None else f"is {now}, but was {kind}"
                    changes.append(f"{owner}.{name} {state}: raise {constant}")
    for part, (version, constant) in _PARTS_OF_INTERFACE.items():
        if before[version] == after[version]:
            breaks = interface.list_breaks(before[part], after[part])
            changes += [f"{name} {state}: raise {constant}" for name, state in breaks]
    return changes


def _has_variants(after: str, before: str) -> bool:
    """Return whether a field of several kinds still has all kinds of objects that it had."""
    kinds, earlier = (json.loads(text).get("anyOf", []) for text in (after, before))
    return all(kind in kinds for kind in earlier) and bool(earlier)


def read_file() -> dict[str, Any]:
    """Return the contract in the file."""
    contract: dict[str, Any] = json.loads(FILE.read_text("utf-8"))
    return contract


def text() -> str:
    """Return the content of the file.

    Raises:
        BrokenContractError: The contract has changed, but its version has not been raised.
    """
    current = build()
    changes = list_changes(read_file(), current) if FILE.exists() else []
    if changes:
        raise BrokenContractError("; ".join(changes))
    return json.dumps(current, indent=1, ensure_ascii=False) + "\n"
