"""Find one instance of an NVTX range by its name, domain and index."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

import polars as pl

from tracekit.errors import TracekitError, create_choices_hint
from tracekit.text import replace_surrogates

if TYPE_CHECKING:
    from pathlib import Path

_SHOWN = 10
_PARTS = re.compile(
    r"(?P<name>(?:\\.|[^\\])*?)(?:@(?P<domain>(?:\\.|[^@\\])*?))?(?:/(?P<number>[0-9]{1,18}))?", re.DOTALL
)
_ESCAPED = re.compile(r"\\(.)", re.DOTALL)
COLUMNS = ("start_ns", "end_ns", "kind", "process_id", "thread_id", "domain", "name")
"""Columns of ``nvtx_ranges`` that are read to find a range."""


class RangeName(NamedTuple):
    """The parsed name of an NVTX range: ``RANGE[@DOMAIN][/INDEX]``.

    Attributes:
        name: Name of the range.
        domain: Name of the domain. "" is the default domain.
        number: Index of the range among the ranges with this name in this domain, from 0 in order of start.
    """

    name: str
    domain: str = ""
    number: int = 0


class Instance(NamedTuple):
    """The start, end, process and thread of one instance of an NVTX range.

    Attributes:
        start_ns: Start of the range.
        end_ns: End of the range. None if it never ended.
        process_id: Process of the range.
        thread_id: Thread of a push/pop range. None for start/end ranges, and for push/pop ranges of the main thread,
            which represent the whole process as in nsys.
    """

    start_ns: int
    end_ns: int | None
    process_id: int | None
    thread_id: int | None


def parse_range_name(text: str) -> RangeName:
    """Parse the name of an NVTX range: ``RANGE[@DOMAIN][/INDEX]``.

    The characters ``@``, ``/`` and backslash are part of a name if a backslash precedes them. A slash separates an
    index only if nothing but digits follows it.
    """
    parts = _PARTS.fullmatch(text)
    if parts is None:
        return RangeName(text)
    name, domain = (_ESCAPED.sub(r"\1", parts[p] or "") for p in ("name", "domain"))
    return RangeName(name, domain, int(parts["number"] or 0))


def find_range_instance(ranges: pl.LazyFrame, text: str, path: Path | None = None) -> Instance:
    """Return the instance of an NVTX range that a string of the form ``RANGE[@DOMAIN][/INDEX]`` specifies.

    Args:
        ranges: The table ``nvtx_ranges``.
        text: Name, domain and index of the range. Without a domain, only the default domain is searched, and without an
            index, the first instance is returned. If there is no such range, the default domain is searched
            for a range whose name is the whole text.
        path: Path of the file, for error messages.

    Raises:
        TracekitError: There is no such range or instance. The hint lists existing domains, ranges or indices.
    """
    text = replace_surrogates(text)
    rows = ranges.select(COLUMNS).collect()
    domain, name = (rows[c].cast(pl.String).fill_null("") for c in ("domain", "name"))
    target = parse_range_name(text)
    if not (is_target := (domain == target.domain) & (name == target.name)).any():
        whole = (domain == "") & (name == text)
        target, is_target = (RangeName(text), whole) if whole.any() else (target, is_target)
    matching = rows.filter(is_target).sort("start_ns", maintain_order=True)
    if matching.is_empty():
        message = f"there is no NVTX range {target.name!r} in {_format_domain(target.domain)}"
        raise TracekitError(message, path=path, hint=_create_missing_range_hint(target, domain, name))
    if target.number >= matching.height:
        message = (
            f"there is no NVTX range {target.name!r} with index {target.number} in {_format_domain(target.domain)}"
        )
        raise TracekitError(message, path=path, hint=f"choose an index from 0 to {matching.height - 1}")
    row = matching.row(target.number, named=True)
    # As in nsys, a push/pop range of the main thread, whose id is that of the process, represents the whole process.
    is_of_thread = row["kind"] == "push_pop" and row["thread_id"] != row["process_id"]
    thread = row["thread_id"] if is_of_thread else None
    return Instance(row["start_ns"], row["end_ns"], row["process_id"], thread)


def _format_domain(domain: str) -> str:
    return f"domain {domain!r}" if domain else "the default domain"


def _create_missing_range_hint(target: RangeName, domains: pl.Series, names: pl.Series) -> str:
    """Return a hint that lists alternatives to an NVTX range that does not exist.

    The hint lists the domains that have a range with this name. If no domain has one, the hint lists the ranges of the
    requested domain. If this domain has no ranges, all domains are listed. If names of ranges contain the requested
    name, only these names are listed, because frameworks add arguments to names.
    """
    elsewhere = domains.filter(names == target.name).unique().sort().to_list()
    if elsewhere:
        named = (f"{target.name}@{d}" if d else target.name for d in elsewhere[:_SHOWN])
        return f"choose one of the ranges with this name: {', '.join(named)}"
    in_domain = names.filter(domains == target.domain).unique(maintain_order=True)
    containing = in_domain.filter(in_domain.str.to_lowercase().str.contains(target.name.lower(), literal=True))
    if inside := (in_domain if containing.is_empty() else containing).to_list():
        return create_choices_hint("ranges", inside, target.name, quoted=True)
    known = domains.unique(maintain_order=True).to_list()
    return create_choices_hint("domains with ranges", known, target.domain, quoted=True)
