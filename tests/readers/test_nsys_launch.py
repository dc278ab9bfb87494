"""How a program was launched: of its environment, only the variables with which launchers number processes are read."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import tracekit as tk
from tests.builders.nsys_rep import SHARED, Parts, message
from tests.builders.nsys_sqlite import edited
from tests.conftest import FIXTURES
from tracekit.readers.nsys.machine import parse_rank_variables
from tracekit.readers.nsys_rep.container import OPTIONS
from tracekit.registry.interface import LaunchMetadata
from tracekit.trace import read_launch_metadata

MORE = SHARED / "captures" / "h200_more"


def launch(path: Path) -> LaunchMetadata:
    with tk.load(path) as trace:
        return read_launch_metadata(trace)


@pytest.mark.parametrize(
    ("environment", "variables"),
    [
        ("RANK=3;WORLD_SIZE=8;LOCAL_RANK=1", {"RANK": 3, "WORLD_SIZE": 8, "LOCAL_RANK": 1}),
        ("A=b\0PMI_RANK=2\0", {"PMI_RANK": 2}),
        ('SLURM_PROCID="5"\nX=1', {"SLURM_PROCID": 5}),
        ("MY_RANK=3;RANKS=4;RANK2=1;XRANK=5", {}),
        ("RANK=one;LOCAL_RANK=;WORLD_SIZE=1234567890;PMI_RANK=-1", {}),
        ("RANK=1;A=b;RANK=2;WORLD_SIZE=2", {"WORLD_SIZE": 2}),
        ("RANK=1;RANK=1", {"RANK": 1}),
        ("TOKEN=x RANK=1", {}),
        ("LIST=a;RANK=1;b\0WORLD_SIZE=2\0", {"WORLD_SIZE": 2}),
        ("", {}),
    ],
)
def test_variables_of_launchers(environment: str, variables: dict[str, int]) -> None:
    assert parse_rank_variables(environment) == variables


@pytest.mark.parametrize("rank", [0, 1])
def test_reports_record_the_variables(rank: int) -> None:
    assert launch(FIXTURES / "ranks" / f"mpi_rank{rank}.nsys-rep").variables == {"OMPI_COMM_WORLD_RANK": rank}


@pytest.mark.skipif(not MORE.is_dir(), reason="no captures beside the checkout")
@pytest.mark.parametrize("name", ["mpi_rank0", "mpi_rank1", "um", "memory"])
def test_a_report_records_what_its_export_records(name: str) -> None:
    mine = launch(MORE / f"{name}.nsys-rep")
    assert mine == launch(MORE / f"{name}.sqlite")
    assert mine.host


def variable(name: str, value: str) -> str:
    return f"INSERT INTO META_DATA_CAPTURE VALUES ('PROCESS_0:ENVIRONMENT_VARIABLE', '{name}=\"{value}\"')"


def properties(environment: str, host: str = "node7") -> tuple[str, str]:
    return (
        f"UPDATE TARGET_INFO_SYSTEM_ENV SET value = '{environment}' WHERE nameEnum = 610",
        f"UPDATE TARGET_INFO_SYSTEM_ENV SET value = '{host}' WHERE nameEnum = 619",
    )


def test_the_environment_of_the_program_precedes_that_of_the_profiler(tmp_path: Path) -> None:
    path = edited(
        tmp_path,
        *properties("RANK=7;SLURM_PROCID=4;SECRET=x"),
        variable("RANK", "3"),
        variable("HOME", "4"),
        "INSERT INTO META_DATA_CAPTURE VALUES ('PROCESS_0:ARGUMENT_0', 'PMI_RANK=\"1\"')",
    )
    found = launch(path)
    assert found == LaunchMetadata({"RANK": 3, "SLURM_PROCID": 4}, "node7")
    assert "node7" not in repr(found)


def test_processes_with_different_variables_state_nothing(tmp_path: Path) -> None:
    path = edited(tmp_path, variable("RANK", "0"), variable("RANK", "1"), variable("WORLD_SIZE", "2"))
    assert launch(path).variables == {"WORLD_SIZE": 2}


def test_an_export_without_these_tables_states_nothing(tmp_path: Path) -> None:
    path = edited(tmp_path, "DROP TABLE META_DATA_CAPTURE", "DROP TABLE TARGET_INFO_SYSTEM_ENV")
    assert launch(path) == LaunchMetadata()


def report(tmp_path: Path, *variables: tuple[str, str], environment: str = "", host: str = "") -> Path:
    described = [(1, message((1, 610), (2, environment))), (1, message((1, 619), (2, host)))]
    header = message((1, message((2, message(*described)))))
    listed = [(30, message((1, name), (2, value))) for name, value in variables]
    parts = Parts(header=header)
    parts.sections[OPTIONS] = message((26, message((10, "python"), *listed)))
    path = tmp_path / "made.nsys-rep"
    path.write_bytes(parts.pack())
    return path


def test_reports_made_of_parts(tmp_path: Path) -> None:
    path = report(tmp_path, ("RANK", "5"), ("TOKEN", "1"), ("LOCAL_RANK", "x"), environment="RANK=1\0PMI_RANK=2\0A=b")
    assert launch(path) == LaunchMetadata({"RANK": 5, "PMI_RANK": 2}, None)
    assert launch(report(tmp_path, host="node7")) == LaunchMetadata({}, "node7")


def test_the_environment_stays_in_the_reader(tmp_path: Path) -> None:
    path = report(tmp_path, ("TOKEN", "s3cret"), environment="KEY=s3cret\0RANK=1", host="node7")
    with tk.load(path) as trace:
        capture = trace._plan.source.capture
        texts = [str(capture.fetch(t, ["value"])) for t in ("TARGET_INFO_SYSTEM_ENV", "META_DATA_CAPTURE")]
        assert "s3cret" not in "".join(texts)
        assert "node7" not in str(trace["capture_info"].to_pylist())


def test_other_formats_record_nothing(tmp_path: Path) -> None:
    assert launch(FIXTURES / "kineto" / "train.pt.trace.json.gz") == LaunchMetadata()


def test_redacted_captures_state_nothing(tmp_path: Path) -> None:
    source = report(tmp_path, ("RANK", "5"), environment="PMI_RANK=2", host="node7")
    shutil.copy(source, tmp_path / "copy.nsys-rep")
    tk.redact(source, tmp_path / "shared.nsys-rep")
    assert launch(tmp_path / "shared.nsys-rep").variables == {}
