"""What rules say about results: advice, warnings, remarks."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from tracekit.readers.common.protobuf.messages import parse
from tracekit.readers.ncu_rep.container import declared, limited, numbered, text

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tracekit.readers.ncu_rep.container import Container
    from tracekit.readers.ncu_rep.rows import Row

TYPES = {2: "WRN", 3: "ERR", 4: "OPT"}
REMARK = "INF"
SPEEDUPS = {1: "local", 2: "global"}
MAX_RULES = MAX_SECTIONS = MAX_ITEMS = 4096
_LINK = re.compile(r"@(section|sass|source|url):([^@]*)@")


def messages(report: Container) -> Iterator[Row]:
    """The messages about all results, as rows of ``ncu_rules``."""
    total = 0
    for number, result in numbered(report):
        sections = _sections(result) if result.rules else {}
        for data in limited(result.rules, MAX_RULES, f"rules of result {number}"):
            rule = parse(declared("Rule"), data, f"a rule of result {number}")
            for row in _messages(rule):
                total += 1
                name = sections.get(rule.section_id)
                yield {"message_id": total, "launch_id": number, "section": name, **row}


def plain(message: str) -> str:
    """Resolve the links in a message as Nsight Compute prints them: the text, of web pages with the address."""
    return _LINK.sub(_resolved, message)


def _sections(result: Any) -> dict[bytes, str]:
    given = limited(result.sections, MAX_SECTIONS, "sections of a result")
    found = (parse(declared("Section"), data, "a section") for data in given)
    return {section.section_id: text(section.name) for section in found}


def _messages(rule: Any) -> Iterator[Row]:
    """The messages of a rule; a speedup belongs to the message before it."""
    last: Row | None = None
    about = _about(rule)
    for item in limited(rule.body.items, MAX_ITEMS, "items of a rule"):
        if item.HasField("message"):
            if last is not None:
                yield last
            last = about | _message(item.message)
        if item.HasField("speedup") and last is not None:
            percent = item.speedup.percent if item.speedup.HasField("percent") else None
            last |= {"speedup_type": SPEEDUPS.get(item.speedup.type), "speedup_percent": percent}
    if last is not None:
        yield last


def _about(rule: Any) -> Row:
    """What all messages of a rule say."""
    return {
        "section_id": text(rule.section_id) if rule.HasField("section_id") else None,
        "rule_id": text(rule.rule_id) if rule.HasField("rule_id") else None,
        "rule": text(rule.name) if rule.HasField("name") else None,
    }


def _message(message: Any) -> Row:
    return {
        "type": TYPES.get(message.type, REMARK),
        "title": text(message.title) or None,
        "message": plain(text(message.text)) if message.HasField("text") else None,
    }


def _resolved(link: re.Match[str]) -> str:
    kind, parts = link[1], link[2]
    if kind == "url":
        shown, _, address = parts.partition(":")
        return f"{shown} ({address})"
    return parts.rpartition(":")[2] if kind in ("sass", "source") else parts.partition(":")[2]
