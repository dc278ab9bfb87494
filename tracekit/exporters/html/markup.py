"""Write HTML elements. All texts are escaped, so names in a capture are never interpreted as markup."""

from __future__ import annotations

import html
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tracekit.text import to_printable

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    import polars as pl

LONG = 90
"""Maximum length of a text that is not collapsed."""
_SHORT = 24
LONGEST = 6000
"""Maximum length of a text that is not shortened, which limits the size of the page."""


@dataclass(frozen=True, slots=True)
class Table:
    """An HTML table.

    Attributes:
        caption: Caption of the table.
        titles: Titles of the columns.
        rows: Values of the cells, by row. Numbers are written with thousands separators.
        total: Total number of rows. It is larger than the number of ``rows`` if only the first rows are shown.
        header: Index of the column that contains the row headers.
    """

    caption: str
    titles: Sequence[str]
    rows: Sequence[Sequence[Any]]
    total: int
    header: int = 0

    @classmethod
    def from_frame(
        cls,
        caption: str,
        frame: pl.DataFrame,
        columns: Sequence[str] | Mapping[str, str],
        max_rows: int,
        header_column: str,
    ) -> Table:
        """Return a table of the first rows of a data frame.

        Args:
            caption: Caption of the table.
            frame: The data frame.
            columns: Names of the columns to show, or a mapping from their names to their titles.
            max_rows: Maximum number of rows to show.
            header_column: Name of the column that contains the row headers.
        """
        titles = columns if isinstance(columns, dict) else {c: c for c in columns}
        shown = frame.head(max_rows).select(list(titles))
        return cls(caption, list(titles.values()), shown.rows(), frame.height, list(titles).index(header_column))

    def to_html(self) -> str:
        """Return the table as an HTML element."""
        classes = [_choose_column_class([row[n] for row in self.rows]) for n in range(len(self.titles))]
        titles = zip(self.titles, classes, strict=True)
        head = "".join(f'<th scope="col"{class_}>{escape_text(title)}</th>' for title, class_ in titles)
        body = "".join(f"<tr>{self._format_cells(row, classes)}</tr>\n" for row in self.rows)
        count = "" if self.total == len(self.rows) else f" (first {len(self.rows):,} of {self.total:,} rows)"
        caption = f"<caption>{escape_text(self.caption)}{count}</caption>"
        table = f"<table>{caption}<thead><tr>{head}</tr></thead>\n<tbody>\n{body}</tbody></table>"
        label = f"Table: {escape_text(self.caption)}"
        return f'<div class="scroll" role="region" tabindex="0" aria-label="{label}">{table}</div>\n'

    def _format_cells(self, row: Sequence[Any], classes: Sequence[str]) -> str:
        cells = []
        for n, (value, class_) in enumerate(zip(row, classes, strict=True)):
            start, end = ('<th scope="row"', "</th>") if n == self.header else ("<td", "</td>")
            cells.append(f"{start}{class_}>{format_cell(value)}{end}")
        return "".join(cells)


@dataclass(frozen=True, slots=True)
class Section:
    """A section of an HTML page.

    Attributes:
        title: Title of the section.
        anchor: Id of the section in links to it.
        notes: Texts of the paragraphs below the heading.
        metadata: Pairs of a label and a value, which are shown as a description list.
        figures: Plotly figures as JSON objects, by name.
        tables: Tables at the end of the section.
        articles: Findings, each with a title, paragraphs, and pairs of a label and a value.
    """

    title: str
    anchor: str
    notes: Sequence[str] = ()
    metadata: Sequence[tuple[str, str]] = ()
    figures: Mapping[str, Any] = field(default_factory=dict)
    tables: Sequence[Table] = ()
    articles: Sequence[tuple[str, Sequence[str], Sequence[tuple[str, str]]]] = ()

    def to_html(self) -> str:
        """Return the section as an HTML element."""
        notes = "".join(f"<p>{escape_text(note)}</p>\n" for note in self.notes)
        figures = "".join(format_figure_element(name, drawn) for name, drawn in self.figures.items())
        articles = "".join(format_finding(*parts) for parts in self.articles)
        tables = "".join(table.to_html() for table in self.tables)
        content = notes + format_description_list(self.metadata) + figures + articles + tables
        heading = f'<h2 id="{self.anchor}-title">{escape_text(self.title)}</h2>'
        return f'<section id="{self.anchor}" aria-labelledby="{self.anchor}-title">{heading}\n{content}</section>\n'


def escape_text(value: str) -> str:
    """Escape the markup, control characters and direction-changing characters of a text."""
    return html.escape(to_printable(value))


def format_cell(value: Any) -> str:
    """Format a value as the HTML content of a table cell. Long texts are collapsed. None becomes an empty string."""
    if value is None:
        return ""
    if isinstance(value, int | float):
        return f"{value:,}"
    written = str(value)
    if len(written) <= LONG:
        return escape_text(written)
    shown = written if len(written) <= LONGEST else f"{written[:LONGEST]}… ({len(written):,} characters)"
    return f"<details><summary>{escape_text(written[: LONG - 1])}…</summary>{escape_text(shown)}</details>"


def format_description_list(pairs: Iterable[tuple[str, str]]) -> str:
    """Return pairs of a label and a value as an HTML description list, or an empty string if there are no pairs."""
    items = "".join(f"<div><dt>{escape_text(label)}</dt><dd>{escape_text(value)}</dd></div>" for label, value in pairs)
    return f"<dl>{items}</dl>\n" if items else ""


def format_figure_element(name: str, figure: Mapping[str, Any]) -> str:
    """Return the HTML element in which a figure is drawn. The title of the figure is its label for screen readers."""
    layout = figure["layout"]
    height = layout.get("height") or 380
    title = escape_text(layout["title"]["text"])
    attributes = f'id="figure-{name}" role="img" aria-label="{title}" style="height:{height}px"'
    return f'<figure><div class="figure" {attributes}></div></figure>\n'


def format_finding(title: str, paragraphs: Sequence[str], pairs: Sequence[tuple[str, str]]) -> str:
    """Return a finding as an HTML element with a title, paragraphs, and pairs of a label and a value."""
    written = "".join(f"<p>{escape_text(p)}</p>" for p in paragraphs)
    return f"<article><h3>{escape_text(title)}</h3>{written}{format_description_list(pairs)}</article>\n"


def _choose_column_class(values: Sequence[Any]) -> str:
    """Return the HTML ``class`` attribute for the cells of a column.

    The class is ``number`` if the column contains a number, or else ``long`` if the column contains a long text. The
    result is an empty string if neither is the case.
    """
    if any(isinstance(value, int | float) for value in values):
        return ' class="number"'
    return ' class="long"' if any(len(str(value)) > _SHORT for value in values) else ""
