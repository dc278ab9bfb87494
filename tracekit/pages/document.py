"""Build the HTML document of an exported page, which browsers show without network access, server or other files.

The content security policy of a document forbids all requests, and all styles and scripts except its own.
"""

from __future__ import annotations

import base64
import functools
import hashlib
from pathlib import Path
from typing import TYPE_CHECKING

from tracekit.text.elements import tag

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from tracekit.text.elements import Content, Element

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


def build_section(anchor: str, title: str, *content: Content, class_: str | None = None) -> Element:
    """Return a section with a heading, to which the navigation of a document leads.

    Args:
        anchor: Id of the section.
        title: Heading.
        content: Content below the heading.
        class_: CSS class of the section.
    """
    heading = tag.h2(title, id=f"{anchor}-title")
    return tag.section(heading, *content, id=anchor, class_=class_, aria_labelledby=f"{anchor}-title")


def build_description_list(pairs: Iterable[tuple[str, Content]], *, class_: str | None = None) -> Element | None:
    """Return pairs of a label and a value as a description list, or None if there are no pairs."""
    items = [tag.div(tag.dt(label), tag.dd(value)) for label, value in pairs]
    return tag.dl(items, class_=class_) if items else None


def render_document(
    title: str, sections: Sequence[tuple[str, str]], content: Content, *, subtitle: Content = None, note: Content = None
) -> str:
    """Return an HTML document.

    Args:
        title: Title of the document.
        sections: Pairs of the id and the title of a section, to which the navigation links.
        content: The sections.
        subtitle: Line below the title.
        note: Paragraph at the end.
    """
    style, script = read_style(), read_script()
    policy = (
        f"default-src 'none'; script-src {_compute_policy_hash(script)}; style-src {_compute_policy_hash(style)}; "
        "base-uri 'none'; form-action 'none'"
    )
    head = tag.head(
        tag.meta(charset="utf-8"),
        tag.meta(http_equiv="Content-Security-Policy", content=policy),
        tag.meta(name="viewport", content="width=device-width, initial-scale=1"),
        tag.meta(name="referrer", content="no-referrer"),
        tag.title(title),
        tag.style(style),
        tag.script(script),
    )
    links = [tag.li(tag.a(text, href=f"#{anchor}")) for anchor, text in sections]
    header = tag.header(
        tag.div(tag.h1(title), tag.p(subtitle, class_="dim") if subtitle else None),
        build_switches(),
        tag.nav(tag.ul(links), aria_label="Sections") if links else None,
    )
    body = tag.body(header, tag.main(content), tag.footer(tag.p(note)) if note else None, class_="document")
    return f"<!DOCTYPE html>\n{tag.html(head, body, lang='en')}\n"


def _compute_policy_hash(text: str) -> str:
    """Return the SHA-256 hash of a script or style sheet, as the source expression of a content security policy."""
    digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
    return f"'sha256-{digest}'"
