"""NVTX state: the ranges that were open at a launch.

The state holds every thread; to a launch belong the push/pop ranges of its own thread, and all start/end ranges.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tracekit.readers.common.protobuf.messages import parse
from tracekit.readers.common.protobuf.wire import signed
from tracekit.readers.ncu_rep.container import declared, limited, numbered, text

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tracekit.readers.ncu_rep.container import Container
    from tracekit.readers.ncu_rep.rows import Row

MESSAGES = {1: "ascii", 2: "unicode", 3: "registered"}
PAYLOADS = {1: "uint64", 2: "int64", 3: "double", 4: "uint32", 5: "int32", 6: "float", 7: "json", 8: "binary"}
ARGB = CATEGORIES = 1
MAX_PARTS = 1 << 16
_REALS = ("double", "float")


def ranges(report: Container) -> Iterator[Row]:
    """The ranges open at every launch, as rows of ``ncu_nvtx_ranges``."""
    return (row for number, result in numbered(report) for row in of(number, result))


def of(number: int, result: Any) -> Iterator[Row]:
    """The ranges open at one launch: push/pop ranges outermost first, domain by domain; then start/end ranges."""
    if not result.HasField("nvtx"):
        return
    state = parse(declared("NvtxState"), result.nvtx, f"the NVTX state of result {number}")
    domains = {d.domain_id: _Domain(d) for d in limited(state.domains, MAX_PARTS, "NVTX domains")}
    own = (t for t in limited(state.threads, MAX_PARTS, "threads with NVTX ranges") if t.thread_id == result.thread_id)
    stacks = ((t.thread_id, s) for t in own for s in limited(t.stacks, MAX_PARTS, "stacks of NVTX ranges"))
    pushed = ((t, s.domain_id, r) for t, s in stacks for r in limited(s.ranges, MAX_PARTS, "open NVTX ranges"))
    for depth, (thread, domain, found) in enumerate(pushed, 1):
        row = _range(found, domain, domains, state.default_domain_id)
        yield {"launch_id": number, "kind": "push_pop", "depth": depth, "thread_id": thread, **row}
    open_ = limited(state.start_ends, MAX_PARTS, "NVTX domains")
    started = ((d.domain_id, r) for d in open_ for r in limited(d.ranges, MAX_PARTS, "open NVTX ranges"))
    for depth, (domain, found) in enumerate(started, 1):
        row = _range(found, domain, domains, state.default_domain_id)
        thread = found.thread_id if found.HasField("thread_id") else None
        row |= {"thread_id": thread, "source_id": signed(found.id) if found.HasField("id") else None}
        yield {"launch_id": number, "kind": "start_end", "depth": depth, **row}


def path(number: int, result: Any) -> Row:
    """Sum up the push/pop ranges open at a launch, as columns of ``ncu_launches``."""
    names = [row["name"] for row in of(number, result) if row["kind"] == "push_pop"]
    if not names:
        return {"range_depth": 0}
    return {"range_name": names[-1], "range_path": "/".join(n or "" for n in names), "range_depth": len(names)}


class _Domain:
    """A domain: its name, and the names of its categories by number; of several the first counts."""

    def __init__(self, message: Any) -> None:
        self.name = text(message.name)
        named = [n for names in message.names if names.of == CATEGORIES for n in names.names]
        self.categories = {n.id: text(n.text) for n in reversed(named)}


def _range(found: Any, domain_id: int, domains: dict[int, _Domain], default: int) -> Row:
    domain = domains.get(domain_id)
    row = {
        "domain": None if domain is None or domain_id == default else domain.name,
        "name": text(found.name) if found.HasField("name") else None,
    }
    return row | _attributes(found.attributes, domain) if found.HasField("attributes") else row


def _attributes(given: Any, domain: _Domain | None) -> Row:
    category = domain.categories.get(given.category) if given.category and domain is not None else None
    return {
        "category_id": given.category or None,
        "category": category,
        "color": given.color.value if given.color.type == ARGB else None,
        "message_type": MESSAGES.get(given.message.type),
        **_payload(given.payload),
    }


def _payload(given: Any) -> Row:
    if not given.type:
        return {}
    kind = PAYLOADS.get(given.type, "string")
    field = "text" if kind in ("json", "binary", "string") else kind
    if not given.HasField(field):
        return {"payload_type": kind}
    value = getattr(given, field)
    if field == "text":
        return {"payload_type": kind, "payload_text": text(value)}
    if kind in _REALS:
        return {"payload_type": kind, "payload_float": value}
    return {"payload_type": kind, "payload_int": signed(value % (1 << 64))}
