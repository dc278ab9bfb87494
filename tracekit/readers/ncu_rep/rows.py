"""Convert rows of Nsight Compute reports to declared tables, in batches."""

from __future__ import annotations

import itertools
import re
from typing import TYPE_CHECKING, Any, TypeAlias

import pyarrow as pa

from tracekit import schemas
from tracekit.readers.common.damage import Damage
from tracekit.readers.common.protobuf.messages import parse
from tracekit.readers.ncu_rep.container import decode_text, iterate_results, message_class, require_max_count

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from tracekit.readers.ncu_rep.container import ReportFile

Row: TypeAlias = dict[str, Any]

BATCH_ROWS = 4096
MESSAGE_TYPES = {2: "WRN", 3: "ERR", 4: "OPT"}
INFORMATION = "INF"
SPEEDUP_TYPES = {1: "local", 2: "global"}
MAX_RULES = MAX_SECTIONS = MAX_ITEMS = 4096
_LINK = re.compile(r"@(section|sass|source|url):([^@]*)@")


def build_table(name: str, rows: Iterable[Row], columns: Sequence[str] | None = None) -> pa.Table:
    """Convert rows to a declared table. Columns that a row lacks are null.

    Raises:
        Damage: A number does not fit the type of its column.
    """
    schema = schemas.arrow_schema(schemas.table(name), columns)
    source = iter(rows)
    batches = iter(lambda: list(itertools.islice(source, BATCH_ROWS)), [])
    return pa.concat_tables([schema.empty_table(), *(_build_batch(batch, schema) for batch in batches)])


def _build_batch(rows: list[Row], schema: pa.Schema) -> pa.Table:
    return pa.table([_build_field_column(rows, field) for field in schema], schema=schema)


def _build_field_column(rows: list[Row], field: pa.Field) -> pa.Array:
    values = [row.get(field.name) for row in rows]
    try:
        return _build_column(values, field.type)
    except (pa.ArrowInvalid, OverflowError) as e:
        raise Damage(f"a number does not fit into the column {field.name} ({field.type})") from e


def _build_column(values: list[Any], arrow_type: pa.DataType) -> pa.Array:
    """Convert values to an Arrow array. If the type is a dictionary type, the values are dictionary-encoded strings."""
    if not pa.types.is_dictionary(arrow_type):
        return pa.array(values, arrow_type)
    numbers: dict[Any, int] = {}
    codes = [None if v is None else numbers.setdefault(v, len(numbers)) for v in values]
    return pa.DictionaryArray.from_arrays(pa.array(codes, pa.int32()), pa.array(list(numbers), pa.string()))


def iterate_rule_rows(report: ReportFile) -> Iterator[Row]:
    """Yield the messages that rules wrote about results as rows of ``ncu_rules``."""
    total = 0
    for number, result in iterate_results(report):
        sections = _read_section_names(result) if result.rules else {}
        for data in require_max_count(result.rules, MAX_RULES, f"rules of result {number}"):
            rule = parse(message_class("Rule"), data, f"a rule of result {number}")
            for row in _iterate_message_rows(rule):
                total += 1
                name = sections.get(rule.section_id)
                yield {"message_id": total, "launch_id": number, "section": name, **row}


def replace_links(message: str) -> str:
    """Replace each link in a message with its text, as Nsight Compute does. For web links, the address is appended."""
    return _LINK.sub(_format_link, message)


def _read_section_names(result: Any) -> dict[bytes, str]:
    encoded = require_max_count(result.sections, MAX_SECTIONS, "sections of a result")
    sections = (parse(message_class("Section"), data, "a section") for data in encoded)
    return {section.section_id: decode_text(section.name) for section in sections}


def _iterate_message_rows(rule: Any) -> Iterator[Row]:
    """Yield one row per message of a rule. An estimated speedup belongs to the message that precedes it in the rule."""
    row: Row | None = None
    rule_values = _build_rule_values(rule)
    for item in require_max_count(rule.body.items, MAX_ITEMS, "items of a rule"):
        if item.HasField("message"):
            if row is not None:
                yield row
            row = rule_values | _build_message_values(item.message)
        if item.HasField("speedup") and row is not None:
            percent = item.speedup.percent if item.speedup.HasField("percent") else None
            row |= {"speedup_type": SPEEDUP_TYPES.get(item.speedup.type), "speedup_percent": percent}
    if row is not None:
        yield row


def _build_rule_values(rule: Any) -> Row:
    """Return the values that are the same for all messages of a rule, by column name."""
    return {
        "section_id": decode_text(rule.section_id) if rule.HasField("section_id") else None,
        "rule_id": decode_text(rule.rule_id) if rule.HasField("rule_id") else None,
        "rule": decode_text(rule.name) if rule.HasField("name") else None,
    }


def _build_message_values(message: Any) -> Row:
    return {
        "type": MESSAGE_TYPES.get(message.type, INFORMATION),
        "title": decode_text(message.title) or None,
        "message": replace_links(decode_text(message.text)) if message.HasField("text") else None,
    }


def _format_link(link_match: re.Match[str]) -> str:
    kind, parts = link_match[1], link_match[2]
    if kind == "url":
        shown, _, address = parts.partition(":")
        return f"{shown} ({address})"
    return parts.rpartition(":")[2] if kind in ("sass", "source") else parts.partition(":")[2]
