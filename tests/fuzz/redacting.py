"""Redacts mutated files with secrets in them, in a process of its own and within limits that the system holds.

``python -m tests.fuzz.redacting nsys_rep 4711 1`` runs one case again; ``--keep FILE`` writes the file that it reads.
"""

from __future__ import annotations

import json
import random
import re
import sqlite3
import sys
import tempfile
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import tracekit as tk
from tests.builders.nsys_rep import event, message, strings
from tests.fuzz import nsys_rep, nsys_sqlite
from tests.fuzz.changes import fields
from tests.fuzz.run import Measured, limit_memory, measured
from tests.secrets_of import texts
from tracekit.readers.common.damage import Damage
from tracekit.readers.common.protobuf.decoding import Message

SECONDS = 5.0
MOST_FAILURES = 10
UUID, TOKEN, HOST, USER = (
    "d98800b1-2c5c-2fd8-49ad-447f376dedaa",
    "hf_PlantedPlantedPlanted0123",
    "gpu17-planted",
    "erikamuster",
)
ENVIRONMENT = f"PATH=/opt/plantedacme/bin\0USER={USER}\0HOSTNAME={HOST}\0WANDB_API_KEY=k3y-planted-0001\0"
RANGES = (
    f"on GPU-{UUID}", f"with {TOKEN} now", f"{USER}_run at /home/{USER}/a", "to erika.planted@mail.example",
    "of 10.98.76.54:80", "https://erika:plantedpw@git.example/x", "env HOME=/root, LOGNAME=erika, X=pl4nted-value",
)  # fmt: skip
BY_FORM = (UUID, TOKEN, "erika.planted@mail.example", "10.98.76.54", "erika:plantedpw@")
"""Secrets that are overwritten by their form, whatever else the file says."""


@dataclass
class Ended(Measured):
    """How cases ended.

    Attributes:
        errors: Cases that ended in an error of ours.
        copies: Cases that ended in a copy.
    """

    errors: int = 0
    copies: int = 0


def reports() -> list[nsys_rep.Report]:
    """The reports of the other fuzz test, with secrets."""
    ranges = [event(59, 102, (1, 59), (2, i), (7, text), (9, 1 << 48), (10, i + 1)) for i, text in enumerate(RANGES)]
    gpu = message((1, message((2, message((7, message((1, 0), (5, UUID))))))))
    planted = []
    for report in nsys_rep.reports():
        more = replace(
            report,
            blocks=[*report.blocks, tuple(ranges)],
            strings=[(strings(ENVIRONMENT), *block) if i == 0 else block for i, block in enumerate(report.strings)],
            rest=(*report.rest[:-1], report.rest[-1] + gpu),
        )
        planted.append(replace(more, stream=with_a_string(nsys_rep.counted(more))))
    return planted


def with_a_string(stream: bytes) -> bytes:
    """Count one string more."""
    known = Message(memoryview(stream)).int_value(3) or 0
    return b"".join(f.pack() for f in fields(stream) or () if f.number != 3) + message((3, known + 1))


def exports() -> list[tuple[str, bytes]]:
    """The exports of the other fuzz test, with secrets."""
    planted = []
    for name, data in nsys_sqlite.exports():
        with closing(sqlite3.connect(":memory:")) as db:
            db.deserialize(data)
            ids = range(900_000, 900_000 + len(RANGES) + 1)
            db.executemany("INSERT INTO StringIds VALUES (?, ?)", zip(ids, (ENVIRONMENT, *RANGES), strict=True))
            db.execute("CREATE TABLE planted (note TEXT, data BLOB)")
            db.executemany("INSERT INTO planted VALUES (?, CAST(? AS BLOB))", ((text, text) for text in RANGES))
            db.commit()
            planted.append((name, db.serialize()))
    return planted


