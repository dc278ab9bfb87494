"""Divide answers into pages that a model can read: the longest lists are cut, and later pages contain the rest.

The size of a page is limited by its number of tokens, which is estimated from the number of characters of its JSON.
"""

from __future__ import annotations

import json
import secrets
from collections import OrderedDict
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

from tracekit.errors import TracekitError

Json: TypeAlias = Any
Path: TypeAlias = tuple[str | int, ...]

CHARACTERS_PER_TOKEN = 3
"""Number of characters of JSON per token. Tokens of common models have more on average."""
MIN_TOKENS = 1000
MAX_STRING = 1000
"""Maximum number of characters of a string. Longer ones are shortened."""
MAX_KEY = 200
"""Maximum number of characters of a name in an object."""
MAX_ANSWERS, MAX_CHARACTERS = 64, 64_000_000
"""Maximum number of answers with further pages that are kept, and of their characters. The oldest are dropped."""
_WHOLE_LISTS = ("columns", "inputs", "results")
"""Lists that are cut only if nothing else can be."""
_ESCAPED = 1.2
"""Largest ratio of the size of a shortened text as JSON to its maximum number of characters."""
_OVERHEAD = 200
_STEP = 0.8
_OMITTED = 90


class Omission(NamedTuple):
    """Items of a list or object that a page omits.

    Attributes:
        path: Names and indices that lead to the list or object in the answer.
        start: Index of the first item that is omitted.
        stop: Index after the last item that is omitted.
    """

    path: Path
    start: int
    stop: int

    def to_dict(self) -> dict[str, Json]:
        """Return the omission as JSON."""
        return {"path": format_path(self.path), "from": self.start, "count": self.stop - self.start}


def format_path(path: Path) -> str:
    """Return a path as a JSON pointer."""
    return "".join(f"/{str(part).replace('~', '~0').replace('/', '~1')}" for part in path)


def measure(value: Json) -> int:
    """Return the number of characters of a value as JSON."""
    return len(json.dumps(value, ensure_ascii=True, separators=(",", ":")))


def shorten_strings(value: Json) -> Json:
    """Return a value in which long strings state how many of their characters are left out."""
    if isinstance(value, str):
        return _shorten(value, MAX_STRING)
    if isinstance(value, (list, tuple)):
        return [shorten_strings(each) for each in value]
    if not isinstance(value, dict):
        return value
    shortened: dict[str, Json] = {}
    for name, each in value.items():
        short = _shorten(str(name), MAX_KEY)
        while short in shortened:
            short += "'"
        shortened[short] = shorten_strings(each)
    return shortened


def _shorten(text: str, limit: int) -> str:
    """Return a text with at most ``limit`` characters, and fewer of those that JSON escapes with six characters."""
    head = text[:limit]
    while measure(head) > limit * _ESCAPED:
        head = head[: int(len(head) * _STEP)]
    return text if len(head) == len(text) else f"{head}… [{len(text) - len(head):,} more characters]"


def cut(value: Json, limit: int, path: Path = ()) -> tuple[Json, list[Omission]]:
    """Return a value whose longest lists are cut until it has at most ``limit`` characters, and what is omitted.

    Args:
        value: The value. Strings must be short.
        limit: Maximum number of characters of the value and of the descriptions of the omissions.
        path: Path of the value in the answer.
    """
    if measure(value) <= limit:
        return value, []
    for cuts_objects in (False, True):
        size = float(limit)
        while size >= 1:
            omissions: list[Omission] = []
            rest = _cut_lists(value, int(size), path, omissions, cuts_objects=cuts_objects)
            if measure(rest) + sum(_OMITTED + measure(format_path(each.path)) for each in omissions) <= limit:
                return rest, omissions
            size *= _STEP
    return _omit_all(value, path)


def _omit_all(value: Json, path: Path) -> tuple[Json, list[Omission]]:
    if not isinstance(value, (list, dict)):
        return value, []
    return type(value)(), [Omission(path, 0, len(value))]


