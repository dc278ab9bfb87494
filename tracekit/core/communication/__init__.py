"""Analyze the communication of several ranks: collectives, messages, clocks and iterations.

``calls`` reads the communication calls of one trace. ``matching`` finds the calls of all ranks that are one collective
or one message. ``clocks`` aligns the clocks of the traces.
"""

from tracekit.core.communication.calls import communication_calls
from tracekit.core.communication.clocks import align_clocks, on_common_clock
from tracekit.core.communication.matching import match

__all__ = ["align_clocks", "communication_calls", "match", "on_common_clock"]
