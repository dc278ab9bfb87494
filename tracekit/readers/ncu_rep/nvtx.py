"""Read the NVTX state of each launch: the ranges that were open at the launch.

The state contains the ranges of all threads. A launch is inside the push/pop ranges of its own thread, and inside the
start/end ranges of all threads.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tracekit.readers.common.protobuf.decoding import convert_to_signed
from tracekit.readers.common.protobuf.messages import parse
from tracekit.readers.ncu_rep.container import decode_text, iterate_results, message_class, require_max_count

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tracekit.readers.ncu_rep.container import ReportFile
    from tracekit.readers.ncu_rep.rows import Row

MESSAGE_TYPES = {1: "ascii", 2: "unicode", 3: "registered"}
PAYLOAD_TYPES = {1: "uint64", 2: "int64", 3: "double", 4: "uint32", 5: "int32", 6: "float", 7: "json", 8: "binary"}
ARGB = CATEGORIES = 1
MAX_ITEMS = 1 << 16
_FLOAT_TYPES = ("double", "float")


def iterate_range_rows(report: ReportFile) -> Iterator[Row]:
    """Yield the ranges that were open at each launch as rows of ``ncu_nvtx_ranges``."""
    return (row for number, result in iterate_results(report) for row in iterate_launch_ranges(number, result))


def iterate_launch_ranges(launch_id: int, result: Any) -> Iterator[Row]:
    """Yield the push/pop ranges that were open at one launch, outermost first, and then the open start/end ranges."""
    if not result.HasField("nvtx"):
        return
    state = parse(message_class("NvtxState"), result.nvtx, f"the NVTX state of result {launch_id}")
    domains = {d.domain_id: _NvtxDomain(d) for d in require_max_count(state.domains, MAX_ITEMS, "NVTX domains")}
    launch_threads = (
        t
        for t in require_max_count(state.threads, MAX_ITEMS, "threads with NVTX ranges")
        if t.thread_id == result.thread_id
    )
    stacks = (
        (t.thread_id, s)
        for t in launch_threads
        for s in require_max_count(t.stacks, MAX_ITEMS, "stacks of NVTX ranges")
    )
    pushed_ranges = (
        (t, s.domain_id, r) for t, s in stacks for r in require_max_count(s.ranges, MAX_ITEMS, "open NVTX ranges")
    )
    for depth, (thread, domain, open_range) in enumerate(pushed_ranges, 1):
        row = _build_range_row(open_range, domain, domains, state.default_domain_id)
        yield {"launch_id": launch_id, "kind": "push_pop", "depth": depth, "thread_id": thread, **row}
    start_ends = require_max_count(state.start_ends, MAX_ITEMS, "NVTX domains with start/end ranges")
    started_ranges = (
        (d.domain_id, r) for d in start_ends for r in require_max_count(d.ranges, MAX_ITEMS, "open NVTX ranges")
    )
    for depth, (domain, open_range) in enumerate(started_ranges, 1):
        row = _build_range_row(open_range, domain, domains, state.default_domain_id)
        thread = open_range.thread_id if open_range.HasField("thread_id") else None
        row |= {
            "thread_id": thread,
            "source_id": convert_to_signed(open_range.id) if open_range.HasField("id") else None,
        }
        yield {"launch_id": launch_id, "kind": "start_end", "depth": depth, **row}


def build_range_values(launch_id: int, result: Any) -> Row:
    """Return the values of the columns of ``ncu_launches`` that describe the push/pop ranges around a launch."""
    names = [row["name"] for row in iterate_launch_ranges(launch_id, result) if row["kind"] == "push_pop"]
    if not names:
        return {"range_depth": 0}
    return {"range_name": names[-1], "range_path": "/".join(n or "" for n in names), "range_depth": len(names)}


class _NvtxDomain:
    """The name of an NVTX domain, and the names of its categories by number.

    If a category has several names, the first one is used.
    """

    def __init__(self, message: Any) -> None:
        self.name = decode_text(message.name)
        categories = [n for names in message.names if names.of == CATEGORIES for n in names.names]
        self.categories = {n.id: decode_text(n.text) for n in reversed(categories)}


def _build_range_row(message: Any, domain_id: int, domains: dict[int, _NvtxDomain], default_domain_id: int) -> Row:
    domain = domains.get(domain_id)
    row = {
        "domain": None if domain is None or domain_id == default_domain_id else domain.name,
        "name": decode_text(message.name) if message.HasField("name") else None,
    }
    return row | _build_attribute_values(message.attributes, domain) if message.HasField("attributes") else row


def _build_attribute_values(attributes: Any, domain: _NvtxDomain | None) -> Row:
    category = domain.categories.get(attributes.category) if attributes.category and domain is not None else None
    return {
        "category_id": attributes.category or None,
        "category": category,
        "color": attributes.color.value if attributes.color.type == ARGB else None,
        "message_type": MESSAGE_TYPES.get(attributes.message.type),
        **_build_payload_values(attributes.payload),
    }


def _build_payload_values(payload: Any) -> Row:
    if not payload.type:
        return {}
    payload_type = PAYLOAD_TYPES.get(payload.type, "string")
    field = "text" if payload_type in ("json", "binary", "string") else payload_type
    if not payload.HasField(field):
        return {"payload_type": payload_type}
    value = getattr(payload, field)
    if field == "text":
        return {"payload_type": payload_type, "payload_text": decode_text(value)}
    if payload_type in _FLOAT_TYPES:
        return {"payload_type": payload_type, "payload_float": value}
    return {"payload_type": payload_type, "payload_int": convert_to_signed(value % (1 << 64))}
