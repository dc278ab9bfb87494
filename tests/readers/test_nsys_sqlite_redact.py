"""Exports redacted: what is private is gone from the bytes of the file, and every other value is as it was."""

from __future__ import annotations

import contextlib
import random
import sqlite3
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest
import tracekit as tk
from tests.readers.databases import FIXTURES, edited, plain, untouched
from tracekit.errors import CorruptTraceError, ExportError, TracekitError, TracekitWarning, UnsupportedVersionError
from tracekit.readers.common.redaction import KINDS
from tracekit.readers.nsys_sqlite import redact

CASES = 60
Dump = dict[str, dict[int, tuple[object, ...]]]

ENVIRONMENT = "PATH=/opt/alice/bin\0USER=alice\0HOSTNAME=gpu17.cluster.example\0TOKEN=s3cr3t-t0k3n\0"
LINES = "SHELL=/bin/zsh\nUSER=carol\nTOKEN=an0ther-t0k3n"
PLANTED = (
    "INSERT INTO StringIds VALUES (9001, ?1), (9002, ?2), (9003, 'epoch 1 by alice\n'), (9004, 'PATH=/opt/lonely')",
    "INSERT INTO ProcessStreams SELECT globalPid, filenameId, 9003 FROM ProcessStreams LIMIT 1",
    "UPDATE META_DATA_EXPORT SET value = 'gpu17.cluster.example' WHERE name = 'EXPORT_HOST'",
    "UPDATE META_DATA_EXPORT SET value = 'alice' WHERE name = 'EXPORT_USER'",
    "UPDATE META_DATA_EXPORT SET value = 'alice.nsys-rep' WHERE name = 'EXPORT_PARAM_INPUT_FILE'",
    "UPDATE META_DATA_EXPORT SET value = '/home/alice/runs/a.nsys-rep' WHERE name LIKE 'EXPORT_PARAM_INPUT_PATH%'",
    "UPDATE META_DATA_CAPTURE SET value = '--password=hunter2' WHERE name = 'PROCESS_0:ARGUMENT_0'",
    "UPDATE META_DATA_CAPTURE SET value = 'TOKEN=\"thi7d-t0k3n\"' WHERE value LIKE 'LD_PRELOAD%'",
    "UPDATE TARGET_INFO_SYSTEM_ENV SET value = 'HOME=/home/alice;TOKEN=f0u7th-t0k3n' WHERE nameEnum = 610",
    """UPDATE TARGET_INFO_SYSTEM_ENV SET value = '{"Nics":[{"Name":"mlx5_0","GUID":"7766554433221100"}]}'
       WHERE nameEnum = 910""",
    "UPDATE PROCESSES SET name = '/data/project/bin/solver' WHERE pid = 541",
    "UPDATE NVTX_EVENTS SET text = 'step of alice at gpu17' WHERE rowid = (SELECT max(rowid) FROM NVTX_EVENTS)",
    """INSERT INTO DIAGNOSTIC_EVENT SELECT 1, timestampType, source, severity, 'see /home/bob/log on gpu17', globalPid
       FROM DIAGNOSTIC_EVENT LIMIT 1""",
    "CREATE TABLE TARGET_INFO_NIC_INFO (GUID INTEGER NOT NULL, stateName TEXT, nicId INTEGER, name TEXT)",
    "INSERT INTO TARGET_INFO_NIC_INFO VALUES (-7751348055725612106, 'gpu18.cluster.example', 0, 'mlx5_0')",
    "INSERT INTO TARGET_INFO_NIC_INFO VALUES (0, 'Local (CLI)', 1, 'mlx5_1')",
    "CREATE TABLE scratch (any, note TEXT, data BLOB)",
    "INSERT INTO scratch VALUES ('alice', 'malice of gpu17', x'00616c69636500626f62'), (7, NULL, x'ff'), (1.5, '', '')",
)  # fmt: skip
FILLED = """CREATE TABLE filled AS
    WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n LIMIT 9999) SELECT i, hex(zeroblob(99)) FROM n"""
SECRETS = (
    "t0k3n", "hunter2", "alice@", "/opt/alice", "lonely", "cluster.example", "epoch 1 by", "/data/project",
    "/home/alice", "/home/bob", "7766554433221100", "zsh",
)  # fmt: skip


