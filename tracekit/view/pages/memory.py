"""The page "Copies and memory": memory in use over time, its peak and its owners, and memory copies and sets."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tracekit.pages.values import build_value
from tracekit.text.elements import tag
from tracekit.view import components

if TYPE_CHECKING:
    from tracekit.text.elements import Content
    from tracekit.view.pages import Context

OWNERS = {"range": "NVTX range", "function": "Function", "stack": "Call stack", "size": "Size"}
"""What owns memory, by the value of the option ``by`` of the report ``gpu_memory_owners``."""
_OF_ALLOCATOR = ("allocator_peak", "allocator_owners", "allocator_segments", "allocator_unfreed", "allocator_failures")
_OF_COPIES = ("copies", "copy_sizes", "memcpys", "memsets")


def build_page(context: Context) -> list[Any]:
    """Return the components of the page "Copies and memory"."""
    parts = [] if not context.capture.has_rows_in_any("memory_events") else _build_memory_parts(context)
    if context.capture.has_rows_in_any("allocator_events", "memory_segments"):
        if not parts:
            parts.append(context.build_figure("memory_usage", "GPU memory in use"))
        parts += [context.build_table(name) for name in _OF_ALLOCATOR]
    if context.capture.has_rows_in_any("memcpys", "memsets"):
        parts.append(context.build_figure("copies", "Memory operations"))
        parts += [context.build_table(name) for name in _OF_COPIES]
    return parts


def _build_memory_parts(context: Context) -> list[Any]:
    """Return the memory in use over time, its peaks, and what owns the memory at the peaks."""
    by = context.state.get("by", "range")
    by = by if by in OWNERS else "range"
    choices = [(title, context.state.make_url(by=name)) for name, title in OWNERS.items()]
    return [
        _build_peak_cards(context),
        context.build_figure("memory_usage", "GPU memory in use"),
        components.build_navigation_control("owners", choices, context.state.make_url(by=by)),
        context.build_table("memory_owners", {"by": by}),
        context.build_table("memory_peak"),
        context.build_table("memory_alive"),
    ]


def _build_peak_cards(context: Context) -> Any:
    """Return a card with the peak of each kind of memory on each GPU, and a link to it in the timeline."""
    cards = []
    peaks = context.read_report("gpu_memory_peak")
    owners = context.read_report("gpu_memory_owners").unique(["Device", "Kind"], keep="first", maintain_order=True)
    sizes = {(device, kind): size for device, kind, size in owners.select("Device", "Kind", "Peak (bytes)").iter_rows()}
    for row in peaks.iter_rows(named=True):
        time = str(row["Peak Time (ns)"])
        link = components.build_link("at the peak", context.state.make_url("timeline", start=time, end=time))
        count = row["Allocations"]
        note: Content = [f"in {count:,} allocation{'s' * (count != 1)} ", link]
        label = f"Peak of GPU {row['Device']}: {row['Kind']}"
        size = build_value(sizes[row["Device"], row["Kind"]], "bytes")
        cards.append(components.build_number_card(label, size, note))
    return tag.dl(cards, class_="numbers")
