"""Reads what ``nsys stats`` printed: tables of columns for people, of several releases and locales."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

RULE = re.compile(r" *-{2,}( +-{2,})+ *")
ROW = re.compile(r" *-?[\d.,]+ ")
CUT = "…"


@dataclass(frozen=True)
class Table:
    """One printed table: its titles, and the text of each cell."""

    titles: tuple[str, ...]
    rows: list[tuple[str, ...]]

    def column(self, title: str) -> list[str]:
        return [row[self.titles.index(title)] for row in self.rows]


def tables(text: str) -> Iterator[Table]:
    """Find every table of a text: a line of titles, a line of dashes as wide as the columns, rows."""
    lines = text.splitlines()
    for at, line in enumerate(lines):
        if RULE.fullmatch(line):
            edges = [m.span() for m in re.finditer("-+", line)]
            titles = next(above for above in reversed(lines[:at]) if above.strip())
            yield Table(cells(titles, edges), [cells(row, edges) for row in rows(lines[at + 1 :])])


def rows(lines: list[str]) -> Iterator[str]:
    """Give the rows of a table: lines that begin with a number, up to two empty lines or other text."""
    empty = 0
    for line in lines:
        empty = 0 if line.strip() else empty + 1
        if empty > 1 or (line.strip() and not ROW.match(line)):
            return
        if line.strip():
            yield line


def cells(line: str, edges: list[tuple[int, int]]) -> tuple[str, ...]:
    """Cut a line at the edges of columns; the last one goes on to its end."""
    ends = [*(end for _, end in edges[:-1]), None]
    return tuple(line[start:end].strip() for (start, _), end in zip(edges, ends, strict=True))


def number(cell: str, *, comma: bool = False) -> float:
    """Read a number with thousands separators; in some locales the comma is the decimal one."""
    return float(cell.replace(".", "").replace(",", ".") if comma else cell.replace(",", ""))


def same_text(printed: str, whole: str) -> bool:
    """Tell whether a printed text is this one; long ones are cut."""
    whole = whole.strip()
    return whole.startswith(printed[:-1]) if printed.endswith(CUT) else printed == whole
