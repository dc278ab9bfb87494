"""Write a copy of a memory snapshot or flight recorder of PyTorch without values that identify people and machines.

Private folders in the paths of source files, and private values in all other strings, are overwritten. The pickle is
decoded twice, and never run: first to collect the names of users and folders, and then to copy it.
"""

from __future__ import annotations

import contextlib
import re
from typing import TYPE_CHECKING

from tracekit.readers.common.budget import Budget
from tracekit.readers.common.damage import convert_damage
from tracekit.readers.common.pickles import edit_strings
from tracekit.readers.redaction.state import Redaction

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tracekit.readers.redaction.matcher import PrivateValueMatcher
    from tracekit.registry.source import Source

_PATH = re.compile(rb"(?:[/~\\]|[A-Za-z]:[/\\]).*|.*[/\\].*\.\w{1,4}", re.DOTALL)
_WORDS = frozenset(
    b"action addr size stream time_us frames name filename line compile_context user_metadata category "
    b"device_free alloc free_requested free_completed segment_alloc segment_free segment_map segment_unmap oom "
    b"snapshot workspace_snapshot segments device_traces allocator_settings external_annotations stage device "
    b"address total_size allocated_size active_size requested_size segment_type segment_pool_id is_expandable "
    b"blocks state active_allocated history real_size active_pending_free active_awaiting_free inactive small "
    b"large forward backward step "
    b"version pg_config pg_status nccl_comm_state comm_lib_version nccl_version desc ranks entries record_id pg_id "
    b"process_group pg_name thread_name thread_id collective_seq_id p2p_seq_id seq_id op_id profiling_name "
    b"time_created_ns duration_ms input_sizes input_dtypes output_sizes output_dtypes completed started scheduled "
    b"time_discovered_started_ns time_discovered_completed_ns retired timeout_ms is_p2p default_pg undefined python "
    b"last_enqueued_collective last_started_collective last_completed_collective".split()
)
"""Keys and values of snapshots and of flight recorders, which may also be names of users."""


def redact(source: Source, target: Path | None = None, key: bytes | None = None) -> dict[str, int]:
    """Write a copy of a snapshot without values that identify people and machines.

    Args:
        source: Snapshot to copy.
        target: Path of the copy, which must not exist. If None, the private values are only counted.
        key: Key that determines the pseudonyms, or None for a random key.

    Returns:
        The number of replaced values of each kind.

    Raises:
        CorruptTraceError: The snapshot is damaged, contains anything but plain values, or strings that cannot be
            replaced.
        TracekitError: The snapshot changed while it was read.
    """
    redaction = Redaction(source.path, key)
    with source.open() as file, convert_damage(source.path, file=file):
        for _ in edit_strings(file, Budget(file.size), _create_collector(redaction)):
            pass
        sections = edit_strings(file, Budget(file.size), _create_editor(redaction, redaction.build_matcher()))
        with contextlib.nullcontext() if target is None else target.open("wb") as out:
            for section in sections:
                if out is not None:
                    out.write(section)
        file.check_unchanged()
    return dict(redaction.counts)


def _create_collector(redaction: Redaction) -> Callable[[bytes], bytes]:
    """Return a function that collects the private names in a string and returns the string unchanged."""

    def collect(text: bytes) -> bytes:
        if text not in _WORDS:
            redaction.collect_names_from_string(text)
        return text

    return collect


def _create_editor(redaction: Redaction, matcher: PrivateValueMatcher) -> Callable[[bytes], bytes]:
    """Return a function that overwrites the private values in a string."""

    def edit(text: bytes) -> bytes:
        if text in _WORDS:
            return text
        if _PATH.fullmatch(text):
            text = redaction.redact_folders(text)
        return redaction.overwrite_private_values(matcher, text)

    return edit
