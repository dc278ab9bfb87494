"""Shorten names to the width of a column, so that different names still look different."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from rich.cells import cell_len, chop_cells

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

MIN_WIDTH_WITH_END = 24  # in cells; strings that are shortened to a smaller width lose their end, not their middle
_CONTEXT = 6  # characters before the first difference that are shown
_MAX_ROUNDS = 8


def shorten_names(names: Sequence[str], width: int) -> list[str]:
    """Shorten strings to a width in terminal cells, so that different strings look different if possible.

    Most strings are shortened by ``shorten_to_width``. Different strings that would look the same are shortened at
    other places: the end or the part in which they differ is kept. If that is not enough, they are numbered.
    """
    shortened = {name: shorten_to_width(name, width) for name in dict.fromkeys(names)}
    if len(set(shortened.values())) < len(shortened):
        _distinguish(shortened, width)
    return [shortened[name] for name in names]


def shorten_to_width(text: str, width: int) -> str:
    """Shorten a string to a width in terminal cells.

    The arguments of C++ templates are removed first, starting with the innermost arguments. Then the arguments of
    functions are removed. If the string is still too long, its middle is removed, or its end if the width is small.
    """
    if cell_len(text) <= width:
        return text
    text = _collapse_arguments(text, width)
    if cell_len(text) <= width:
        return text
    return _remove_middle(text, width, (width - 1) // 3 if width >= MIN_WIDTH_WITH_END else 0)


def _distinguish(shortened: dict[str, str], width: int) -> None:
    """Replace shortened strings that look the same. The keys are the complete strings."""
    used = Counter(shortened.values())
    for shorten in (
        _keep_half_without_arguments,
        _show_first_difference_without_arguments,
        *[_show_function_and_first_difference] * _MAX_ROUNDS,
        _keep_half,
        _keep_end,
        *[_show_first_difference] * _MAX_ROUNDS,
    ):
        groups = _group_equal_strings(shortened)
        for group in groups:
            old, new = shortened[group[0]], shorten(group, width)
            if len(set(new)) > 1 and not any(used[text] for text in new if text != old):
                used[old] -= len(group)
                used.update(new)
                shortened.update(zip(group, new, strict=True))
        if not groups:
            return
    for group in _group_equal_strings(shortened):
        for number, name in enumerate(group[1:], start=2):
            end = f"…#{number}"
            candidate = (_take_cells(name, width - cell_len(end)) + end) if cell_len(end) < width else shortened[name]
            shortened[name] = shortened[name] if used[candidate] else candidate
            used[candidate] += 1


def _group_equal_strings(shortened: Mapping[str, str]) -> list[list[str]]:
    """Return groups of several different strings whose shortened strings are equal."""
    groups: dict[str, list[str]] = {}
    for name, text in shortened.items():
        groups.setdefault(text, []).append(name)
    return [group for group in groups.values() if len(group) > 1]


def _keep_half_without_arguments(group: Sequence[str], width: int) -> list[str]:
    """Shorten strings without the arguments of templates and functions so that their start and their end remain."""
    return _keep_half([_collapse_arguments(name, 0) for name in group], width)


def _show_first_difference_without_arguments(group: Sequence[str], width: int) -> list[str]:
    """Shorten strings without the arguments of templates and functions so that their first difference remains."""
    return _show_first_difference([_collapse_arguments(name, 0) for name in group], width)


def _show_function_and_first_difference(group: Sequence[str], width: int) -> list[str]:
    """Shorten strings so that the end of the name of a function remains, and the part where its arguments differ."""
    start = max(_find_first_difference(group) - _CONTEXT, 0)
    texts = []
    for name in group:
        function = _collapse_arguments(name, 0)
        bracket = min((i for i in map(function.rfind, ("<…>", "(…)")) if i > 0), default=len(function))
        head = _take_cells(function[:bracket][::-1], width // 2)[::-1]
        texts.append(_remove_middle(f"{'…' * (len(head) < bracket)}{head}…{name[start:]}", width, 0))
    return texts


def _find_first_difference(group: Sequence[str]) -> int:
    """Return the position of the first character that is not the same in all strings."""
    first, last = min(group), max(group)
    return next((i for i, (a, b) in enumerate(zip(first, last, strict=False)) if a != b), min(len(first), len(last)))


def _keep_half(group: Sequence[str], width: int) -> list[str]:
    """Shorten strings so that their start and their end remain, which are equally long."""
    return [_remove_middle(name, width, width // 2) for name in group]


def _keep_end(group: Sequence[str], width: int) -> list[str]:
    """Shorten strings so that their end and a few characters of their start remain."""
    return [_remove_middle(name, width, width - 1 - width // 4) for name in group]


def _show_first_difference(group: Sequence[str], width: int) -> list[str]:
    """Shorten strings so that their start remains, and the part where they begin to differ from each other."""
    start = _find_first_difference(group) - _CONTEXT
    texts = []
    for name in group:
        head = _take_cells(name, max(width // 3, 1))
        skipped = f"{head}…{name[start:]}" if start > len(head) else name
        texts.append(_remove_middle(skipped, width, 0))
    return texts


def _remove_middle(text: str, width: int, end_width: int) -> str:
    """Shorten a string to a width by replacing the part before its end, which has the width ``end_width``, with …."""
    if cell_len(text) <= width:
        return text
    end = _take_cells(text[::-1], end_width)[::-1]
    return f"{_take_cells(text, width - 1 - end_width)}…{end}"


def _take_cells(text: str, width: int) -> str:
    """Return the longest start of a string that fits a width."""
    return chop_cells(text[: max(width, 0)], width)[0] if width > 0 and text else ""


def _collapse_arguments(text: str, width: int) -> str:
    """Replace template and function arguments with … until the string fits the width or has no more arguments."""
    for opening, closing in ("<>", "()"):
        for level in range(_find_max_bracket_level(text, opening, closing), 0, -1):
            text = _collapse_brackets(text, opening, closing, level)
            if cell_len(text) <= width:
                return text
    return text


def _iterate_bracket_levels(text: str, opening: str, closing: str) -> Iterator[tuple[str, int]]:
    """Yield each character of a string with its bracket level. A bracket has the level of the characters in it.

    The ``>`` of ``->`` is not a bracket.
    """
    level, before = 0, ""
    for character in text:
        level += character == opening
        yield character, level
        level -= character == closing and before != "-" and level > 0
        before = character


def _find_max_bracket_level(text: str, opening: str, closing: str) -> int:
    """Return the greatest bracket level in a string."""
    return max((level for _, level in _iterate_bracket_levels(text, opening, closing)), default=0)


def _collapse_brackets(text: str, opening: str, closing: str, collapsed_level: int) -> str:
    """Replace everything inside the brackets of one level with an ellipsis, but keep the brackets themselves."""
    characters, inside = [], False
    for character, level in _iterate_bracket_levels(text, opening, closing):
        if level < collapsed_level or (level == collapsed_level and character in (opening, closing)):
            inside = False
            characters.append(character)
        elif not inside:
            inside = True
            characters.append("…")
    return "".join(characters)
