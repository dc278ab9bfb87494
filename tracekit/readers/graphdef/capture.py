"""Build declared tables from a TensorFlow graph or SavedModel. The whole file is decoded when it is opened."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pyarrow as pa

from tracekit.errors import CorruptTraceError, TracekitError, UnknownFormatError, warn
from tracekit.readers.common.damage import Damage
from tracekit.readers.common.protobuf import messages
from tracekit.readers.graphdef import SAVED_MODELS
from tracekit.readers.tensorflow import graph
from tracekit.readers.tensorflow.forms import FileForm, FileMessage, detect_file_form
from tracekit.readers.tensorflow.types import FILE
from tracekit.registry.detection import describe_unrecognized
from tracekit.registry.interface import Capture
from tracekit.registry.source import Source

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tracekit.readers.tensorflow.graph import Graph
    from tracekit.system.files import InputFile

MAX_TEXT_BYTES = 1 << 28
"""Maximum size of a text file. Parsing a file of this size takes a few minutes."""


_LONG_ESCAPES = re.compile(r"\\{1001}")
"""Pattern of more than 1000 consecutive backslashes. The parser of protobuf takes time quadratic in their number."""
CAPTURE_INFO = "capture_info"
_SAVE_AGAIN = "copy the file again, or save the graph again"


def check_text_size(size: int) -> None:
    """Check that a text of the given size in bytes is not too large to be parsed.

    Raises:
        Damage: The size exceeds ``MAX_TEXT_BYTES``.
    """
    if size > MAX_TEXT_BYTES:
        raise Damage(
            f"the graph has {size:,} bytes of text, but tracekit supports at most {MAX_TEXT_BYTES:,}: "
            "save the graph in binary format"
        )


def encode_text_message(data: bytes | memoryview, name: str) -> bytes:
    """Convert a message from text format to binary format. Fields that the schema does not declare are dropped.

    Args:
        data: The message in text format.
        name: Name of the message type.

    Raises:
        Damage: The text is not a message of this type. The error contains the position of the first invalid token.
    """
    from google.protobuf import text_format

    check_text_size(len(data))
    text = bytes(data).decode("utf-8", "replace").removeprefix("\ufeff")
    if _LONG_ESCAPES.search(text):
        raise Damage(f"the {name} contains more than 1,000 consecutive backslashes, the most that tracekit supports")
    parsed = messages.load_message_class(FILE, name)()
    try:
        text_format.Parse(text, parsed, allow_unknown_field=True)
        return bytes(parsed.SerializeToString())
    except text_format.ParseError as e:
        line, column = e.GetLine(), e.GetColumn()
        position = "" if line is None else f" at line {line}, column {column or 1}"
        raise Damage(f"the protobuf text of the {name} is invalid or truncated{position}") from e
    except RecursionError as e:
        raise Damage(f"the {name} is nested too deeply") from e
    except (ValueError, OverflowError) as e:
        raise Damage(f"a value in the {name} is out of range") from e


class GraphCapture(Capture):
    """The declared tables of a TensorFlow graph or of all graphs in a SavedModel."""

    def __init__(self, source: Source) -> None:
        """Read a graph file, or the SavedModel in a folder.

        Raises:
            UnknownFormatError: The file is not a graph. The message names the probable type of the file.
            CorruptTraceError: The file is truncated or damaged.
            TracekitError: The file cannot be read, or changed while it was read.
        """
        source = _resolve_saved_model(source)
        file_form = detect_file_form(source.head)
        if file_form is None or file_form.message is FileMessage.RUN_METADATA:
            raise _create_unsupported_error(source, file_form)
        with source.open() as file:
            try:
                self._graph = _read_graph(file, file_form)
            except Damage as e:
                file.check_unchanged()
                raise CorruptTraceError(str(e), path=source.path, hint=_SAVE_AGAIN) from e
            except MemoryError as e:
                raise TracekitError(
                    f"the graph ({source.size:,} bytes) does not fit into memory",
                    path=source.path,
                    hint="close other programs, or open the file on a machine with more memory",
                ) from e
        if self._graph.dangling:
            what = f"{self._graph.dangling} inputs refer to missing nodes: the graph is incomplete or truncated"
            warn(what, path=source.path)

    def names(self) -> list[str]:
        """Return the names of the declared tables that may have rows."""
        return [graph.NODES, graph.EDGES, CAPTURE_INFO]

    def count(self, name: str) -> int:
        """Return the number of rows of a table."""
        return int(self._build_table(name).num_rows)

    def read(self, name: str, columns: Sequence[str]) -> pa.Table:
        """Return the requested columns of a table."""
        return self._build_table(name).select(list(columns))

    def _build_table(self, name: str) -> pa.Table:
        if name == CAPTURE_INFO:
            versions = {"tool_version": ", ".join(self._graph.versions)} if self._graph.versions else {}
            metadata = {"tool": "TensorFlow", **versions}
            return pa.table({"name": list(metadata), "value": list(metadata.values())})
        return self._graph.nodes if name == graph.NODES else self._graph.edges


def _resolve_saved_model(source: Source) -> Source:
    """Return the SavedModel file in a folder. A source that is a file is returned unchanged."""
    return next((Source(source.path / name) for name in SAVED_MODELS if name in source.names), source)


def _create_unsupported_error(source: Source, file_form: FileForm | None) -> UnknownFormatError:
    """Return an error that states what the file contains instead of a graph."""
    if file_form is not None:
        hint = "read the event file of the run (events.out.tfevents…) or the file of the graph"
        return UnknownFormatError(
            "the file contains run metadata (times of a step), but no graph", path=source.path, hint=hint
        )
    unknown = "this is not a TensorFlow graph", "read a GraphDef, MetaGraphDef or SavedModel, binary or text"
    what, hint = describe_unrecognized(source, unknown)
    return UnknownFormatError(what, path=source.path, hint=hint)


def _read_graph(file: InputFile, file_form: FileForm) -> Graph:
    label = f"the {file_form.message.value}"
    if file_form.is_text:
        check_text_size(file.size)
        data = encode_text_message(file.read(0, file.size), file_form.message.value)
        return _decode_message(data, file_form.message, label)
    return _decode_message(file, file_form.message, label)


def _decode_message(data: bytes | InputFile, message_type: FileMessage, label: str) -> Graph:
    if message_type is FileMessage.SAVED_MODEL:
        return graph.read_saved_model(data, label=label)
    return (graph.read_meta_graph if message_type is FileMessage.META_GRAPH else graph.read_graph)(data, label=label)
