"""The rank of each capture of a set: what is recorded, what the name states, and what is given."""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest
import tracekit as tk
from tests.builders.nsys_sqlite import edited
from tests.builders.ranks import kernel, mpi_rank, nccl_init, write_capture
from tracekit.errors import TracekitError, TracekitWarning
from tracekit.sets.member import RankEvidence, RecordedMetadata, _read_ranks_from_environment
from tracekit.sets.ranks import assign_ranks, find_distinguishing_numbers, parse_ranks_in_file_name


@pytest.mark.parametrize(
    ("name", "ranks"),
    [
        ("rank0.nsys-rep", {0}),
        ("mpi_rank1.sqlite", {1}),
        ("mpirank12.sqlite", {12}),
        ("train_rank-3.nsys-rep", {3}),
        ("run_r12.nsys-rep", {12}),
        ("r4.nsys-rep", {4}),
        ("RANK7.json.gz", {7}),
        ("rank0_of_rank1.nsys-rep", {0, 1}),
        ("local_rank3.nsys-rep", set()),
        ("report3.nsys-rep", set()),
        ("h200_run12.nsys-rep", set()),
        ("for4.nsys-rep", set()),
        ("rank2b.nsys-rep", set()),
        ("frank2.nsys-rep", set()),
    ],
)
def test_ranks_in_names(name: str, ranks: set[int]) -> None:
    assert parse_ranks_in_file_name(name) == ranks


@pytest.mark.parametrize(
    ("names", "numbers"),
    [
        (["a.0.nsys-rep", "a.1.nsys-rep"], [0, 1]),
        (["node1_9.nsys-rep", "node1_10.nsys-rep"], [9, 10]),
        (["trace.3.nsys-rep"], [3]),
        (["trace.3.4.nsys-rep"], []),
        (["trace3.nsys-rep"], []),
        (["n0_g0.nsys-rep", "n1_g1.nsys-rep"], []),
        (["a1.nsys-rep", "b2.nsys-rep"], []),
        (["t20261122.nsys-rep", "t20261123.nsys-rep"], []),
    ],
)
def test_numbers_in_which_names_differ(names: list[str], numbers: list[int]) -> None:
    assert list(find_distinguishing_numbers(names).values()) == numbers


def recorded(name: str, *evidence: RankEvidence) -> RecordedMetadata:
    return RecordedMetadata(Path("/captures") / name, "nsys-rep", evidence)


def ranks_of(*captures: RecordedMetadata, **given: int) -> dict[str, tuple[int, str]]:
    return {m.path.stem: (m.rank, m.source) for m in assign_ranks(captures, given)}


def mpi(rank: int, size: int | None = 2) -> RankEvidence:
    return RankEvidence("MPI", (rank,), size)


def nccl(rank: int, size: int) -> RankEvidence:
    return RankEvidence("NCCL", (rank,), size)


def test_recorded_ranks_sort_the_set() -> None:
    assert ranks_of(recorded("a", mpi(1)), recorded("b", mpi(0))) == {"b": (0, "MPI"), "a": (1, "MPI")}


def test_sources_must_agree() -> None:
    both = recorded("rank1", mpi(1), nccl(1, 2)), recorded("rank0", mpi(0))
    assert ranks_of(*both) == {"rank0": (0, "MPI"), "rank1": (1, "MPI")}
    with pytest.raises(TracekitError) as error:
        ranks_of(recorded("rank0.nsys-rep", mpi(1)), recorded("rank1.nsys-rep", mpi(0)))
    assert str(error.value) == (
        "/captures/rank0.nsys-rep: the rank of this capture is contradictory: 1 according to MPI, "
        "0 according to the file name\n"
        "Hint: specify the rank with ranks={'rank0.nsys-rep': N} or --rank rank0.nsys-rep=N"
    )


