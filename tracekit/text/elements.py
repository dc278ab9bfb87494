"""Build HTML and SVG elements. All texts and attributes are escaped, so names in a capture never become markup."""

from __future__ import annotations

import html
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from tracekit.text import to_printable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

Content: TypeAlias = "Element | str | int | float | Iterable[Content] | None"
"""Children of an element. Numbers are written as they are, and None is omitted."""
VOID = frozenset({"br", "col", "hr", "img", "input", "link", "meta", "wbr"})
"""Names of HTML elements without content and end tag."""
RAW = frozenset({"script", "style"})
"""Names of HTML elements whose content is not escaped. Only texts of this package may be their children."""


@dataclass(frozen=True, slots=True)
class Element:
    """An HTML or SVG element.

    Attributes:
        name: Name of the element, such as ``section``.
        children: Its content. Strings are escaped.
        attributes: Its attributes by name. Those with the value None or False are omitted, and True writes the name
            only.
    """

    name: str
    children: tuple[Content, ...]
    attributes: dict[str, Any]

    def __str__(self) -> str:
        """Return the element as HTML."""
        return render(self)


LINE_END = Element("", (), {})
"""A line end in a text, such as the ``title`` of a mark in a chart. Line ends of strings are escaped."""


class _ElementBuilder:
    """Functions that build elements, by element name, such as ``tag.section``."""

    def __getattr__(self, name: str) -> Callable[..., Element]:
        """Return a function that builds elements with a name.

        Its positional arguments are the content. Its keyword arguments are the attributes: a final underscore is
        removed from their names (``class_``, ``for_``), and other underscores are written as hyphens (``aria_label``).
        """
        written = name.rstrip("_")

        def build(*children: Content, **attributes: Any) -> Element:
            named = {key.rstrip("_").replace("_", "-"): value for key, value in attributes.items()}
            # an element is rendered several times, so it cannot contain an iterator
            return Element(written, tuple([*c] if isinstance(c, Iterator) else c for c in children), named)

        return build


tag = _ElementBuilder()
"""Builder of elements: ``tag.p("Text", class_="note")`` is the element ``<p class="note">Text</p>``."""


def render(content: Content) -> str:
    """Return content as HTML. Strings are escaped."""
    parts: list[str] = []
    _append_content(parts, content)
    return "".join(parts)


def escape_text(value: str) -> str:
    """Escape the markup, control characters and direction-changing characters of a text."""
    return html.escape(to_printable(value))


def _append_content(parts: list[str], content: Content) -> None:
    if content is None:
        return
    if isinstance(content, Element):
        _append_element(parts, content)
    elif isinstance(content, str):
        parts.append(escape_text(content))
    elif isinstance(content, int | float):
        parts.append(str(content))
    else:
        for each in content:
            _append_content(parts, each)


def _append_element(parts: list[str], element: Element) -> None:
    if element is LINE_END:
        parts.append("\n")
        return
    parts.append(f"<{element.name}")
    parts += [_write_attribute(name, value) for name, value in element.attributes.items()]
    parts.append(">")
    if element.name in VOID:
        return
    if element.name in RAW:
        parts += map(str, element.children)
    else:
        _append_content(parts, element.children)
    parts.append(f"</{element.name}>")


def _write_attribute(name: str, value: Any) -> str:
    if value is None or value is False:
        return ""
    return f" {name}" if value is True else f' {name}="{escape_text(str(value))}"'
