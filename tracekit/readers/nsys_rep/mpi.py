"""Find the NVTX ranges that are MPI calls.

The MPI wrapper of nsys opens a range in the domain ``MPI`` for each MPI call. Exports contain these ranges in tables of
MPI calls instead of the table of ranges. The wrapper also registers payload schemas with reserved ids. If a
program creates a domain with the same name, the domain lacks these schemas, and its ranges stay in the table of ranges.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow.compute as pc

from tracekit.readers.nsys_rep import arrays, layout
from tracekit.readers.nsys_rep.entries import Selection
from tracekit.readers.nsys_rep.fields import load_fields
from tracekit.readers.nsys_rep.payload_schemas import FIRST_SCHEMA

if TYPE_CHECKING:
    from collections.abc import Mapping

    import pyarrow as pa

    from tracekit.readers.common.budget import Budget
    from tracekit.readers.common.protobuf.decoding import Field, Mask
    from tracekit.readers.nsys_rep.events import Events, SelectedEvents
    from tracekit.readers.nsys_rep.payload_schemas import Schemas

NAME, SCHEMA = b"MPI", "NsysMpi"
WRAPPER_SCHEMAS = range(FIRST_SCHEMA + 10_001, FIRST_SCHEMA + 11_000)
PROCESS = ~np.int64((1 << 24) - 1)
RANGES = np.array((59, 60, 70, 71), np.uint64)
_NVTX = load_fields("NvtxEvent")
FIELDS = (_NVTX.event_type, _NVTX.global_tid, _NVTX.domain_id)
DOMAIN_CREATIONS = Selection(layout.NVTX, (75,))


@dataclass(frozen=True, slots=True)
class MpiDomains:
    """The NVTX domains that the MPI wrapper of nsys created. As an event filter, they exclude MPI calls from a table.

    Every NVTX range in one of these domains is an MPI call.

    Attributes:
        pairs: Global process id and domain id of each domain of the MPI wrapper.
    """

    pairs: frozenset[tuple[int, int]] = frozenset()

    def __bool__(self) -> bool:
        return bool(self.pairs)

    @property
    def needed_field_numbers(self) -> tuple[int, ...]:
        """Numbers of the event fields that determine whether an event is an MPI call."""
        return FIELDS

    def compute_exclusion_mask(self, fields_by_number: Mapping[int, Field], event_count: int) -> Mask:
        """Return a mask of the NVTX events that are MPI calls.

        Args:
            fields_by_number: Decoded fields of the events, by field number.
            event_count: Number of events.
        """
        ranges = np.isin(_get_integer_values(fields_by_number, _NVTX.event_type, event_count), RANGES)
        threads, domains = (
            _get_integer_values(fields_by_number, f, event_count).view(np.int64)
            for f in (_NVTX.global_tid, _NVTX.domain_id)
        )
        calls = np.zeros(event_count, np.bool_)
        for process, domain in self.pairs:
            calls |= (threads & PROCESS == process) & (domains == domain)
        return calls & ranges


def find_mpi_domains(schemas: Schemas, events: Events, strings: pa.Array, budget: Budget) -> MpiDomains:
    """Find the NVTX domains that the MPI wrapper of nsys created. Names and payload schemas identify them.

    If the report has none of these schemas, the result is empty and no events are read.

    Raises:
        Damage: An event that creates a domain is invalid.
    """
    possible = {key[:2] for key, s in schemas.schemas.items() if key[2] in WRAPPER_SCHEMAS or s.name.startswith(SCHEMA)}
    if not possible:
        return MpiDomains()
    names = ["globalTid", "domainId", "text", "textId"]
    registered = pc.indices_nonzero(pc.equal(strings, NAME)).cast("int64")
    pairs: set[tuple[int, int]] = set()

    def decode_batch(batch: list[SelectedEvents]) -> dict[str, pa.Array]:
        return arrays.decode_events(batch[0], layout.TABLES["NVTX_EVENTS"], names, budget)

    for columns in events.map_batches([DOMAIN_CREATIONS], decode_batch):
        text = columns["text"]
        inline = pc.is_in(text.indices, pc.indices_nonzero(pc.equal(text.dictionary, NAME)).cast("int32"))
        named = [columns[c].filter(pc.or_(inline, pc.is_in(columns["textId"], registered))) for c in names[:2]]
        threads = pc.bit_wise_and(named[0], int(PROCESS)).to_pylist()
        pairs |= possible.intersection(zip(threads, pc.fill_null(named[1], 0).to_pylist(), strict=True))
    return MpiDomains(frozenset(pairs))


def _get_integer_values(
    fields_by_number: Mapping[int, Field], field_number: int, event_count: int
) -> np.ndarray[tuple[int], np.dtype[np.uint64]]:
    """Return the values of an integer field of events. The value is 0 where the field is absent."""
    field = fields_by_number.get(field_number)
    if field is None:
        return np.zeros(event_count, np.uint64)
    return field.values if field.valid is None else np.where(field.valid, field.values, np.uint64(0))
