"""Read and write the filters of columns as the short texts that users type below the headings of a table.

Filters of numbers are ``> 1000``, ``<= 1.5 ms``, ``5``, ``!= 5`` and ``1 ms .. 2 ms``. Filters of texts are ``gemm``
(contains), ``= x``, ``!= x``, ``! x`` (does not contain), ``^ x`` (starts with) and ``$ x`` (ends with). Texts may be
quoted as in JSON. ``(blank)`` and ``(not blank)`` match empty and other cells. Filters are joined by ``AND`` or ``OR``.
"""

from __future__ import annotations

import json
import re
from decimal import Decimal, InvalidOperation
from typing import TYPE_CHECKING, Any

from tracekit.errors import TracekitError
from tracekit.pages.values import BYTES, NANOSECONDS, POINT
from tracekit.text import to_printable

if TYPE_CHECKING:
    from collections.abc import Mapping

_NUMBER_SIGNS = {
    ">=": "greaterThanOrEqual",
    "<=": "lessThanOrEqual",
    "!=": "notEqual",
    ">": "greaterThan",
    "<": "lessThan",
    "=": "equals",
}
_TEXT_SIGNS = {"!=": "notEqual", "=": "equals", "!": "notContains", "^": "startsWith", "$": "endsWith", "": "contains"}
_BLANK = {"(blank)": "blank", "(not blank)": "notBlank"}
_NS = {"ns": 1, "us": 10**3, "µs": 10**3, "ms": 10**6, "s": 10**9, "min": 60 * 10**9, "h": 3600 * 10**9}
_BYTES = {"bytes": 1, "B": 1, "kB": 10**3, "MB": 10**6, "GB": 10**9, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}
_FACTORS: Mapping[str, Mapping[str, int]] = {NANOSECONDS: _NS, POINT: _NS, BYTES: _BYTES}
_WRITTEN = {NANOSECONDS: ("s", "ms", "µs"), POINT: ("s", "ms", "µs"), BYTES: ("GiB", "MiB", "KiB")}
"""Units with which values are written if they are then short, the largest one first."""
_VALUE = r"([-+]?(?:\d[\d,]*(?:\.\d*)?|\.\d+)(?:[eE][-+]?\d{1,3})?)\s*([^\W\d]*%?)"
_RANGE = re.compile(rf"{_VALUE}\s*\.\.\s*{_VALUE}")
_COMPARISON = re.compile(rf"(>=|<=|!=|>|<|=|)\s*{_VALUE}")
_QUOTED = r'(!=|=|!|\^|\$|)\s*("(?:[^"\\]|\\.)*")|(\((?:not )?blank\))'
_QUOTED_LIST = re.compile(rf"(?:{_QUOTED})(?:\s+(?:AND|OR)\s+(?:{_QUOTED}))*")
_JOIN = re.compile(r"\s+(AND|OR)\s+", re.IGNORECASE)
_QUOTED_ITEM = re.compile(rf"{_QUOTED}|\s(AND|OR)\s")
_MAX_DIGITS = 40
_MAX_DECIMALS = 3


def parse_filter(text: str, *, is_number: bool, unit: str = "") -> dict[str, Any] | None:
    """Parse the filter of a column that a user typed. Return None if it is empty or ends after the sign.

    Args:
        text: The text.
        is_number: Whether the column contains numbers.
        unit: Unit of the numbers, as in ``pages.values``.

    Raises:
        TracekitError: The text is not a filter of numbers.
    """
    text = text.strip()
    if text in ("", *_NUMBER_SIGNS, *_TEXT_SIGNS):
        return None
    return _parse_numbers(text, unit) if is_number else _parse_texts(text)


def format_filter(condition: Any, *, is_number: bool, unit: str = "") -> str:
    """Return the text from which ``parse_filter`` parses the filter of a column, or "" if the filter is not valid.

    Args:
        condition: The filter of the column, as for ``query.filter_expr``.
        is_number: Whether the column contains numbers.
        unit: Unit of the numbers, as in ``pages.values``.
    """
    conditions = condition.get("conditions", [condition]) if isinstance(condition, dict) else []
    if not isinstance(conditions, list):
        return ""
    is_one = len(conditions) == 1
    parts = [_format_number(c, unit) if is_number else _format_text(c, is_alone=is_one) for c in conditions]
    join = " OR " if isinstance(condition, dict) and condition.get("operator") == "OR" else " AND "
    return join.join(parts) if all(parts) else ""


def write_equality_filters(values: Mapping[str, Any]) -> str:
    """Return the URL parameter that filters rows by the value of each column. None matches empty cells."""
    return json.dumps(
        {c: {"type": "blank"} if v is None else {"type": "equals", "filter": v} for c, v in values.items()}
    )


def _parse_numbers(text: str, unit: str) -> dict[str, Any]:
    parts = _JOIN.split(text)
    conditions = [_parse_number(part, text, unit) for part in parts[::2]]
    return _join_conditions(conditions, {each.upper() for each in parts[1::2]}, text)


