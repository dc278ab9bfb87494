"""Describe a trace as one line of text or as HTML for notebooks."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tracekit.errors import convert_to_printable_path
from tracekit.text import to_printable

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path


@dataclass(frozen=True, slots=True)
class Description:
    """The metadata that a console or notebook shows for a trace.

    Attributes:
        format: Name of the format of the trace.
        path: The file or folder of the trace. None if its tables are in memory.
        duration: Duration of the capture in ns, as decimal digits. Empty if unknown.
        devices: Name of each GPU. None for a GPU without a name.
        rows: Number of rows of each table, by table name. Empty if the rows were not counted.
    """

    format: str
    path: Path | None = None
    duration: str = ""
    devices: tuple[str | None, ...] = ()
    rows: Mapping[str, int] = field(default_factory=dict)

    def to_line(self) -> str:
        """Return the description as one line."""
        return ", ".join(self._format_metadata())

    def to_html(self) -> str:
        """Return the description as HTML, with the number of rows of each table."""
        import html

        lines = "".join(f"<div>{html.escape(text)}</div>" for text in self._format_metadata())
        rows = "".join(f"<tr><td>{name}</td><td>{rows:,}</td></tr>" for name, rows in self.rows.items() if rows)
        head = "<thead><tr><th>table</th><th>rows</th></tr></thead>"
        table = f"<table>{head}<tbody>{rows}</tbody></table>" if rows else ""
        return f"<div><b>tracekit.Trace</b>{lines}{table}</div>"

    def _format_metadata(self) -> Iterator[str]:
        """Yield the metadata as short strings: format and path, duration, GPUs, and number of tables with rows."""
        yield self.format if self.path is None else f"{self.format} {convert_to_printable_path(self.path)}"
        if self.duration.isdecimal():
            yield f"{int(self.duration) / 1e6:,.3f} ms"
        if self.devices:
            names = ", ".join(dict.fromkeys(to_printable(name) for name in self.devices if name))
            yield _pluralize(len(self.devices), "GPU") + (f" ({names})" if names else "")
        if nonempty := sum(1 for rows in self.rows.values() if rows):
            yield f"{_pluralize(nonempty, 'table')} with rows"


def format_row_count(number: int, table_name: str) -> str:
    """Return the number of rows of a table, with the name of the table in the singular for one row: "1 memcpy"."""
    singular = table_name.removesuffix("es" if table_name.endswith("ches") else "s")
    return f"{number:,} {singular if number == 1 else table_name}"


def _pluralize(number: int, noun: str) -> str:
    """Return a number and its noun in the singular or plural, such as "2 GPUs"."""
    return f"{number} {noun}{'' if number == 1 else 's'}"
