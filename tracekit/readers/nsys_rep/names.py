"""Return display names for the kinds of events that no declared table contains."""

from __future__ import annotations

from tracekit import schemas
from tracekit.readers.nsys_rep import entries, layout

EVENT_TYPES = {
    27: "process",
    28: "memory map",
    47: "start or finish mark",
    48: "function call",
    50: "OpenGL workload",
    77: "graphics command buffer",
    78: "display refresh",
    81: "performance counter",
    88: "NvMedia",
    89: "OpenACC",
    91: "Direct3D 12",
    92: "Direct3D 12 workload",
    95: "Vulkan",
    96: "Vulkan workload",
    100: "system event",
    101: "GPU memory event",
    105: "ETW event",
    108: "CUDA call chain",
    109: "WDDM event",
    110: "Direct3D 11",
    112: "DXGI",
    114: "OpenMP",
    115: "uncore counter",
    118: "ETW graphics kernel event",
    121: "network metric",
    122: "network metric list",
    123: "interrupt",
    124: "video encoder",
    125: "video decoder",
    126: "JPEG engine",
    128: "performance counter",
    134: "GPU memory transfer",
    137: "InfiniBand switch metric",
    141: "InfiniBand switch congestion",
    143: "performance metric",
    144: "OpenXR",
}
_GRAPHICS = ("graphics_calls", "graphics_workloads", "khr_debug_events")
_WDDM = ("wddm_packets", "wddm_paging_packets", "wddm_queue_events", "wddm_contexts")
TABLES_OF_UNDECODED_EVENTS: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("OpenGL workload", "Vulkan workload", "Direct3D 12 workload"), _GRAPHICS),
    **dict.fromkeys(("graphics command buffer", "Direct3D 12", "Direct3D 11", "Vulkan", "DXGI", "OpenXR"), _GRAPHICS),
    **dict.fromkeys(("OpenGL call", "Vulkan call", "Direct3D 11 call", "Direct3D 12 call"), _GRAPHICS),
    "GPU memory event": ("dx12_memory_operations",),
    "OpenACC": ("openacc_events",),
    "OpenMP": ("openmp_events",),
    "WDDM event": _WDDM,
    "ETW graphics kernel event": _WDDM,
    "performance counter": ("performance_counters",),
    "uncore counter": ("performance_counters",),
    "network metric": ("network_metrics",),
    "network metric list": ("network_metrics", "network_metric_names"),
    "InfiniBand switch metric": ("network_metrics",),
    "InfiniBand switch congestion": ("network_congestion_events",),
    **dict.fromkeys(("video encoder call", "video decoder call", "JPEG engine call"), ("graphics_calls",)),
    **dict.fromkeys(("video encoder", "video decoder", "JPEG engine"), ("graphics_calls", "video_engine_workloads")),
    **dict.fromkeys(("NvMedia", "NvMedia call"), ("graphics_calls",)),
}
"""Names of the declared tables to which undecoded events may belong, by class of event."""
AUXILIARY_CLASSES = frozenset(("start or finish mark", "memory map", "process without a name"))
"""Classes of undecoded events that only describe the capture."""
CALL_CLASSES = {
    2: "OpenGL call",
    38: "NvMedia call",
    41: "Direct3D 12 call",
    48: "OpenACC",
    53: "Vulkan call",
    71: "Direct3D 11 call",
    78: "OpenMP",
    83: "video encoder call",
    86: "video decoder call",
    89: "JPEG engine call",
}
MARK_CLASSES = frozenset((
    *range(6, 13), *range(31, 37), 39, 40, *range(43, 48), 55, 56, 63, 64, 68, 69, 72, 73, 79, 80, 84, 85, 87, 88,
    90, 91, 109, 110,
))  # fmt: skip
KNOWN_CLASSES = frozenset((*range(14), 18, *range(26, 30), *range(31, 97), 102, 103, *range(107, 111)))
"""Classes of calls that nsys up to 2026.2 records. A call with a different class may be a CUDA call."""
WITHOUT_CLASS = "call without a class"
_RANGE_ENDS = (
    "start of a push/pop range",
    "end of a push/pop range",
    "start of a start/end range",
    "end of a start/end range",
)
NVTX_RANGE_ENDS = dict(enumerate(_RANGE_ENDS, 35)) | dict(enumerate(_RANGE_ENDS, 66))
"""Names of the events that record only the start or only the end of a range, by event type.

Reports store a whole range as one event of another type. Types 66 to 69 occur in imported text logs.
"""
_NVTX_TYPES = (33, 34, 39, 59, 60, 64, 65, *range(70, 77), 97, 98, 99)
GPU_TYPES = (79, 80, 106, 127, 130, 142)
_CALL_TYPES = (layout.CALL_MARK, layout.CALL, *EVENT_TYPES)
_DECODED_CALL_TYPES = (layout.SYSTEM_CALL, layout.GRAPH_NODE_CREATION, *layout.GRAPH_CHANGES)
DECODED_TYPES = {
    *((layout.PROCESS, 27), (layout.CPU_SAMPLE, 31), (layout.CPU_SWITCH, 41)),
    *((layout.DIAGNOSTIC, 49), (layout.CONTEXT_SWITCH, 58)),
    *((layout.MEMORY_USAGE, 117), (layout.MEMORY_POOL, 129)),
    *((layout.CPU_PAGE_FAULT, 119), (layout.GPU_PAGE_FAULT, 120), (layout.PERFORMANCE_COUNTER, 128)),
    *((layout.API, t) for t in _DECODED_CALL_TYPES),
    *((layout.GPU, t) for t in GPU_TYPES),
    *((layout.NVTX, t) for t in _NVTX_TYPES),
}
KNOWN_TYPES = DECODED_TYPES | {(layout.API, t) for t in _CALL_TYPES}
"""Pairs of payload field and event type for which it is known whether the events are rows of a declared table."""


