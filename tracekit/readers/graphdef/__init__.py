"""Read TensorFlow graphs (GraphDef, MetaGraphDef and SavedModel) in binary (``.pb``) or text format (``.pbtxt``).

The protobuf messages are declared in ``schemas/proto/tensorflow_graph.proto``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tracekit.registry.interface import Reader

if TYPE_CHECKING:
    from tracekit.registry.interface import Capture
    from tracekit.registry.source import Source

SAVED_MODELS = ("saved_model.pb", "saved_model.pbtxt")


def sniff(source: Source) -> bool:
    """Return whether a file starts like a TensorFlow graph, or a folder contains a SavedModel.

    The result is also True for run metadata. ``open_capture`` then raises an error that explains what to open instead.
    """
    if source.names:
        return any(name in source.names for name in SAVED_MODELS)
    from tracekit.readers.tensorflow.forms import detect_file_form

    return detect_file_form(source.head) is not None


def open_capture(source: Source) -> Capture:
    """Open a TensorFlow graph or SavedModel."""
    from tracekit.readers.graphdef.capture import GraphCapture

    return GraphCapture(source)


READER = Reader(
    "graphdef", "TensorFlow graph or SavedModel (.pb, .pbtxt)", (".pb", ".pbtxt", ".meta"), sniff, open_capture
)
