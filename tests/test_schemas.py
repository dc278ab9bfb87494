"""Declared tables: what follows from them, and what ``conform`` says of data that is not as declared."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pytest
import tracekit as tk
from hypothesis import given, settings
from hypothesis import strategies as st
from schemas.generate import compiled, why_schema
from tests.builders import strategies
from tests.conftest import examples
from tracekit import schemas
from tracekit.errors import SchemaError
from tracekit.registry import analyses

NAMES = sorted(schemas.tables())
KERNELS = schemas.table("kernels")
RANGES = schemas.table("nvtx_ranges")
DICTIONARY = pa.dictionary(pa.int32(), pa.string())
EVERY = [schemas.table(n) for n in NAMES] + [schemas.correlated_schema(n) for n in NAMES]


@pytest.mark.parametrize("name", NAMES)
def test_a_declaration_is_complete(name: str) -> None:
    schema = schemas.table(name)
    assert schema.name == name
    assert schema.doc.endswith(".")
    assert set(schema.key) <= set(schema.names)
    assert len(set(schema.names)) == len(schema.names)
    for column in schemas.correlated_schema(name).columns:
        assert column.doc.endswith((".", "…")), column
        assert column.type in strategies.VALUES, column
        unit = next((u for u in ("ns", "bytes", "hz", "bytes_per_s") if column.name.endswith(f"_{u}")), None)
        assert (unit is None) or column.unit is not None, column
        if column.references:
            table, _, referenced = column.references.partition(".")
            assert referenced in schemas.table(table).names, column


@pytest.mark.parametrize("schema", EVERY, ids=lambda s: f"{s.name}{len(s.columns)}")
def test_the_schemas_of_a_table_agree(schema: schemas.TableSchema) -> None:
    arrow = schemas.arrow_schema(schema)
    assert arrow.names == schema.names
    assert arrow.metadata == {b"tracekit.table": schema.name.encode()}
    empty = schemas.empty(schema)
    assert empty.num_rows == 0
    assert empty.schema.equals(arrow, check_metadata=True)
    assert dict(pl.DataFrame(empty).schema) == schemas.polars_schema(schema)
    for field, column in zip(arrow, schema.columns, strict=True):
        assert field.nullable == column.nullable
        assert field.metadata[b"doc"].decode() == column.doc
        assert field.metadata.get(b"unit", b"").decode() == (column.unit or "")


def test_the_schema_of_why_is_up_to_date() -> None:
    assert why_schema.FILE.read_text("utf-8") == why_schema.text(), "run make generate"
    assert why_schema.WHAT_IF_FILE.read_text("utf-8") == why_schema.what_if_text(), "run make generate"


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A copy of the declarations, from which they are loaded."""
    folder = tmp_path / "schemas"
    shutil.copytree(schemas.FOLDER, folder, ignore=shutil.ignore_patterns("_compiled.json", "__pycache__"))
    monkeypatch.setattr(schemas, "FOLDER", folder)
    schemas._load_compiled_schemas.cache_clear()
    yield folder
    schemas._load_compiled_schemas.cache_clear()


def test_changed_declarations_are_compiled_when_they_are_loaded(checkout: Path) -> None:
    def load() -> dict[str, Any]:
        schemas._load_compiled_schemas.cache_clear()
        return dict(schemas._load_compiled_schemas())

    expected = compiled.compile_declarations(checkout)
    assert expected.items() <= load().items()
    written = (checkout / "_compiled.json").stat().st_mtime_ns
    assert expected.items() <= load().items()
    assert (checkout / "_compiled.json").stat().st_mtime_ns == written
    kernels = checkout / "arrow" / "kernels.toml"
    kernels.write_text(kernels.read_text("utf-8").replace("kernel_id", "some_id"), "utf-8")
    assert load()["tables"]["kernels"] != expected["tables"]["kernels"]
    (checkout / "arrow" / "memcpys.toml").unlink()
    assert "memcpys" not in load()["tables"]
    (checkout / "_compiled.json").write_text("<<<<<<< merged", "utf-8")
    assert "memcpys" not in load()["tables"]
    assert [p.name for p in checkout.glob("_compiled*")] == ["_compiled.json"]


def test_a_read_only_checkout_compiles_in_memory(checkout: Path) -> None:
    (checkout / "_compiled.json").mkdir()  # root can write to read-only folders
    assert "kernels" in schemas._load_compiled_schemas()["tables"]
    assert [p.name for p in checkout.glob("_compiled*")] == ["_compiled.json"]


