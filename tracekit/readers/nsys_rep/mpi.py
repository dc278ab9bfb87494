"""Calls of MPI: a report keeps them as NVTX ranges that nsys made, an export has tables of their own for them.

nsys wraps the functions of MPI. Its wrapper opens a range of the domain ``MPI`` for each call and registers schemas for
what it attaches to them, with ids of its own. A program's own domain of that name has no such schemas and stays.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow.compute as pc

from tracekit.readers.common.protobuf.decoding import decode
from tracekit.readers.nsys_rep import arrays, layout
from tracekit.readers.nsys_rep.entries import Wanted
from tracekit.readers.nsys_rep.fields import fields_of
from tracekit.readers.nsys_rep.payload_schemas import FIRST_SCHEMA

if TYPE_CHECKING:
    from collections.abc import Mapping

    import pyarrow as pa

    from tracekit.readers.common.budget import Budget
    from tracekit.readers.common.protobuf.decoding import Field, Mask
    from tracekit.readers.nsys_rep.events import Chosen, Events
    from tracekit.readers.nsys_rep.payload_schemas import Schemas

NAME, SCHEMA = b"MPI", "NsysMpi"
OWN_SCHEMAS = range(FIRST_SCHEMA + 10_001, FIRST_SCHEMA + 11_000)
CALL = "MPI call"
PROCESS = ~np.int64((1 << 24) - 1)
RANGES = np.array((59, 60, 70, 71), np.uint64)
_NVTX = fields_of("NvtxEvent")
FIELDS = (_NVTX.event_type, _NVTX.global_tid, _NVTX.domain_id)
CREATED = Wanted(layout.NVTX, (75,))


@dataclass(frozen=True, slots=True)
class Domains:
    """The domains of nsys's wrapper of MPI: global ids of processes, and numbers of domains."""

    pairs: frozenset[tuple[int, int]] = frozenset()

    def __bool__(self) -> bool:
        return bool(self.pairs)

    @property
    def fields(self) -> tuple[int, ...]:
        """Fields that tell calls of MPI from other events."""
        return FIELDS

    def mask(self, top: Mapping[int, Field], rows: int) -> Mask:
        """Say of n NVTX events, whose fields are decoded, whether each is a call of MPI."""
        ranges = np.isin(_values(top, _NVTX.event_type, rows), RANGES)
        threads, domains = (_values(top, f, rows).view(np.int64) for f in (_NVTX.global_tid, _NVTX.domain_id))
        calls = np.zeros(rows, np.bool_)
        for process, domain in self.pairs:
            calls |= (threads & PROCESS == process) & (domains == domain)
        return calls & ranges

    def count(self, events: Events) -> int:
        """Count the calls of MPI."""

        def work(batch: list[Chosen]) -> int:
            chosen = batch[0]
            top = decode(chosen.buffer, chosen.starts, chosen.stops, FIELDS)
            return int(np.count_nonzero(self.mask(top, len(chosen.starts))))

        return sum(events.each([Wanted(layout.NVTX)], work)) if self else 0


def domains(known: Schemas, events: Events, strings: pa.Array, budget: Budget) -> Domains:
    """Find the domains that have schemas of nsys and the name; without such schemas no event is looked at.

    Raises:
        Damage: The events that create domains are damaged.
    """
    possible = {key[:2] for key, s in known.schemas.items() if key[2] in OWN_SCHEMAS or s.name.startswith(SCHEMA)}
    if not possible:
        return Domains()
    names = ["globalTid", "domainId", "text", "textId"]
    registered = pc.indices_nonzero(pc.equal(strings, NAME)).cast("int64")
    found: set[tuple[int, int]] = set()

    def work(batch: list[Chosen]) -> dict[str, pa.Array]:
        return arrays.columns(batch[0], layout.TABLES["NVTX_EVENTS"], names, budget, skipped=Counter())

    for made in events.each([CREATED], work):
        text = made["text"]
        inline = pc.is_in(text.indices, pc.indices_nonzero(pc.equal(text.dictionary, NAME)).cast("int32"))
        named = [made[c].filter(pc.or_(inline, pc.is_in(made["textId"], registered))) for c in names[:2]]
        threads = pc.bit_wise_and(named[0], int(PROCESS)).to_pylist()
        found |= possible.intersection(zip(threads, pc.fill_null(named[1], 0).to_pylist(), strict=True))
    return Domains(frozenset(found))


def _values(top: Mapping[int, Field], number: int, rows: int) -> np.ndarray[tuple[int], np.dtype[np.uint64]]:
    """Return the numbers of a field of n events; 0 where it is absent."""
    field = top.get(number)
    if field is None:
        return np.zeros(rows, np.uint64)
    return field.values if field.valid is None else np.where(field.valid, field.values, np.uint64(0))