def list_tables_of_undecoded_events(event_class: str) -> tuple[str, ...]:
    """Return the declared tables to which undecoded events of a class may belong, according to its display name."""
    if event_class.startswith("NVTX "):
        return ("nvtx_ranges", "nvtx_marks")
    if event_class.startswith("GPU activity "):
        return (*schemas.list_tables("activity"), *schemas.list_tables("synchronization"))
    if event_class == WITHOUT_CLASS or event_class.startswith("call of class "):
        return ("api_calls", "osrt_calls")
    return TABLES_OF_UNDECODED_EVENTS.get(event_class, ())


def format_event_kind(kind: int) -> str | None:
    """Return the display name of a kind of event, or None if a declared table may contain events of this kind.

    The result is None for function calls, GPU activities and generic events, because their kind does not determine
    whether a declared table contains them.
    """
    if kind == entries.GENERIC:
        return None
    if kind == entries.UNKNOWN:
        return "event of unknown kind"
    payload, event_type = entries.split_event_kind(kind)
    is_call = payload == layout.API and event_type in layout.CLASSES_BY_TYPE
    is_decoded = is_call or payload == layout.GPU or (payload, event_type) in DECODED_TYPES
    return None if is_decoded else format_event_type(payload, event_type)


def format_event_type(payload_field: int, event_type: int) -> str:
    """Return the display name of events with the given payload field and event type."""
    if payload_field == layout.NVTX:
        return f"NVTX {NVTX_RANGE_ENDS.get(event_type, f'event of type {event_type}')}"
    return EVENT_TYPES.get(event_type, f"event of type {event_type}")


def format_incomplete_event(payload_field: int, event_type: int) -> str:
    """Return the display name of events that lack all fields that identify the rows of a table."""
    if payload_field == layout.PROCESS:
        return "process without a name"
    return format_event_type(payload_field, event_type)


def format_generic_event(source: str | None) -> str:
    """Return the display name of generic events from a source, or from an unknown source if ``source`` is None."""
    return "generic event" if source is None else f"generic event of {source}"


def format_call_class(event_class: int) -> str:
    """Return the display name of a class of function calls.

    The name of an unknown class contains the number of the class.
    """
    return CALL_CLASSES.get(event_class, f"call of class {event_class}")


def format_activity(event_type: int) -> str:
    """Return the display name of GPU activities that have none of the known activity fields."""
    return f"GPU activity of type {event_type}"


def format_call(event_type: int, event_class: int | None) -> str | None:
    """Return the display name of function calls, or None if a declared table contains calls of this type and class.

    The argument ``event_class`` is None for calls without a class.
    """
    if event_class is None:
        return WITHOUT_CLASS
    if event_class in layout.CLASSES_BY_TYPE[event_type]:
        return None
    if event_type == layout.CALL_MARK or event_class in MARK_CLASSES:
        return EVENT_TYPES[layout.CALL_MARK]
    return format_call_class(event_class)