def test_given_ranks_override_all_other_sources() -> None:
    captures = recorded("rank0.nsys-rep", mpi(1)), recorded("x/rank1.nsys-rep", mpi(0))
    given = {"rank0.nsys-rep": 1, "x/rank1.nsys-rep": 0}
    assert [(m.rank, m.source) for m in assign_ranks(captures, given)] == [(0, "given"), (1, "given")]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"c": 0}, "rank 0 was specified for 'c', which matches no capture\nHint: choose one of the captures a, b"),
        ({"a": -1}, "-1 is not a valid rank"),
    ],
)
def test_given_ranks_are_checked(given: dict[str, int], message: str) -> None:
    with pytest.raises(TracekitError, match=message):
        assign_ranks([recorded("a"), recorded("b")], given)


def test_a_communicator_of_some_ranks_says_nothing() -> None:
    captures = [recorded(f"rank{r}", nccl(r % 2, 2)) for r in range(4)]
    assert ranks_of(*captures) == {f"rank{r}": (r, "the file name") for r in range(4)}
    alone = [recorded("a", nccl(1, 2)), recorded("b", nccl(0, 2))]
    assert ranks_of(*alone) == {"b": (0, "NCCL"), "a": (1, "NCCL")}


def test_a_rank_beyond_the_size_of_the_job_is_an_error() -> None:
    with pytest.raises(
        TracekitError,
        match="the rank of this capture is 5 according to MPI, but the number of ranks is 2",
    ):
        ranks_of(recorded("a", mpi(5)))


def test_two_captures_of_one_rank_are_an_error() -> None:
    with pytest.raises(TracekitError, match=r"2 captures have rank 1: a \(by MPI\), rank1 \(by the file name\)\nHint"):
        ranks_of(recorded("a", mpi(1)), recorded("rank1"))


def test_missing_ranks_are_a_warning() -> None:
    with pytest.warns(TracekitWarning, match="2 of 4 ranks are missing: 0, 2"):
        ranks_of(recorded("a", mpi(3, 4)), recorded("b", mpi(1, 4)))
    with pytest.warns(TracekitWarning, match="9 of 10 ranks are missing: 0, 1, 2, 3, 4, 5, 6, 7, …"):
        ranks_of(recorded("rank9"))


def test_jobs_of_different_sizes_are_a_warning() -> None:
    with pytest.warns(TracekitWarning) as warned:
        ranks_of(recorded("a", mpi(0, 2)), recorded("b", mpi(1, 3)))
    assert [str(w.message) for w in warned] == [
        "the captures state different numbers of ranks: 2, 3",
        "1 of 3 ranks are missing: 2",
    ]


def test_captures_without_ranks_are_numbered_in_order() -> None:
    assert ranks_of(recorded("only")) == {"only": (0, "the order of the names")}
    with pytest.warns(TracekitWarning, match="no capture records its rank: 2 captures are numbered from 0"):
        assert ranks_of(recorded("b"), recorded("a")) == {
            "b": (0, "the order of the names"),
            "a": (1, "the order of the names"),
        }


def test_some_captures_without_a_rank_are_an_error() -> None:
    with pytest.raises(TracekitError, match="the rank of b is unknown, although the ranks of other captures are known"):
        ranks_of(recorded("a", mpi(0, None)), recorded("b"))
    assert ranks_of(recorded("a1", mpi(1)), recorded("a0")) == {"a0": (0, "the file name"), "a1": (1, "MPI")}


def test_a_capture_of_several_ranks_has_the_rank_of_its_name() -> None:
    several = RankEvidence("MPI", (2, 3), 4)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        members = assign_ranks([recorded("rank0", RankEvidence("MPI", (0, 1), 4)), recorded("rank3", several)])
    assert [(m.rank, m.recorded_ranks) for m in members] == [(0, (0, 1)), (3, (2, 3))]
    with pytest.raises(TracekitError, match="2 and 3 according to MPI, 0 according to the file name"):
        ranks_of(recorded("rank0", several))


