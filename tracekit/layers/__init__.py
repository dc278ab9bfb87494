"""What a trace is made of: an opened file under layers that each give the same tables, cached, correlated or selected.

Every layer is a ``Capture``: it reads some columns of one table when asked. A layer works only on the columns that the
question needs, and keeps only what is dear to compute.
"""

from tracekit.layers.file import File
from tracekit.layers.recipe import InMemory, LiveLayer, OpenedFile, Recipe, through
from tracekit.layers.selected import Selected, Selection
from tracekit.layers.stack import ROLLED_UP, Aggregation, Correlated, Layer, to_frame

__all__ = [
    "ROLLED_UP",
    "Aggregation",
    "Correlated",
    "File",
    "InMemory",
    "Layer",
    "LiveLayer",
    "OpenedFile",
    "Recipe",
    "Selected",
    "Selection",
    "through",
    "to_frame",
]
