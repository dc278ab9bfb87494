"""Build HTML and SVG elements. All texts and attributes are escaped, so names in a capture never become markup."""

from __future__ import annotations

import html
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from tracekit.text import to_printable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

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
        return "".join(self.write())

    def write(self) -> Iterator[str]:
        """Yield the HTML of the element in parts."""
        attributes = "".join(_write_attribute(name, value) for name, value in self.attributes.items())
        yield f"<{self.name}{attributes}>"
        if self.name in VOID:
            return
        if self.name in RAW:
            yield "".join(str(child) for child in self.children)
        else:
            yield from _write_content(self.children)
        yield f"</{self.name}>"


class _LineEnd(Element):
    """A line end in a text, which escaped strings cannot contain."""

    def write(self) -> Iterator[str]:
        """Yield the line end."""
        yield "\n"


LINE_END = _LineEnd("", (), {})
"""A line end, such as one in the ``title`` of a mark in a chart."""


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
            return Element(written, children, named)

        return build


tag = _ElementBuilder()
"""Builder of elements: ``tag.p("Text", class_="note")`` is the element ``<p class="note">Text</p>``."""


def render(content: Content) -> str:
    """Return content as HTML. Strings are escaped."""
    return "".join(_write_content(content))


def escape_text(value: str) -> str:
    """Escape the markup, control characters and direction-changing characters of a text."""
    return html.escape(to_printable(value))


def _write_content(content: Content) -> Iterator[str]:
    if content is None:
        return
    if isinstance(content, Element):
        yield from content.write()
    elif isinstance(content, str):
        yield escape_text(content)
    elif isinstance(content, int | float):
        yield str(content)
    else:
        for each in content:
            yield from _write_content(each)


def _write_attribute(name: str, value: Any) -> str:
    if value is None or value is False:
        return ""
    return f" {name}" if value is True else f' {name}="{escape_text(str(value))}"'