def made_report(case: int) -> tuple[str, bytes]:
    listed = reports_of_this_process()
    report, mutate = listed[case % len(listed)], nsys_rep.MUTATIONS[case // len(listed) % len(nsys_rep.MUTATIONS)]
    return f"{report.name}, {mutate.__name__}", mutate(report, random.Random(case))


def made_export(case: int) -> tuple[str, bytes]:
    listed = exports_of_this_process()
    (name, data), mutations = listed[case % len(listed)], nsys_sqlite.MUTATIONS
    mutate = mutations[case // len(listed) % len(mutations)]
    return f"{name}, {mutate.__name__}", mutate(data, random.Random(case))


_KEPT: dict[str, Any] = {}


def reports_of_this_process() -> list[nsys_rep.Report]:
    listed: list[nsys_rep.Report] = _KEPT.setdefault("reports", None) or reports()
    _KEPT["reports"] = listed
    return listed


def exports_of_this_process() -> list[tuple[str, bytes]]:
    listed: list[tuple[str, bytes]] = _KEPT.setdefault("exports", None) or exports()
    _KEPT["exports"] = listed
    return listed


FORMATS: dict[str, tuple[str, Callable[[int], tuple[str, bytes]]]] = {
    "nsys_rep": (".nsys-rep", made_report),
    "nsys_sqlite": (".sqlite", made_export),
}


def main(name: str, first: str, number: str, *keep: str) -> None:
    """Run cases and print how they ended."""
    suffix, made = FORMATS[name]
    ended = Ended()
    warnings.simplefilter("ignore")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"case{suffix}"
        path.write_bytes((Path(__file__).parents[2] / "fixtures" / f"graph_node{suffix}").read_bytes())
        redact_one(path, 0, Ended())
        limit_memory()
        for case in range(int(first), int(first) + int(number)):
            what, data = made(case)
            sys.stderr.write(f"{name} case {case}: {what}, {len(data)} bytes\n")
            path.write_bytes(data)
            if keep:
                Path(keep[1]).write_bytes(data)
            redact_one(path, case, ended)
            if len(ended.failures) == MOST_FAILURES:
                break
    print(json.dumps(asdict(ended)))


def redact_one(path: Path, case: int, ended: Ended) -> None:
    """Redact one file; the system ends this process if that takes too long."""
    out = path.with_name(f"out{path.suffix}")
    try:
        with measured(case, ended, SECONDS):
            tk.redact(path, out, overwrite=True)
    except tk.TracekitError as e:
        ended.errors += 1
        if not str(e).startswith(f"{path}: ") or not e.hint:
            ended.failures.append(f"case {case}: an error without the file or a hint: {type(e).__name__}")
        return
    except Exception as e:  # noqa: BLE001 - its text may be private
        where = "".join(traceback.format_tb(e.__traceback__)[-4:])
        ended.failures.append(f"case {case}: {type(e).__name__}\n{where}")
        return
    ended.copies += 1
    ended.failures += [f"case {case}: {said}" for said in wrong_with(path, out)]


def wrong_with(path: Path, out: Path) -> Iterator[str]:
    """Say what is wrong with a copy: it reads otherwise than the file, or holds a secret, or something remains."""
    if readable(path) and not readable(out):
        yield "the copy cannot be read, the file can"
    before, after = all_texts(path), all_texts(out)
    found = [n for n, secret in enumerate(BY_FORM) if stands(secret, before) and stands(secret, after)]
    if found:
        yield f"secrets {found} are in the copy"
    remains = {kind: n for kind, n in tk.unredacted(out).items() if n}
    if remains:
        yield f"of the copy could be redacted: {remains}"


def all_texts(path: Path) -> bytes:
    """The texts of a file, as far as it is not too damaged to be taken apart."""
    try:
        return b"\0".join(texts(path))
    except (Damage, tk.TracekitError, sqlite3.Error):
        return b""


def stands(secret: str, data: bytes) -> bool:
    """Whether a secret stands somewhere alone."""
    return re.search(rb"(?<![\w.+%\-])" + re.escape(secret.encode()) + rb"(?![\w.\-])", data) is not None


def readable(path: Path) -> bool:
    try:
        with tk.load(path) as trace:
            return all(trace.count(name) >= 0 for name in ("kernels", "nvtx_ranges", "devices", "processes"))
    except tk.TracekitError:
        return False


if __name__ == "__main__":
    main(*sys.argv[1:])
