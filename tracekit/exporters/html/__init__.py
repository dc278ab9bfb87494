"""Export a self-contained HTML page that browsers show without network access or other files.

``sections`` selects the content, and ``ranks`` that of a page of several ranks. ``tracekit.pages`` has the parts that
exported pages share with the viewer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tracekit.registry.interface import Exporter

if TYPE_CHECKING:
    from pathlib import Path

    from tracekit.registry.interface import ManyTraces, Progress, View


def write(view: View, path: Path, progress: Progress) -> None:
    """Write the HTML page of a trace."""
    from tracekit.exporters.html import sections

    path.write_text(sections.build_page(view, progress).render(), "utf-8", newline="\n")


def write_many(traces: ManyTraces, path: Path, progress: Progress) -> None:
    """Write an HTML page that shows several ranks side by side."""
    from tracekit.exporters.html import ranks

    path.write_text(ranks.build_page(traces, progress).render(), "utf-8", newline="\n")


EXPORTER = Exporter(
    "html",
    "One HTML page with why a step is slow, charts and top lists, to share",
    (".html",),
    write,
    write_many=write_many,
)