def test_some_columns() -> None:
    assert schemas.arrow_schema(KERNELS, ["name", "start_ns"]).names == ["name", "start_ns"]
    assert schemas.polars_schema(KERNELS, ["name"]) == {"name": pl.Categorical()}
    assert schemas.empty(KERNELS, ["end_ns"]).column_names == ["end_ns"]


def test_unknown_names() -> None:
    with pytest.raises(
        SchemaError,
        match=r"^no table is called 'kernel'\nHint: did you mean 'kernels'\? choose one of these tables: devices, ",
    ):
        schemas.table("kernel")
    with pytest.raises(
        SchemaError,
        match=r"^table 'kernels' has no column 'start'\nHint: did you mean 'start_ns'\? choose one of these columns",
    ):
        KERNELS["start"]


def test_columns_of_a_declaration() -> None:
    assert [column.name for column in KERNELS] == KERNELS.names
    assert KERNELS["start_ns"] in list(KERNELS)
    assert "start_ns" in KERNELS
    assert "start" not in KERNELS
    assert 0 not in KERNELS


@pytest.mark.parametrize("schema", EVERY, ids=lambda s: f"{s.name}{len(s.columns)}")
def test_json_schema(schema: schemas.TableSchema) -> None:
    made = schemas.build_json_schema(schema)
    assert json.loads(json.dumps(made)) == made
    assert made["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    assert made["$id"] == f"tracekit:{schema.name}:v1"
    assert list(made["properties"]) == schema.names
    assert set(made["required"]) == {c.name for c in schema.columns if not c.nullable}
    known = {"integer", "number", "boolean", "string", "null"}
    for column in schema.columns:
        found = made["properties"][column.name]
        kinds = found["type"] if isinstance(found["type"], list) else [found["type"]]
        assert set(kinds) <= known
        assert ("null" in kinds) == column.nullable
        if column.values:
            assert found["enum"] == [*column.values, *([None] if column.nullable else [])]


@pytest.mark.many(24)
@settings(max_examples=examples(40))
@pytest.mark.parametrize("name", NAMES)
@given(data=st.data())
def test_conform_keeps_what_is_as_declared(name: str, data: st.DataObject) -> None:
    schema = schemas.table(name)
    table = data.draw(strategies.tables(schema))
    assert schemas.conform(table, schema).equals(table)
    wide = {"int32": pa.int64(), "dictionary": pa.large_string()}
    raw = pa.table({c.name: table[c.name].cast(wide.get(c.type, table[c.name].type)) for c in reversed(schema.columns)})
    again = schemas.conform(raw, schema)
    assert again.schema.equals(table.schema, check_metadata=True)
    assert again.to_pylist() == table.to_pylist()


@pytest.mark.many(24)
@settings(max_examples=examples(40))
@pytest.mark.parametrize("name", NAMES)
@given(data=st.data())
def test_tables_in_memory_come_back_equal(name: str, data: st.DataObject) -> None:
    table = data.draw(strategies.tables(schemas.table(name)))
    trace = tk.Trace.from_tables({name: table})
    assert trace.count(name) == table.num_rows
    if name != "nvtx_projections":  # made by correlation
        assert trace[name].to_pylist() == table.to_pylist()
        assert trace.frame(name).collect().to_dicts() == table.to_pylist()


def kernels(**columns: object) -> pa.Table:
    return pa.table(columns)


@pytest.mark.parametrize(
    ("data", "columns", "said"),
    [
        (
            kernels(start_ns=[1]),
            ["start_ns", "end_ns", "name"],
            "table 'kernels' lacks required columns: end_ns",
        ),
        (
            kernels(start_ns=["x"]),
            ["start_ns"],
            "column 'start_ns' of table 'kernels' cannot be cast to int64: Failed to parse",
        ),
        (
            kernels(start_ns=[[1]]),
            ["start_ns"],
            "column 'start_ns' of table 'kernels' cannot be cast to int64: Unsupported cast",
        ),
        (
            kernels(start_ns=[1, None, None]),
            ["start_ns"],
            "column 'start_ns' of table 'kernels' is not nullable, but it has 2",
        ),
        (
            kernels(device_id=[1 << 40]),
            ["device_id"],
            "column 'device_id' of table 'kernels' cannot be cast to int32: Integer value",
        ),
        (
            kernels(start_ns=[1.5]),
            ["start_ns"],
            "column 'start_ns' of table 'kernels' cannot be cast to int64: Float value 1.5",
        ),
        (
            kernels(name=[b"\xff"]),
            ["name"],
            "column 'name' of table 'kernels' cannot be cast to dictionary<values=string",
        ),
        (
            pa.table([[1], [2]], names=["start_ns", "start_ns"]),
            ["start_ns"],
            "table 'kernels' has repeated columns: start",
        ),
        ({"start_ns": [1]}, ["start_ns"], "table 'kernels' is a dict, not a pyarrow.Table"),
        (pl.DataFrame({"start_ns": [1]}), ["start_ns"], "table 'kernels' is a DataFrame, not a pyarrow.Table"),
    ],
)
def test_what_is_not_as_declared(data: pa.Table, columns: list[str], said: str) -> None:
    with pytest.raises(SchemaError) as caught:
        schemas.conform(data, KERNELS, columns, path="some.file")
    assert str(caught.value).startswith(f"some.file: {said}")


def test_undeclared_values() -> None:
    kinds = pa.table({"kind": ["push_pop", "push-pop", "start_end", "range"]})
    with pytest.raises(SchemaError, match="column 'kind' of table 'nvtx_ranges' contains push-pop, range, but"):
        schemas.conform(kinds, RANGES, ["kind"])


@pytest.mark.parametrize(
    "values",
    [
        pa.array(["a", None, "a"]),
        pa.array(["a", None, "a"], pa.large_string()),
        pa.array(["a", None, "a"]).dictionary_encode(),
        pa.array(["a", None, "a"], pa.large_string()).dictionary_encode(),
        pa.array(["a", None, "a"], pa.dictionary(pa.int8(), pa.string())),
        pa.DictionaryArray.from_arrays(pa.array([0, 1, 0], pa.int32()), pa.array(["a", None])),
        pa.DictionaryArray.from_arrays(pa.array([0, None, 1], pa.uint16()), pa.array(["a", "a"], pa.large_string())),
    ],
)
def test_texts_of_any_encoding(values: pa.Array) -> None:
    for table in (pa.table({"name": values}), pa.table({"name": pa.chunked_array([values, values])})):
        made = schemas.conform(table, KERNELS, ["name"])
        assert made["name"].type == DICTIONARY
        assert made["name"].to_pylist() == table["name"].to_pylist()
        assert made["name"].null_count == table["name"].to_pylist().count(None)


def test_no_texts() -> None:
    for empty in (pa.chunked_array([], pa.string()), pa.chunked_array([], DICTIONARY), pa.chunked_array([pa.nulls(0)])):
        assert schemas.conform(pa.table({"name": empty}), KERNELS, ["name"]).schema.field("name").type == DICTIONARY


def test_nulls_inside_a_dictionary_are_seen() -> None:
    kinds = pa.DictionaryArray.from_arrays(pa.array([0, 1], pa.int32()), pa.array(["push_pop", None]))
    with pytest.raises(SchemaError, match="column 'kind' of table 'nvtx_ranges' is not nullable, but it has 1 nulls"):
        schemas.conform(pa.table({"kind": kinds}), RANGES, ["kind"])


def test_rows_with_equal_keys() -> None:
    data = pa.table({"kernel_id": [1, 2, 1], "start_ns": [5, 6, 7]})
    with pytest.raises(
        SchemaError, match=r"^the key 'kernel_id' of table 'kernels' is not unique in 1 rows \(row 2\)$"
    ):
        schemas.check_rows(data, KERNELS)
    schemas.check_rows(data.slice(1), KERNELS)


def test_missing_columns_are_null() -> None:
    made = schemas.conform(pa.table({"start_ns": [1, 2]}), KERNELS, ["start_ns", "name", "stream_id"])
    assert made.schema.equals(schemas.arrow_schema(KERNELS, ["start_ns", "name", "stream_id"]))
    assert made.to_pylist() == [{"start_ns": n, "name": None, "stream_id": None} for n in (1, 2)]


def test_roles_and_keys_are_those_of_declared_tables() -> None:
    relations = schemas._load_declaration("_relations")
    assert {t for listed in relations["roles"].values() for t in listed} <= set(schemas.table_names())
    activities, synchronizations = map(schemas.list_tables, ("activity", "synchronization"))
    refers = {
        name
        for name, schema in schemas.tables().items()
        if any(column.references == "api_calls.correlation_id" for column in schema)
    }
    assert refers >= {*activities, *synchronizations}
    for table in activities:
        assert {*schemas.get_key("call"), *schemas.get_key("stream")} <= {*schemas.table(table).names}
        required = [c.name for c in schemas.table(table) if not c.nullable]
        assert required == [schemas.table(table).key[0], "start_ns", "end_ns", "device_id"]
    assert schemas.get_key("thread") == schemas.table("threads").key


def test_what_computes_each_declared_analysis_exists() -> None:
    for kind in analyses.KINDS:
        for analysis in analyses.list_built_in_analyses(kind).values():
            assert analysis.load_compute_function() is not None, analysis.label
