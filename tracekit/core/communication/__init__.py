"""Analyze the communication of several ranks: collectives, messages, clocks and iterations.

``calls`` reads the communication calls of one trace, and ``iterations`` its iterations and their phases. ``matching``
finds the calls of all ranks that are one collective or one message. ``clocks`` aligns the clocks of the traces.
``operations`` computes bandwidths, waits and skews, and ``stragglers`` compares iterations across ranks. ``analysis``
combines all of these.

``pending`` finds the collectives that a job hangs in, and ``logged`` computes bandwidths, both from logs of calls.
"""

from tracekit.core.communication.analysis import STEPS, Communication, read_call_tables, read_rank_tables
from tracekit.core.communication.calls import LOGGED, read_communication_calls
from tracekit.core.communication.logged import join_logged_calls, read_log_tables
from tracekit.core.communication.matching import match_calls
from tracekit.core.communication.pending import (
    PENDING_COLUMNS,
    find_pending_operations,
    list_pending_sentences,
    read_logged_states,
)
from tracekit.core.communication.stragglers import align_clocks, convert_to_common_clock

__all__ = [
    "LOGGED",
    "PENDING_COLUMNS",
    "STEPS",
    "Communication",
    "align_clocks",
    "convert_to_common_clock",
    "find_pending_operations",
    "join_logged_calls",
    "list_pending_sentences",
    "match_calls",
    "read_call_tables",
    "read_communication_calls",
    "read_log_tables",
    "read_logged_states",
    "read_rank_tables",
]
