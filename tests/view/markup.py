"""Read HTML as a tree, and the tables in it."""

from __future__ import annotations

from dataclasses import dataclass, field
from html.parser import HTMLParser
from typing import TYPE_CHECKING, Any

from tracekit.text.elements import VOID, Element

if TYPE_CHECKING:
    from collections.abc import Iterator


@dataclass
class Node:
    """An element of an HTML document."""

    name: str
    attributes: dict[str, str | None] = field(default_factory=dict)
    children: list[Node | str] = field(default_factory=list)

    def all(self, name: str, **attributes: Any) -> Iterator[Node]:
        """Yield the elements with a name and attributes. The value True stands for any value."""
        for child in self.children:
            if isinstance(child, Node):
                if child.name == name and all(child.has(key, value) for key, value in attributes.items()):
                    yield child
                yield from child.all(name, **attributes)

    def has(self, name: str, value: Any) -> bool:
        """Return whether the element has an attribute, one of whose words is a value."""
        name = name.rstrip("_").replace("_", "-")
        own = self.attributes.get(name, "") or ""
        return name in self.attributes and (value is True or value == own or value in own.split())

    @property
    def text(self) -> str:
        """The text of the element."""
        return "".join(c if isinstance(c, str) else c.text for c in self.children)


class _TreeReader(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.stack = [Node("")]

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        node = Node(tag, dict(attrs))
        self.stack[-1].children.append(node)
        if tag not in VOID:
            self.stack.append(node)

    def handle_endtag(self, tag: str) -> None:
        assert self.stack.pop().name == tag

    def handle_data(self, data: str) -> None:
        self.stack[-1].children.append(data)


def parse(content: Element | str) -> Node:
    """Return the tree of HTML, whose elements must all be closed."""
    reader = _TreeReader()
    reader.feed(str(content))
    reader.close()
    assert len(reader.stack) == 1
    return reader.stack[0]


class TableMarkup:
    """The table of a section that the viewer sends."""

    def __init__(self, content: Element | str, name: str = "") -> None:
        (self.section, *_) = parse(content).all("section", data_table=name or True)
        (self.table, *_) = self.section.all("table")
        self.columns = [str(th.attributes["data-column"]) for th in self.table.all("th", data_column=True)]

    def rows(self) -> list[dict[str, str]]:
        """Return the exact values of the cells of the body, as texts."""
        (body,) = self.table.all("tbody")
        return [dict(zip(self.columns, map(_read_cell, row.children), strict=False)) for row in body.all("tr")]

    def sums(self) -> list[dict[str, str]]:
        """Return the exact values of the cells below the body, as texts."""
        feet = self.table.all("tfoot")
        return [dict(zip(self.columns, map(_read_cell, r.children), strict=False)) for f in feet for r in f.all("tr")]

    def status(self) -> str:
        """Return the number of rows that the table shows."""
        return next(self.section.all("p", role="status")).text

    def link(self, text: str) -> str:
        """Return the URL of the link with a text."""
        (url,) = {str(a.attributes["href"]) for a in self.section.all("a") if a.text == text}
        return url

    def form(self) -> dict[str, str]:
        """Return the values of the form, as a browser sends them."""
        (form, *_) = self.section.all("form")
        fields = [*form.all("input"), *self.section.all("input", form=form.attributes["id"])]
        values: dict[str, str] = {}
        for each in fields:
            if each.attributes.get("type") == "checkbox" and "checked" not in each.attributes:
                continue
            name, value = str(each.attributes["name"]), each.attributes.get("value") or ""
            values[name] = f"{values[name]},{value}" if name in values else value
        return values


def _read_cell(cell: Any) -> str:
    """Return the exact number or the complete text of a cell."""
    for number in cell.all("data"):
        return str(number.attributes["value"])
    for link in cell.all("a", title=True):
        return str(link.attributes["title"])
    for details in cell.all("details"):
        return "".join(c if isinstance(c, str) else "" for c in details.children)
    return str(cell.text)
