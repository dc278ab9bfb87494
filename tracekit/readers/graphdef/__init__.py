"""Graphs of TensorFlow: GraphDef, MetaGraphDef and SavedModel, binary (``.pb``) and text (``.pbtxt``).

Source: the messages of TensorFlow, declared in ``schemas/proto/tensorflow_graph.proto``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tracekit.registry import Reader

if TYPE_CHECKING:
    from tracekit.registry import Capture, Source

SAVED_MODELS = ("saved_model.pb", "saved_model.pbtxt")


def sniff(source: Source) -> bool:
    """Whether a file begins as a graph or as run metadata (which ``open_`` refuses), or a folder holds a SavedModel."""
    if source.names:
        return any(name in source.names for name in SAVED_MODELS)
    from tracekit.readers.tensorflow.forms import form

    return form(source.head) is not None


def open_(source: Source) -> Capture:
    """Read a graph."""
    from tracekit.readers.graphdef.capture import GraphCapture

    return GraphCapture(source)


READER = Reader("graphdef", "TensorFlow graph or SavedModel (.pb, .pbtxt)", (".pb", ".pbtxt", ".meta"), sniff, open_)