def _cut_lists(value: Json, size: int, path: Path, omissions: list[Omission], *, cuts_objects: bool) -> Json:
    """Return a value whose lists have at most ``size`` characters each, and append what is omitted."""
    if not isinstance(value, (list, dict)):
        return value
    is_cut = cuts_objects or (isinstance(value, list) and not (path and path[-1] in _WHOLE_LISTS))
    shown: list[tuple[str | int, Json]] = []
    total = 2
    items = enumerate(value) if isinstance(value, list) else value.items()
    for key, each in items:
        below: list[Omission] = []
        item = _cut_lists(each, size, (*path, key), below, cuts_objects=cuts_objects)
        total += measure(item) + (len(json.dumps(key)) + 2 if isinstance(value, dict) else 1)
        if is_cut and total > size:
            omissions.append(Omission(path, len(shown), len(value)))
            break
        shown.append((key, item))
        omissions.extend(below)
    return [each for _, each in shown] if isinstance(value, list) else dict(shown)


@dataclass(slots=True)
class _Rest:
    """The answer to which a handle belongs, and what no page has contained yet."""

    answer: Json
    omissions: list[Omission]
    size: int


class PageStore:
    """The answers that have further pages, by handle. Only the latest answers are kept."""

    def __init__(self, max_tokens: int) -> None:
        self._limit = max(max_tokens, MIN_TOKENS) * CHARACTERS_PER_TOKEN - _OVERHEAD
        self._rests: OrderedDict[str, _Rest] = OrderedDict()

    def create_first_page(self, answer: Json) -> dict[str, Json]:
        """Return the first page of an answer: the answer with its longest lists cut, what is omitted, and a handle."""
        answer = shorten_strings(answer)
        page, omissions = cut(answer, self._limit)
        return {"answer": page, **self._describe(answer, omissions)}

    def create_next_page(self, handle: str) -> dict[str, Json]:
        """Return the page that a handle stands for: the next omitted items of a list or object.

        Raises:
            TracekitError: The handle is unknown, or its answer is no longer kept.
        """
        rest = self._rests.get(handle)
        if rest is None:
            message = "the handle of the page is unknown, or its answer is no longer kept"
            raise TracekitError(message, hint="ask the question again")
        self._rests.move_to_end(handle)
        first, *others = rest.omissions
        items, omissions = self._take_items(rest.answer, first)
        description = {"path": format_path(first.path), "from": first.start, "items": items}
        return {"answer": description, **self._describe(rest.answer, [*omissions, *others])}

    def _take_items(self, answer: Json, first: Omission) -> tuple[Json, list[Omission]]:
        """Return as many of the omitted items as fit in a page, and what is still omitted."""
        value = answer
        for part in first.path:
            value = value[part]
        limit = self._limit * 3 // 4 - measure(format_path(first.path)) - _OVERHEAD  # a quarter states what is omitted
        is_list = isinstance(value, list)
        items = list(enumerate(value)) if is_list else list(value.items())
        shown: list[tuple[str | int, Json]] = []
        omissions: list[Omission] = []
        total, stop = 0, first.start
        for key, each in items[first.start : first.stop]:
            size = measure(each) + len(json.dumps(key)) + 3
            if shown and total + size > limit:
                break
            item, below = (each, []) if size <= limit else cut(each, limit - len(json.dumps(key)), (*first.path, key))
            shown.append((key, item))
            omissions += below
            total, stop = total + size, stop + 1
        rest = [*omissions, *([Omission(first.path, stop, first.stop)] if stop < first.stop else [])]
        return [each for _, each in shown] if is_list else dict(shown), rest

    def _describe(self, answer: Json, omissions: list[Omission]) -> dict[str, Json]:
        """Return what a page states about the pages after it."""
        handle = self._keep(answer, omissions) if omissions else None
        shown, limit = [], self._limit // 4
        for each in omissions:
            limit -= measure(each.to_dict())
            if limit < 0:
                break
            shown.append(each.to_dict())
        return {"omitted": shown, "next_page": handle}

    def _keep(self, answer: Json, omissions: list[Omission]) -> str:
        handle = secrets.token_urlsafe(12)
        known = next((rest.size for rest in self._rests.values() if rest.answer is answer), None)
        self._rests[handle] = _Rest(answer, omissions, measure(answer) if known is None else known)
        while len(self._rests) > MAX_ANSWERS or (self._count_characters() > MAX_CHARACTERS and len(self._rests) > 1):
            self._rests.popitem(last=False)
        return handle

    def _count_characters(self) -> int:
        return sum({id(rest.answer): rest.size for rest in self._rests.values()}.values())
