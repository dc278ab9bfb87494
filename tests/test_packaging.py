"""The wheel: what it contains, and that it works with nothing but its declared dependencies."""

from __future__ import annotations

import csv
import importlib.metadata
import importlib.util
import json
import re
import subprocess
import sys
import sysconfig
import tarfile
import tomllib
import venv
import zipfile
from pathlib import Path

import pytest
import tracekit as tk
from packaging.requirements import Requirement
from packaging.version import Version
from tests import install, lowest
from tracekit import schemas

ROOT = Path(__file__).parents[1]
DEV_ONLY = ("pytest", "hypothesis", "packaging", "hatchling", "zensical")


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a wheel and a source distribution built from the checkout."""
    folder = tmp_path_factory.mktemp("dist")
    command = [
        sys.executable,
        "-m",
        "build",
        "--no-isolation",
        "--wheel",
        "--sdist",
        "--outdir",
        str(folder),
        str(ROOT),
    ]
    subprocess.run(command, check=True, capture_output=True)
    return folder


@pytest.fixture(scope="module")
def wheel(built: Path) -> Path:
    (path,) = built.glob("*.whl")
    return path


@pytest.fixture(scope="module")
def python(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of an environment that holds the unpacked wheel and its declared dependencies, nothing else."""
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder, with_pip=False, symlinks=True)
    site = Path(sysconfig.get_paths("venv", {"base": str(folder), "platbase": str(folder)})["purelib"])
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)
    for name in dependencies("tracekit", required(wheel)):
        for top in tops(name):
            (site / top.name).symlink_to(top)
    return folder / "bin" / "python"


def required(wheel: Path) -> list[str]:
    """What the wheel says that it requires."""
    (metadata,) = importlib.metadata.distributions(path=[str(wheel)])
    return metadata.requires or []


def dependencies(name: str, requires: list[str]) -> set[str]:
    """Names of the distributions that a distribution needs, directly or not."""
    found: set[str] = set()
    queue = list(requires)
    while queue:
        requirement = Requirement(queue.pop())
        if requirement.name in found or (requirement.marker and not requirement.marker.evaluate({"extra": ""})):
            continue
        found.add(requirement.name)
        queue += importlib.metadata.requires(requirement.name) or []
    return found


def tops(name: str) -> set[Path]:
    """Top-level files and folders of an installed distribution."""
    distribution = importlib.metadata.distribution(name)
    parts = {f.parts[0] for f in distribution.files or [] if f.parts[0] not in ("..", "__pycache__")}
    return {Path(str(distribution.locate_file(p))) for p in parts}


