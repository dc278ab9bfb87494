"""Build the HTML document of an exported page, which browsers show without network access, server or other files.

The content security policy of a document forbids all requests, and all styles and scripts except its own.
"""

from __future__ import annotations

import base64
import functools
import hashlib
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from tracekit.pages.answer import build_answer
from tracekit.plots.svg import draw_svg, load_style_sheet
from tracekit.text.elements import tag

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from tracekit.plots.charts import Chart
    from tracekit.text.elements import Content, Element
    from tracekit.text.explanations import Explanation

CHART_WIDTH = 900
"""Width of charts in pixels. Browsers scale them to the width of the page."""
_FOLDER = Path(__file__).parent


@functools.cache
def read_style() -> str:
    """Return the style sheet of pages."""
    return (_FOLDER / "page.css").read_text("utf-8")


@functools.cache
def read_script() -> str:
    """Return the script of pages."""
    return (_FOLDER / "page.js").read_text("utf-8")


def build_switches() -> Element:
    """Return the buttons that choose the units and the color scheme. They are visible only if scripts run."""
    exact = tag.button(
        "Exact values",
        type="button",
        data_switch="units",
        aria_pressed="false",
        title="Show ns and bytes without rounding",
    )
    dark = tag.button("Dark", type="button", data_switch="theme", aria_pressed="false", title="Light or dark colors")
    return tag.div(exact, dark, class_="switches scripted", role="group", aria_label="Display")


@dataclass(frozen=True, slots=True)
class Section:
    """A section of an exported page.

    Attributes:
        title: Heading.
        anchor: Id of the section in links to it.
        content: Content below the notes.
        notes: Sentences below the heading.
        answer: The answer of ``why``, which is the section, or None.
    """

    title: str
    anchor: str
    content: Sequence[Element | None] = ()
    notes: Sequence[str] = ()
    answer: Explanation | None = None

    @property
    def has_charts(self) -> bool:
        """Whether the section contains a chart."""
        return any(element is not None and element.name == "figure" for element in self.content)

    def build(self) -> Element:
        """Return the section as an element."""
        if self.answer is not None:
            built = build_answer(self.answer)
            return replace(
                built, children=(*built.children, *self.content), attributes=built.attributes | {"id": self.anchor}
            )
        heading = tag.h2(self.title, id=f"{self.anchor}-title")
        notes = [tag.p(note, class_="warning" if "Warning: " in note else None) for note in self.notes]
        return tag.section(heading, notes, self.content, id=self.anchor, aria_labelledby=f"{self.anchor}-title")


@dataclass(frozen=True, slots=True)
class ExportedPage:
    """An exported page.

    Attributes:
        title: Title of the page.
        sections: Sections with data.
        subtitle: Line below the title, or "".
        missing: Pairs of a message and a hint about data missing from the capture. The hint may be empty.
        notices: Sentences that come before all sections, such as warnings of the profiler.
        nothing_to_draw: Sentence that is shown if the page has no charts.
        note: Sentence at the end of the page.
    """

    title: str
    sections: Sequence[Section]
    subtitle: str = ""
    missing: Sequence[tuple[str, str]] = ()
    notices: Sequence[str] = ()
    nothing_to_draw: str = ""
    note: str = "Written by tracekit."

    def render(self) -> str:
        """Return the page as HTML."""
        style, script = read_style() + load_style_sheet(), read_script()
        policy = (
            f"default-src 'none'; script-src {_compute_policy_hash(script)}; style-src {_compute_policy_hash(style)}; "
            "base-uri 'none'; form-action 'none'"
        )
        head = tag.head(
            tag.meta(charset="utf-8"),
            tag.meta(http_equiv="Content-Security-Policy", content=policy),
            tag.meta(name="viewport", content="width=device-width, initial-scale=1"),
            tag.meta(name="referrer", content="no-referrer"),
            tag.title(self.title),
            tag.style(style),
            tag.script(script),
        )
        links = [tag.li(tag.a(section.title, href=f"#{section.anchor}")) for section in self.sections]
        header = tag.header(
            tag.div(tag.h1(self.title), tag.p(self.subtitle, class_="dim") if self.subtitle else None),
            build_switches(),
            tag.nav(tag.ul(links), aria_label="Sections") if len(links) > 1 else None,
        )
        main = tag.main(
            self._build_notices(), [section.build() for section in self.sections], self._build_missing_data()
        )
        body = tag.body(header, main, tag.footer(tag.p(self.note)), class_="document")
        return f"<!DOCTYPE html>\n{tag.html(head, body, lang='en')}\n"

    @property
    def _has_charts(self) -> bool:
        return any(section.has_charts for section in self.sections)

    def _build_notices(self) -> Element | None:
        """Return a section with the notices, of which the last one states that the page has no charts."""
        notices = [tag.p(notice) for notice in self.notices]
        if self.nothing_to_draw and not self._has_charts:
            explanation = " The list below states why, and how to record them."
            notices.append(tag.p(tag.strong(self.nothing_to_draw), explanation))
        return tag.section(notices, aria_label="Notices", class_="notices") if notices else None

    def _build_missing_data(self) -> Element | None:
        """Return a section that lists the data missing from the capture, or None if none is missing."""
        if not self.missing:
            return None
        items = [tag.li(" ".join(filter(None, map(_write_sentence, pair)))) for pair in self.missing]
        summary = tag.summary("What this capture does not contain")
        details = tag.details(summary, tag.ul(items), open=not self._has_charts)
        return tag.section(details, aria_label="Missing data")


def build_chart(name: str, chart: Chart) -> Element:
    """Return a chart with its title.

    Args:
        name: Name of the figure, which is part of the id of the element.
        chart: The chart.
    """
    drawing = draw_svg(chart, width=CHART_WIDTH)
    title = drawing.attributes["aria-label"]
    scroll = tag.div(drawing, class_="chart", tabindex=0, role="group", aria_label=title)
    return tag.figure(tag.figcaption(title), scroll, id=f"figure-{name}")


def build_description_list(pairs: Iterable[tuple[str, Content]], *, class_: str | None = None) -> Element | None:
    """Return pairs of a label and a value as a description list, or None if there are no pairs."""
    items = [tag.div(tag.dt(label), tag.dd(value)) for label, value in pairs]
    return tag.dl(items, class_=class_) if items else None


def _write_sentence(words: str) -> str:
    return f"{words[:1].upper()}{words[1:]}." if words else ""


def _compute_policy_hash(text: str) -> str:
    """Return the SHA-256 hash of a script or style sheet, as the source expression of a content security policy."""
    digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
    return f"'sha256-{digest}'"
