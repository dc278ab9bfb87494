"""What errors say, and that they survive a trip to another process."""

from __future__ import annotations

import pickle
import warnings
from pathlib import Path

import pytest
from tracekit import errors
from tracekit.errors import CorruptTraceError, TracekitError, TracekitWarning

KINDS = {
    errors.UnknownFormatError: ValueError,
    errors.UnsupportedVersionError: TracekitError,
    errors.CorruptTraceError: ValueError,
    errors.SchemaError: TypeError,
    errors.MissingTableError: LookupError,
    errors.ExportError: TracekitError,
}


@pytest.mark.parametrize(("kind", "base"), KINDS.items())
def test_the_tree(kind: type[TracekitError], base: type[Exception]) -> None:
    assert issubclass(kind, TracekitError)
    assert issubclass(kind, base)
    assert kind.__name__ in (errors.__doc__ or "")


def test_a_message_names_the_file_and_says_what_to_do() -> None:
    error = TracekitError("3 rows are odd", path=Path("a b.sqlite"), hint="look again")
    assert str(error) == "a b.sqlite: 3 rows are odd\nHint: look again"
    assert (error.path, error.hint) == ("a b.sqlite", "look again")
    assert str(TracekitError("3 rows are odd")) == "3 rows are odd"


def test_a_corrupt_place() -> None:
    assert str(CorruptTraceError("cut", path="f", table="T", row=7, hint="h")) == "f: table T, row 7: cut\nHint: h"
    assert str(CorruptTraceError("cut", path="f", table="T")) == "f: table T: cut"
    assert str(CorruptTraceError("cut", path="f")) == "f: cut"


def test_a_name_that_is_no_text() -> None:
    assert str(TracekitError("odd", path="a\udcff")).encode() == "a�: odd".encode()
    with pytest.warns(TracekitWarning, match="^a�: odd$"):
        errors.warn("odd", path="a\udcff")


@pytest.mark.parametrize("kind", KINDS)
def test_pickled(kind: type[TracekitError]) -> None:
    again = pickle.loads(pickle.dumps(kind("odd", path="f", hint="h")))
    assert (type(again), str(again), again.path, again.hint) == (kind, "f: odd\nHint: h", "f", "h")
    corrupt = pickle.loads(pickle.dumps(CorruptTraceError("odd", path="f", table="T", row=1)))
    assert (str(corrupt), corrupt.table, corrupt.row) == ("f: table T, row 1: odd", "T", 1)


def test_warnings_are_ours() -> None:
    with pytest.warns(TracekitWarning, match="^f: 3 rows$"):
        errors.warn("3 rows", path=Path("f"))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        errors.warn("no file")
    assert [str(w.message) for w in caught] == ["no file"]


def test_the_first_line() -> None:
    assert errors.get_first_line_of_message(ValueError("one\ntwo")) == "one"
    assert errors.get_first_line_of_message(ValueError()) == "ValueError"