def _join_conditions(conditions: list[dict[str, Any]], operators: set[str], text: str) -> dict[str, Any]:
    if len(operators) > 1:
        raise TracekitError(f"the filter {text[:100]!r} contains both AND and OR", hint="enter an SQL filter instead")
    return conditions[0] if len(conditions) == 1 else {"operator": operators.pop(), "conditions": conditions}


def _parse_number(part: str, text: str, unit: str) -> dict[str, Any]:
    if part in _BLANK:
        return {"type": _BLANK[part]}
    if match := _RANGE.fullmatch(part):
        low, high = (_parse_value(match[n], match[n + 1], text, unit) for n in (1, 3))
        return {"type": "inRange", "filter": low, "filterTo": high}
    if match := _COMPARISON.fullmatch(part):
        return {"type": _NUMBER_SIGNS[match[1] or "="], "filter": _parse_value(match[2], match[3], text, unit)}
    raise _create_number_error(text, unit)


def _parse_value(number: str, name: str, text: str, unit: str) -> int | float:
    """Return a number in the unit of the column: an integer if it is integral and fits into 64 bits."""
    factors = _FACTORS.get(unit, {unit: 1})
    factor = 1 if not name else factors.get(name)
    if factor is None or len(number) > _MAX_DIGITS:
        raise _create_number_error(text, unit)
    try:
        value = Decimal(number.replace(",", "")) * factor
    except InvalidOperation as error:
        raise _create_number_error(text, unit) from error
    is_short = abs(value) < 2**63
    return int(value) if is_short and value == value.to_integral_value() else float(value)


def _create_number_error(text: str, unit: str) -> TracekitError:
    units = f", with the units {', '.join(_FACTORS[unit])}" if unit in _FACTORS else ""
    return TracekitError(
        f"the filter {text[:100]!r} is not a filter of numbers", hint=f"enter 5, != 5, > 1000, <= 2.5 or 1..2{units}"
    )


def _parse_texts(text: str) -> dict[str, Any]:
    if not _QUOTED_LIST.fullmatch(text):
        sign, bare = _split_sign(text)
        return {"type": _TEXT_SIGNS[sign], "filter": bare}
    conditions, operators = [], set()
    for sign, quoted, blank, operator in _QUOTED_ITEM.findall(text):
        if operator:
            operators.add(operator)
        elif blank:
            conditions.append({"type": _BLANK[blank]})
        else:
            conditions.append({"type": _TEXT_SIGNS[sign], "filter": _unquote(quoted)})
    return _join_conditions(conditions, operators, text)


def _split_sign(text: str) -> tuple[str, str]:
    """Return the sign at the start of a filter of texts, or "", and the text after it."""
    sign = next(each for each in _TEXT_SIGNS if text.startswith(each))
    return sign, text.removeprefix(sign).lstrip()


def _unquote(quoted: str) -> str:
    try:
        return str(json.loads(quoted, strict=False))
    except ValueError as error:
        raise TracekitError(
            f"the quoted text {quoted[:100]} in a filter is not valid", hint='write \\" and \\\\ for " and \\'
        ) from error


def _format_number(condition: Any, unit: str) -> str:
    if not isinstance(condition, dict):
        return ""
    kind, low, high = condition.get("type"), condition.get("filter"), condition.get("filterTo")
    blank = next((text for text, name in _BLANK.items() if name == kind), "")
    if blank or not _is_number(low):
        return blank
    if kind == "inRange":
        return f"{_format_value(low, unit)} .. {_format_value(high, unit)}" if _is_number(high) else ""
    sign = next((text for text, name in _NUMBER_SIGNS.items() if name == kind), "")
    return f"{sign} {_format_value(low, unit)}" if sign else ""


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 2**63


def _format_value(value: Any, unit: str) -> str:
    """Return a number exactly, in a larger unit if it is then short."""
    number = Decimal(repr(value))
    for name in _WRITTEN.get(unit, ()):
        larger = number / _FACTORS[unit][name]
        if abs(larger) >= 1 and larger == round(larger, _MAX_DECIMALS):
            return f"{larger.normalize():f} {name}"
    return f"{number:f}" if abs(number.adjusted()) < _MAX_DIGITS // 2 else str(value)


def _format_text(condition: Any, *, is_alone: bool) -> str:
    """Return the text of one condition, quoted if it would otherwise have another meaning."""
    if not isinstance(condition, dict):
        return ""
    kind, value = condition.get("type"), condition.get("filter")
    blank = next((text for text, name in _BLANK.items() if name == kind), "")
    sign = next((text for text, name in _TEXT_SIGNS.items() if name == kind), None)
    if blank or sign is None or not isinstance(value, str):
        return blank
    has_sign = _split_sign(value)[0] != ""
    is_plain = value.strip() == value == to_printable(value) and not value.startswith(('"', "(")) and not has_sign
    if not (value and is_plain and is_alone):
        value = json.dumps(value, ensure_ascii=to_printable(value) != value)
    return f"{sign} {value}" if sign else value