def test_ranks_are_read_from_captures(tmp_path: Path) -> None:
    for rank in (0, 1):
        write_capture(
            tmp_path / f"n{1 - rank}x",
            nvtx_ranges=[nccl_init(rank, 2), {**nccl_init(0, 1), "range_id": 5}],
            kernels=[kernel(5, 9, device=rank + 2)],
        )
    with tk.load_many([tmp_path / "n0x", tmp_path / "n1x"]) as ranks:
        assert [(m.name, m.rank, m.source, m.world_size, m.devices) for m in ranks.members] == [
            ("n1x", 0, "NCCL", 2, (2,)),
            ("n0x", 1, "NCCL", 2, (3,)),
        ]


@pytest.mark.parametrize(
    "payload", ["{", "[1]", '{"Rank": 2, "No. of ranks": 2}', '{"Rank": true, "No. of ranks": 2}', '{"Rank": 1}']
)
def test_payloads_that_state_no_rank_are_ignored(payload: str, tmp_path: Path) -> None:
    path = write_capture(tmp_path / "a", nvtx_ranges=[{**nccl_init(1, 2), "payload_text": payload}])
    assert tk.load_many(path).members[0].source == "the order of the names"


def test_ranks_of_the_profiler_and_of_mpi(tmp_path: Path) -> None:
    facts = [{"name": "distributed_rank", "value": "1"}, {"name": "distributed_world_size", "value": "2"}]
    one = write_capture(tmp_path / "one", capture_info=facts)
    zero = write_capture(
        tmp_path / "zero",
        mpi_ranks=[mpi_rank(0)],
        mpi_communicators=[{"mpi_communicator_id": 1, "rank": 0, "size": 2, "parent_communicator": 0}],
    )
    assert [(m.rank, m.source, m.world_size) for m in tk.load_many([one, zero]).members] == [
        (0, "MPI", 2),
        (1, "the profiler", 2),
    ]


@pytest.mark.parametrize(
    ("variables", "ranks", "size"),
    [
        ({"RANK": 1, "WORLD_SIZE": 2, "SLURM_PROCID": 0}, {"RANK": 1}, 2),
        ({"OMPI_COMM_WORLD_RANK": 1, "PMI_RANK": 0}, {"OMPI_COMM_WORLD_RANK": 1, "PMI_RANK": 0}, None),
        ({"SLURM_PROCID": 3}, {"SLURM_PROCID": 3}, None),
        ({"LOCAL_RANK": 1, "WORLD_SIZE": 4}, {}, None),
    ],
)
def test_variables_of_launchers(variables: dict[str, int], ranks: dict[str, int], size: int | None) -> None:
    evidence = list(_read_ranks_from_environment(variables))
    assert evidence == [RankEvidence(f"the variable {name}", (rank,), size) for name, rank in ranks.items()]


def test_the_environment_of_a_capture_states_its_rank(tmp_path: Path) -> None:
    def ranked(rank: int, name: str, *more: str) -> Path:
        text = f"RANK={rank};LOCAL_RANK=0;WORLD_SIZE=2;SLURM_PROCID=0"
        return edited(tmp_path, f"UPDATE TARGET_INFO_SYSTEM_ENV SET value = '{text}' WHERE nameEnum = 610", name=name)

    one, zero = ranked(1, "a.sqlite"), ranked(0, "b.sqlite")
    members = tk.load_many([one, zero]).members
    assert [(m.name, m.source, m.world_size, m.local_rank) for m in members] == [
        ("b.sqlite", "the variable RANK", 2, 0),
        ("a.sqlite", "the variable RANK", 2, 0),
    ]
    assert all(m.host and m.host not in repr(m) for m in members)
    with pytest.raises(
        TracekitError,
        match=r"rank0.sqlite: .*contradict.*1 according to the variable RANK, 0 according to the file name",
    ):
        tk.load_many(ranked(1, "rank0.sqlite"))
