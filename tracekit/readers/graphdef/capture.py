"""A file of a graph, or several, as declared tables. It is read at once."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from tracekit.errors import CorruptTraceError, TracekitError, UnknownFormatError, warn
from tracekit.readers.common.damage import Damage
from tracekit.readers.graphdef import SAVED_MODELS, text
from tracekit.readers.tensorflow import graph
from tracekit.readers.tensorflow.forms import Form, Message, form
from tracekit.registry import UNKNOWN, Capture, Source, describe

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tracekit.files import InputFile
    from tracekit.readers.tensorflow.graph import Graph

FACTS = "capture_info"
_HINT = "copy the file again, or save the graph again"


class GraphCapture(Capture):
    """An opened file."""

    def __init__(self, source: Source) -> None:
        """Read a file, or the SavedModel in a folder.

        Raises:
            UnknownFormatError: It is no graph; the message says what it seems to be.
            CorruptTraceError: It breaks off or is damaged.
            TracekitError: It cannot be read, or changed while it was read.
        """
        source = _inside(source)
        found = form(source.head)
        if found is None or found.message is Message.RUN_METADATA:
            raise _refused(source, found)
        with source.open() as file:
            try:
                self._graph = _read(file, found)
            except Damage as e:
                file.check()
                raise CorruptTraceError(str(e), path=source.path, hint=_HINT) from e
            except MemoryError as e:
                raise TracekitError(
                    f"{source.size} bytes are more than there is memory for", path=source.path, hint="free some"
                ) from e
        if self._graph.dangling:
            what = f"{self._graph.dangling} inputs come from nodes that it does not have: part of a graph, or cut short"
            warn(what, path=source.path)

    def names(self) -> list[str]:
        """Names of the tables that a graph may hold rows for."""
        return [graph.NODES, graph.EDGES, FACTS]

    def count(self, name: str) -> int:
        """Number of rows of a table."""
        return int(self._table(name).num_rows)

    def read(self, name: str, columns: Sequence[str]) -> pa.Table:
        """Read some columns of a table."""
        return self._table(name).select(list(columns))

    def _table(self, name: str) -> pa.Table:
        if name == FACTS:
            versions = {"tool_version": ", ".join(self._graph.versions)} if self._graph.versions else {}
            facts = {"tool": "TensorFlow", **versions}
            return pa.table({"name": list(facts), "value": list(facts.values())})
        return self._graph.nodes if name == graph.NODES else self._graph.edges


def _inside(source: Source) -> Source:
    """Return the SavedModel in a folder; a file as it is."""
    return next((Source(source.path / name) for name in SAVED_MODELS if name in source.names), source)


def _refused(source: Source, found: Form | None) -> UnknownFormatError:
    """Say what a file is that is no graph."""
    if found is not None:
        hint = "it belongs to an event file (events.out.tfevents…): give that, or the graph"
        return UnknownFormatError("run metadata, times of a step, but no graph", path=source.path, hint=hint)
    what, hint = describe(source)
    if what == UNKNOWN:
        what, hint = "no graph of TensorFlow", "give a GraphDef, MetaGraphDef or SavedModel, binary or text"
    return UnknownFormatError(what, path=source.path, hint=hint)


def _read(file: InputFile, found: Form) -> Graph:
    where = f"the {found.message.value}"
    if found.text:
        text.check_size(file.size)
        return _taken(text.encoded(file.read(0, file.size), found.message.value), found.message, where)
    return _taken(file, found.message, where)


def _taken(octets: bytes | InputFile, message: Message, where: str) -> Graph:
    if message is Message.SAVED_MODEL:
        return graph.read_saved_model(octets, where=where)
    return (graph.read_meta if message is Message.META_GRAPH else graph.read)(octets, where=where)