@pytest.mark.slow
def test_content(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    declarations = (p.relative_to(ROOT / "schemas") for p in (ROOT / "schemas").rglob("*.*"))
    expected = {
        p.relative_to(ROOT).as_posix()
        for p in (ROOT / "tracekit").rglob("*")
        if p.suffix in (".py", ".c", ".h", ".wasm", ".sha256", ".js", ".css") or p.name == "py.typed"
    } | {f"tracekit/_schemas/{path.as_posix()}" for path in declarations if path.parts[0] != "generate"}
    expected.remove("tracekit/native/compile.py")
    own = {n for n in names if not n.startswith("tracekit-")}
    assert own == expected
    assert "tracekit/py.typed" in own
    assert "tracekit/_schemas/arrow/kernels.toml" in own
    compiled = json.loads(zipfile.ZipFile(wheel).read("tracekit/_schemas/_compiled.json"))
    assert compiled == {name: value for name, value in schemas._load_compiled_schemas().items() if name != "stamp"}
    assert any(n.endswith("licenses/LICENSE") for n in names)
    assert len(names) == len(set(names))


def test_metadata(wheel: Path) -> None:
    (distribution,) = importlib.metadata.distributions(path=[str(wheel)])
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    assert distribution.version == tk.__version__ == project["version"]
    assert [(e.name, e.value) for e in distribution.entry_points] == [("tracekit", "tracekit.__main__:main")]
    extras = project["optional-dependencies"]
    declared = {
        Requirement(r).name for r in [*project["dependencies"], *(r for extra in extras.values() for r in extra)]
    }
    assert {Requirement(r).name for r in required(wheel)} == declared
    assert set(distribution.metadata.get_all("Provides-Extra") or []) == set(extras)


def test_the_source_distribution_builds_the_same(built: Path) -> None:
    (path,) = built.glob("*.tar.gz")
    with tarfile.open(path) as archive:
        names = {n.partition("/")[2] for n in archive.getnames()}
    assert {
        "pyproject.toml",
        "README.md",
        "CHANGELOG.md",
        "LICENSE",
        "SECURITY.md",
        "schemas/arrow/kernels.toml",
    } <= names
    assert {p.relative_to(ROOT).as_posix() for p in (ROOT / "docs").rglob("*.md")} <= names
    assert not [n for n in names if n.startswith(("tests", "fixtures", "docs/images"))]


def test_the_page_of_the_package_has_no_link_that_works_only_in_the_repository(wheel: Path) -> None:
    (distribution,) = importlib.metadata.distributions(path=[str(wheel)])
    assert distribution.metadata["Description-Content-Type"] == "text/markdown"
    page = distribution.metadata["Description"]
    assert [target for target in re.findall(r"\]\(([^)]*)\)", page) if not target.startswith("https://")] == []
    readme = (ROOT / "README.md").read_text("utf-8")
    targets = re.findall(r"(?<!!)\[[^\]]+\]\(((?!https:)[^)#\s]+)", readme)
    assert targets
    assert [target for target in targets if f"(`{target}`)" not in page] == []
    assert [heading for heading in re.findall(r"^#.*$", readme, re.MULTILINE) if heading not in page] == []


def test_every_tested_python_is_a_classifier() -> None:
    classifiers = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["classifiers"]
    prefix = "Programming Language :: Python :: 3."
    assert [c.removeprefix(prefix[:-2]) for c in classifiers if c.startswith(prefix)] == list(install.VERSIONS)


@pytest.mark.thorough
def test_a_distribution_that_cannot_be_installed_is_reported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert install.main(tmp_path) == 1
    (tmp_path / "tracekit-1.0.0-py3-none-any.whl").write_bytes(b"no archive")
    monkeypatch.setattr(install, "VERSIONS", ("3.0", f"{sys.version_info.major}.{sys.version_info.minor}"))
    monkeypatch.setattr(install, "interpreter", {"3.0": None}.get)
    monkeypatch.setattr(install, "program", {}.get)
    assert install.main(tmp_path) == 0
    monkeypatch.setattr(install, "interpreter", lambda version: sys.executable if version != "3.0" else None)
    assert install.main(tmp_path) == 1
    assert "Python 3.0: not on this machine" in capsys.readouterr().out


def test_make_lowest_installs_the_lowest_declared_versions() -> None:
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["dependencies"]
    printed = subprocess.run(
        [sys.executable, "tests/lowest.py"], cwd=ROOT, text=True, capture_output=True, check=True
    ).stdout.splitlines()
    versions = {requirement.name: requirement.specifier for requirement in map(Requirement, printed)}
    assert len(versions) == len(printed)
    for requirement in map(Requirement, declared):
        (floor,) = requirement.specifier
        assert (floor.operator, str(versions[requirement.name])) == (">=", f"=={floor.version}")
    assert {"pytest", "hypothesis"} <= versions.keys()
    assert not [name for name in versions if name.startswith("polars-")]
    dry = subprocess.run(["make", "--dry-run", "lowest"], cwd=ROOT, text=True, capture_output=True, check=True).stdout
    assert "-m pytest -q" in dry
    assert "tests/test_every_format.py" in dry


def test_a_floor_must_be_one_version(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text('[project]\ndependencies = ["polars>=1,<2"]', "utf-8")
    monkeypatch.setattr(lowest, "ROOT", tmp_path)
    with pytest.raises(ValueError, match="'polars>=1,<2' is not declared as name>=version"):
        lowest.floors()


def test_what_ci_installs_is_declared() -> None:
    pinned = dict(p.split("==") for p in (ROOT / "constraints.txt").read_text("utf-8").splitlines() if "==" in p)
    for name, floor in lowest.floors().items():
        assert Version(pinned[name]) >= Version(floor), name


def test_the_versions_of_the_page_are_those_declared() -> None:
    table = (ROOT / "docs" / "dependencies.md").read_text("utf-8").partition("| package |")[2].partition("\n\n")[0]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()[2:]]
    pinned = dict(p.split("==") for p in (ROOT / "constraints.txt").read_text("utf-8").splitlines() if "==" in p)
    assert {row[0]: row[1] for row in rows} == lowest.floors()
    assert {row[0]: row[-1] for row in rows} == {name: pinned[name] for name in lowest.floors()}


@pytest.mark.many(1)
@pytest.mark.parametrize("arguments", [["--help"], ["formats"], ["schema"], ["schema", "kernels"]])
def test_what_reads_no_file_imports_no_pandas(arguments: list[str]) -> None:
    assert importlib.util.find_spec("pandas") is not None
    code = (
        "import sys, tracekit.cli\nsys.argv = ['tracekit', *sys.argv[1:]]\n"
        "try: tracekit.cli.main()\nexcept SystemExit: pass\nassert 'pandas' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code, *arguments], cwd=ROOT, capture_output=True, check=True)


def test_nothing_is_converted_to_pandas() -> None:
    sources = (ROOT / "tracekit").rglob("*.py")
    assert [p.name for p in sources if ".to_pandas" in p.read_text("utf-8")] == []


def run(python: Path, *args: str | Path, cwd: Path) -> str:
    command = [python, "-I", *map(str, args)]
    done = subprocess.run(command, cwd=cwd, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
    assert done.returncode == 0, done.stdout
    return done.stdout


def test_no_development_dependency_is_there(python: Path, tmp_path: Path) -> None:
    code = f"import importlib.util as u; print([n for n in {DEV_ONLY} if u.find_spec(n)])"
    assert run(python, "-c", code, cwd=tmp_path) == "[]\n"


def test_help(python: Path, tmp_path: Path) -> None:
    assert "Commands:" in run(python, "-m", "tracekit", "--help", cwd=tmp_path)


@pytest.mark.thorough
def test_every_module_can_be_imported(python: Path, tmp_path: Path) -> None:
    code = (
        "import importlib, pkgutil, tracekit\n"
        "for m in pkgutil.walk_packages(tracekit.__path__, 'tracekit.'):\n"
        "    m.name.endswith('__main__') or m.name.startswith('tracekit.view.') or importlib.import_module(m.name)\n"
        "print(tracekit.__file__)"
    )
    assert run(python, "-c", code, cwd=tmp_path).startswith(str(python.parents[1]))


def test_the_viewer_says_what_to_install(python: Path, tmp_path: Path) -> None:
    command = [python, "-I", "-m", "tracekit", "view", ROOT / "fixtures" / "train_amp.sqlite"]
    done = subprocess.run(command, cwd=tmp_path, text=True, capture_output=True, check=False)
    assert done.returncode == 1
    assert "the viewer needs packages that are not installed: flask, " in done.stderr
    assert "pip install 'tracekit[view]'" in done.stderr


COMMANDS = """
import json, sys
from click.testing import CliRunner
from tracekit.cli import cli
runs = [CliRunner().invoke(cli, arguments, catch_exceptions=False) for arguments in json.loads(sys.argv[1])]
print(json.dumps([[run.exit_code, run.output] for run in runs]))
"""


@pytest.mark.slow
def test_every_verb_works(python: Path, tmp_path: Path) -> None:
    train = str(ROOT / "fixtures" / "train_amp.sqlite")
    printed = (ROOT / "fixtures" / "stats" / "train_amp_cuda_gpu_kern_sum.csv").read_text("utf-8")
    expected = {
        ("info", train, "--json"): '"kernels": 334',
        ("stats", train, "-r", "cuda_gpu_kern_sum", "--format", "csv"): printed,
        ("correlate", train, "-o", "k.parquet"): "334 kernels",
        **{("convert", train, f"out-{f}", "--to", f): "wrote" for f in ("chrome-trace", "csv", "parquet", "arrow")},
        ("rows", "out-parquet", "kernels"): "kernel_id",
        ("schema",): "kernels",
        ("formats",): "chrome-trace",
        ("tables", train): "kernels",
    }
    ended = json.loads(run(python, "-c", COMMANDS, json.dumps(list(expected)), cwd=tmp_path))
    for (arguments, text), (status, output) in zip(expected.items(), ended, strict=True):
        assert status == 0, (arguments, output)
        assert text in output, arguments


def test_the_tables_of_the_installation_are_those_of_the_project() -> None:
    """``docs/list_wheels.py`` and ``docs/measure_install.py`` write them."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    parts = {"": project["dependencies"], **project["optional-dependencies"]}
    declared = {(part, Requirement(text).name) for part, texts in parts.items() for text in texts}
    with (ROOT / "docs" / "wheels.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert {(row["part"], row["package"]) for row in rows if row["declared"] == "True"} == declared
    assert len({(row["part"], row["package"]) for row in rows}) == len(rows)
    assert {version for row in rows for version in row["Linux x86-64"].split()} == {*install.VERSIONS, "-"}
    with (ROOT / "docs" / "install_sizes.csv").open(encoding="utf-8") as file:
        sizes = {row["part"]: row for row in csv.DictReader(file)}
    assert sizes.keys() == parts.keys()
    assert max(sizes.values(), key=lambda row: float(row["installed_mb"])) is sizes[""]
    assert all(int(row["packages"]) and float(row["download_mb"]) > 0 for row in sizes.values())
