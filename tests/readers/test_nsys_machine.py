"""Properties of the machine: which ones are read, and how versions are written."""

from __future__ import annotations

import sqlite3
from typing import TYPE_CHECKING

import pytest
import tracekit as tk

if TYPE_CHECKING:
    from pathlib import Path

CREATE = "CREATE TABLE TARGET_INFO_SYSTEM_ENV (globalVid INTEGER, name TEXT, nameEnum INTEGER, value TEXT)"


def facts(path: Path, *properties: tuple[int, str]) -> dict[str, str]:
    """The facts of an export with these properties."""
    db = sqlite3.connect(path)
    db.execute("CREATE TABLE StringIds (id INTEGER NOT NULL PRIMARY KEY, value TEXT NOT NULL)")
    db.execute("CREATE TABLE META_DATA_EXPORT (name TEXT, value TEXT)")
    db.execute("INSERT INTO META_DATA_EXPORT VALUES ('EXPORT_SCHEMA_VERSION', '3.20.3')")
    db.execute(CREATE)
    db.executemany("INSERT INTO TARGET_INFO_SYSTEM_ENV VALUES (0, 'x', ?, ?)", properties)
    db.commit()
    db.close()
    with tk.load(path) as trace:
        return {k: v for k, v in trace.info.items() if k != "schema_version"}


@pytest.mark.parametrize(
    ("number", "text", "fact"),
    [
        (205, "5154304", ("driver_version", "515.43.04")),
        (205, "52510517", ("driver_version", "525.105.17")),
        (205, "580.159.04", ("driver_version", "580.159.04")),
        (611, "11070", ("cuda_version", "11.7")),
        (611, "12040", ("cuda_version", "12.4")),
        (611, "unknown", ("cuda_version", "unknown")),
        (13, "a processor", ("cpu_model", "a processor")),
        (605, "a system", ("os", "a system")),
    ],
)
def test_public_properties(number: int, text: str, fact: tuple[str, str], tmp_path: Path) -> None:
    assert facts(tmp_path / "x.sqlite", (number, text)) == dict([fact])


def test_other_properties_are_not_read(tmp_path: Path) -> None:
    private = [(n, "secret") for n in (0, 610, 620, 700, 897)]
    assert facts(tmp_path / "x.sqlite", *private, (13, "x" * 1000), (13, "")) == {}


def test_of_several_machines_the_first(tmp_path: Path) -> None:
    assert facts(tmp_path / "x.sqlite", (13, "one"), (13, "two")) == {"cpu_model": "one"}