@pytest.fixture
def planted(tmp_path: Path) -> Path:
    """A real export with secrets of every kind."""
    path = edited(tmp_path, of="nvtx_features", name="planted.sqlite")
    with contextlib.closing(sqlite3.connect(path)) as db:
        for statement in PLANTED:
            db.execute(statement, (ENVIRONMENT, LINES) if "?1" in statement else ())
        db.commit()
    return path


def dump(path: Path) -> Dump:
    """Every row of every table by its number, with the types that SQLite stores."""
    with contextlib.closing(sqlite3.connect(f"{path.as_uri()}?immutable=1", uri=True)) as db:
        db.text_factory = lambda text: text.decode("utf-8", "surrogateescape")
        names = [n for (n,) in db.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")]
        return {n: {r[0]: r[1:] for r in db.execute(f'SELECT rowid, * FROM "{n}"')} for n in names}


def changed(before: Dump, after: Dump) -> set[tuple[str, object]]:
    """Tables and, of what kind the changed rows are, their first values."""
    assert {t: list(rows) for t, rows in before.items()} == {t: list(rows) for t, rows in after.items()}
    return {(t, row[0]) for t, rows in before.items() for i, row in rows.items() if after[t][i] != row}


def redacted(path: Path, name: str = "redacted.sqlite") -> tuple[Path, dict[str, int]]:
    out = path.with_name(name)
    return out, tk.redact(path, out, overwrite=True)


def test_what_is_private_is_in_no_byte_of_the_copy(planted: Path) -> None:
    before = planted.read_bytes()
    assert [s for s in SECRETS if s != "alice@" and s.encode() not in before] == []
    out, _ = redacted(planted)
    after = out.read_bytes()
    assert [s for s in SECRETS if s.encode() in after] == []
    assert after.count(b"alice") == after.count(b"malice") == 1


def test_counts_are_by_kind(planted: Path) -> None:
    _, counts = redacted(planted)
    assert list(counts) == list(KINDS)
    assert counts == {
        "environment": 14,
        "command line": 8,
        "host name": 4,
        "user name": 1,
        "program output": 2,
        "hardware address": 2,
        "name in another text": 6,
    }


def test_every_other_value_is_as_it_was(planted: Path) -> None:
    out, _ = redacted(planted)
    settings = {r[0] for r in dump(planted)["META_DATA_CAPTURE"].values()}
    private = {s for s in settings if any(m in s for m in ("ARGUMENT", "COMMAND", "WORKING", "VARIABLE", "DISPLAY"))}
    exports = (
        "HOST",
        "USER",
        "PARAM_INPUT_FILE",
        *(f"PARAM_{p}_PATH{a}" for p in ("INPUT", "OUTPUT") for a in ("", "_ABS")),
    )
    strings = {("StringIds", i) for i in (9001, 9002, 9003, 9004)}
    printed = {("StringIds", i) for (i,) in plain(planted, "SELECT contentId FROM ProcessStreams")}
    found = changed(dump(planted), dump(out))
    assert found - printed == (strings - printed) | {("META_DATA_CAPTURE", s) for s in private} | {
        *(("META_DATA_EXPORT", f"EXPORT_{n}") for n in exports),
        ("TARGET_INFO_SYSTEM_ENV", 1 << 48),
        ("PROCESSES", plain(planted, "SELECT globalPid FROM PROCESSES WHERE pid = 541")[0][0]),
        ("NVTX_EVENTS", plain(planted, "SELECT start FROM NVTX_EVENTS ORDER BY rowid DESC")[0][0]),
        ("DIAGNOSTIC_EVENT", 1),
        ("TARGET_INFO_NIC_INFO", -7751348055725612106),
        ("scratch", "alice"),
    }
    values = dict(plain(out, "SELECT nameEnum, value FROM TARGET_INFO_SYSTEM_ENV"))
    assert (values[610], values[619]) == ("", "")
    assert values[910] == '{"Nics":[{"Name":"mlx5_0","GUID":""}]}'
    assert plain(out, "SELECT text FROM NVTX_EVENTS ORDER BY rowid DESC")[0] == ("step of xxxxx at xxxxx",)
    assert plain(out, "SELECT text FROM DIAGNOSTIC_EVENT WHERE timestamp = 1") == [("see /home/xxx/log on xxxxx",)]
    assert plain(out, "SELECT GUID, stateName FROM TARGET_INFO_NIC_INFO") == [(0, ""), (0, "Local (CLI)")]
    assert plain(out, "SELECT name FROM PROCESSES WHERE pid = 541") == [("solver",)]
    assert plain(out, "SELECT * FROM scratch") == [
        ("xxxxx", "malice of xxxxx", b"\0xxxxx\0bob"), (7, None, b"\xff"), (1.5, "", ""),
    ]  # fmt: skip


def test_schema_indexes_views_and_settings_of_the_file_stay(planted: Path) -> None:
    with contextlib.closing(sqlite3.connect(planted)) as db:
        db.execute("CREATE INDEX by_start ON NVTX_EVENTS(start)")
        db.execute("CREATE VIEW names AS SELECT value FROM StringIds")
        db.execute("CREATE TABLE keyed (name TEXT PRIMARY KEY, n INTEGER) WITHOUT ROWID")
        db.execute("INSERT INTO keyed VALUES ('alice', 1), ('b', 2)")
        db.execute("CREATE TABLE counted (id INTEGER PRIMARY KEY AUTOINCREMENT, twice AS (2 * id), s TEXT)")
        db.execute("INSERT INTO counted (id, s) VALUES (5, 'of alice')")
        db.execute("PRAGMA user_version = 77")
        db.commit()
    out, _ = redacted(planted)
    sql = "SELECT type, name, sql FROM sqlite_schema ORDER BY name"
    assert plain(out, sql) == plain(planted, sql)
    for pragma in ("user_version", "schema_version", "page_size", "encoding", "application_id"):
        assert plain(out, f"PRAGMA {pragma}") == plain(planted, f"PRAGMA {pragma}")
    assert plain(out, "SELECT * FROM keyed ORDER BY n") == [("xxxxx", 1), ("b", 2)]
    assert plain(out, "SELECT id, twice, s FROM counted") == [(5, 10, "of xxxxx")]
    assert plain(out, "SELECT seq FROM sqlite_sequence WHERE name = 'counted'") == [(5,)]
    assert plain(out, "PRAGMA integrity_check") == [("ok",)]


def test_row_numbers_with_gaps_are_kept(tmp_path: Path) -> None:
    gaps = edited(tmp_path, "DELETE FROM CUPTI_ACTIVITY_KIND_KERNEL WHERE rowid % 3 = 0")
    out, _ = redacted(gaps)
    sql = "SELECT rowid, * FROM CUPTI_ACTIVITY_KIND_KERNEL"
    assert plain(out, sql) == plain(gaps, sql)
    with tk.load(gaps) as a, tk.load(out) as b:
        assert a["kernels"].equals(b["kernels"])


def test_nothing_lingers_of_what_was_deleted_before(tmp_path: Path) -> None:
    path = edited(tmp_path, "UPDATE StringIds SET value = 'd3l3ted-t0k3n' WHERE id = 1")
    with contextlib.closing(sqlite3.connect(path)) as db:
        db.execute("PRAGMA secure_delete = OFF")
        db.execute("CREATE TABLE gone AS SELECT 'dr0pped-t0k3n' || value v FROM StringIds")
        db.execute("UPDATE StringIds SET value = 'x' WHERE id = 1")
        db.execute("DROP TABLE gone")
        db.commit()
    assert b"dr0pped-t0k3n" in path.read_bytes()
    out, _ = redacted(path)
    assert b"t0k3n" not in out.read_bytes()


def test_the_input_is_not_touched(planted: Path) -> None:
    out = planted.parent / "folder" / "out.sqlite"
    out.parent.mkdir()
    with untouched(planted):
        tk.redact(planted, out)
    assert [p.name for p in out.parent.iterdir()] == ["out.sqlite"]


def test_a_second_time_changes_nothing(planted: Path) -> None:
    once, _ = redacted(planted)
    twice, counts = redacted(once, "twice.sqlite")
    assert not any(counts.values())
    assert twice.read_bytes() == once.read_bytes()


def test_many_names_are_overwritten(tmp_path: Path) -> None:
    users = "\0".join(f"USER=person{i:03}" for i in range(150))
    path = edited(tmp_path, "INSERT INTO StringIds VALUES (9002, 'person149 and person000'), (9003, 'person077')")
    with contextlib.closing(sqlite3.connect(path)) as db:
        db.execute("INSERT INTO StringIds VALUES (9001, ?)", (users,))
        db.commit()
    out, counts = redacted(path)
    assert counts["name in another text"] == 2
    assert plain(out, "SELECT value FROM StringIds WHERE id > 9001") == [("xxxxxxxxx and xxxxxxxxx",), ("xxxxxxxxx",)]


def test_text_that_is_not_utf8_is_kept_or_overwritten(tmp_path: Path) -> None:
    path = edited(
        tmp_path,
        "UPDATE META_DATA_EXPORT SET value = 'alice' WHERE name = 'EXPORT_USER'",
        "INSERT INTO StringIds VALUES (9001, CAST(x'e96120616c696365e9' AS TEXT)), (9002, CAST(x'e9' AS TEXT))",
    )
    out, _ = redacted(path)
    sql = "SELECT typeof(value), CAST(value AS BLOB) FROM StringIds WHERE id > 9000"
    assert plain(out, sql) == [("text", b"\xe9a xxxxx\xe9"), ("text", b"\xe9")]


def test_old_exports_without_settings_are_redacted(tmp_path: Path) -> None:
    drop = (f"DROP TABLE {t}" for t in ("META_DATA_CAPTURE", "META_DATA_EXPORT", "TARGET_INFO_SYSTEM_ENV", "PROCESSES"))
    path = edited(tmp_path, *drop, "INSERT INTO StringIds VALUES (9001, 'A=1' || char(0) || 'USER=alice')")
    out, counts = redacted(path)
    assert {k: n for k, n in counts.items() if n} == {"environment": 1}
    assert plain(out, "SELECT value FROM StringIds WHERE id = 9001") == [("",)]


@pytest.mark.parametrize(
    ("statement", "error", "said"),
    [
        (
            "CREATE TRIGGER t AFTER UPDATE ON StringIds BEGIN DELETE FROM StringIds; END",
            TracekitError,
            "holds 1 triggers, which would run when it is changed\nHint: drop them, or export it again",
        ),
        (
            "CREATE UNIQUE INDEX one ON META_DATA_CAPTURE(name, value)",
            CorruptTraceError,
            "cannot be redacted: UNIQUE constraint failed: META_DATA_CAPTURE.name, META_DATA_CAPTURE.value\nHint: ",
        ),
    ],
    ids=["trigger", "unique"],
)
def test_what_cannot_be_changed_is_refused(statement: str, error: type[Exception], said: str, tmp_path: Path) -> None:
    path = edited(tmp_path, "DELETE FROM META_DATA_CAPTURE WHERE name = 'CAPTURE_EVENT_TYPE'", statement)
    with pytest.raises(error) as caught:
        tk.redact(path, tmp_path / "out.sqlite")
    assert str(caught.value).startswith(f"{path}: {said}")
    assert [p.name for p in tmp_path.iterdir()] == ["edited.sqlite"]


def test_other_encodings_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "wide.sqlite"
    with contextlib.closing(sqlite3.connect(path)) as db:
        db.execute("PRAGMA encoding = 'UTF-16le'")
        db.execute("CREATE TABLE StringIds (id INTEGER, value TEXT)")
        db.execute("CREATE TABLE ThreadNames (nameId INTEGER)")
        db.commit()
    with pytest.raises(UnsupportedVersionError, match="its texts are encoded in UTF-16le; only UTF-8 is redacted"):
        tk.redact(path, tmp_path / "out.sqlite")


@pytest.mark.parametrize("keep", [0.0, 0.01, 0.3, 0.7, 0.99])
def test_a_file_cut_short_gives_no_copy(keep: float, tmp_path: Path) -> None:
    data = (FIXTURES / "graph_node.sqlite").read_bytes()
    path = tmp_path / "cut.sqlite"
    path.write_bytes(data[: int(len(data) * keep)])
    with pytest.raises(TracekitError, match=r"cut\.sqlite: .*\nHint: "):
        tk.redact(path, tmp_path / "out.sqlite")
    assert [p.name for p in tmp_path.iterdir()] == ["cut.sqlite"]


@pytest.mark.parametrize("page", [2, 5, 20, 40])
def test_damaged_pages_give_an_error_or_a_copy_but_never_half_of_one(page: int, tmp_path: Path) -> None:
    data = bytearray((FIXTURES / "graph_node.sqlite").read_bytes())
    data[page * 4096 : page * 4096 + 64] = b"\xff" * 64
    path, out = tmp_path / "damaged.sqlite", tmp_path / "out.sqlite"
    path.write_bytes(data)
    with pytest.raises(CorruptTraceError, match=r"damaged\.sqlite: cannot be redacted: .*\nHint: export it again"):
        tk.redact(path, out)
    assert [p.name for p in tmp_path.iterdir()] == ["damaged.sqlite"]


def test_every_mutation_gives_the_same_tables_or_an_error(tmp_path: Path) -> None:
    whole = (FIXTURES / "graph_node.sqlite").read_bytes()
    path, out = tmp_path / "case.sqlite", tmp_path / "out.sqlite"
    ended = {"error": 0, "copy": 0}
    for case in range(CASES):
        dice = random.Random(case)
        data = bytearray(whole)
        for _ in range(dice.choice((1, 3, 20))):
            data[dice.randrange(100 if dice.random() < 0.2 else len(data))] = dice.randrange(256)
        path.write_bytes(data)
        out.unlink(missing_ok=True)
        ended[outcome(path, out)] += 1
        assert sorted(p.name for p in tmp_path.iterdir()) == ["case.sqlite", *(["out.sqlite"] if out.exists() else [])]
    assert min(ended.values()) > CASES // 10


def outcome(path: Path, out: Path) -> str:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", TracekitWarning)
        try:
            tk.redact(path, out)
        except TracekitError as e:
            return "error" if str(e).startswith(f"{path}: ") and not out.exists() else str(e)
        assert tables(out) == tables(path)
    return "copy"


def tables(path: Path) -> dict[str, object] | None:
    try:
        with tk.load(path) as trace:
            return {name: trace[name] for name in trace.tables}
    except TracekitError:
        return None


def test_names_that_are_no_unicode_are_refused(tmp_path: Path) -> None:
    data = edited(tmp_path, "CREATE TABLE scratch (hello TEXT)").read_bytes()
    path = tmp_path / "odd.sqlite"
    path.write_bytes(data.replace(b"scratch", b"scr\xe9tch").replace(b"hello", b"h\xe9llo"))
    with pytest.raises(
        CorruptTraceError, match=r"odd\.sqlite: .*a table or column has a name that is not UTF-8\nHint: "
    ):
        tk.redact(path, tmp_path / "out.sqlite")


def test_a_name_that_is_no_unicode_can_be_written_to(tmp_path: Path) -> None:
    folder = tmp_path / "caf\udce9"
    folder.mkdir()
    out = folder / "r\udce9sult.sqlite"
    assert tk.redact(FIXTURES / "empty.sqlite", out)["host name"] == 3
    assert [p.name for p in folder.iterdir()] == [out.name]


def test_a_target_that_exists_is_kept(planted: Path) -> None:
    out = planted.with_name("there.sqlite")
    out.write_text("precious")
    with pytest.raises(ExportError, match="exists already"):
        tk.redact(planted, out)
    with pytest.raises(ExportError, match="is the file being read"):
        tk.redact(planted, planted, overwrite=True)
    assert out.read_text() == "precious"


def test_a_disk_that_fills_up_is_the_fault_of_the_target(planted: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The copy fits, what is made of it does not."""
    original = redact._opened

    @contextlib.contextmanager
    def small(path: Path) -> Iterator[sqlite3.Connection]:
        with original(path) as db:
            db.execute("PRAGMA max_page_count = 1")
            yield db

    monkeypatch.setattr(redact, "_opened", small)
    monkeypatch.setattr(redact._Export, "_empty_outputs", lambda self: self.db.execute(FILLED))
    with pytest.raises(ExportError, match="cannot be written: No space left on device\nHint: make room on the disk"):
        tk.redact(planted, planted.with_name("out.sqlite"))
    assert [p.name for p in planted.parent.iterdir()] == [planted.name]
