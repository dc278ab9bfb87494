"""Which op delimits steps, and which does not."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl
import pytest
import tracekit as tk
from tests.builders.frames import declared, nvtx
from tests.conftest import FIXTURES
from tracekit.core.rollup import Rollup
from tracekit.errors import TracekitError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tracekit.core.iterations import Iterations

Scene = list[tuple[str, int, int]]
STEP = 1000


def kernels(*starts: int, names: Sequence[str] = ("k",)) -> dict[str, pl.DataFrame]:
    """Launches at these times, each with a kernel of 10 ns. The names are repeated."""
    thread, process, delay = 1, 1, 5
    times = ["start_ns", "end_ns", "process_id"]
    api = [(i, s, s + 2, process, thread, i + 1, "cudaLaunchKernel") for i, s in enumerate(starts)]
    ran = [(s + delay, s + delay + 10, process, 0, i + 1, *[names[i % len(names)]] * 2) for i, s in enumerate(starts)]
    return {
        "api_calls": pl.DataFrame(api, ["api_call_id", *times, "thread_id", "correlation_id", "name"], orient="row"),
        "kernels": pl.DataFrame(ran, [*times, "device_id", "correlation_id", "short_name", "name"], orient="row"),
    }


def find(
    ranges: Scene, starts: Sequence[int], domain: Sequence[str] = (), names: Sequence[str] = ("k",), **chosen: object
) -> Iterations:
    rows = nvtx(*[(text, 1, start, end) for text, start, end in ranges])
    if domain:
        rows = rows.with_columns(domain=pl.Series(domain))
    return Rollup.from_frames(declared(nvtx_ranges=rows, **kernels(*starts, names=names)), **chosen).iterations  # type: ignore[arg-type]


def loop(name: str, count: int, start: int = 0, length: int = STEP - 50) -> Scene:
    """Ranges of a loop, whose names are formatted with their numbers."""
    return [(name.format(n), start + n * STEP, start + n * STEP + length) for n in range(count)]


def launches(count: int, per_step: int = 5, start: int = 0) -> list[int]:
    return [start + n * STEP + 100 + 20 * k for n in range(count) for k in range(per_step)]


def inner(name: str, count: int, start: int = 100, length: int = 100) -> Scene:
    return [(name, n * STEP + start, n * STEP + start + length) for n in range(count)]


def test_steps_inside_of_an_epoch() -> None:
    its = find([("epoch", 0, 8 * STEP), *loop("step {}", 8)], launches(8))
    assert (its.label, its.key, its.frame.height) == ("step *", "epoch/step *", 8)
    assert its.frame["name"].to_list() == [f"step {n}" for n in range(8)]


def test_steps_of_two_epochs_are_preferred_to_the_epochs() -> None:
    epochs = [("epoch 0", 0, 4 * STEP - 10), ("epoch 1", 4 * STEP - 5, 8 * STEP)]
    its = find([*epochs, *loop("step {}", 4), *loop("step {}", 4, start=4 * STEP)], launches(8))
    assert (its.key, its.frame.height) == ("epoch */step *", 8)
    assert its.frame["name"].to_list()[3:5] == ["step 3 [3]", "step 0 [4]"]


def test_epochs_without_steps() -> None:
    its = find(loop("epoch {}", 3), launches(3))
    assert (its.key, its.frame.height) == ("epoch *", 3)


@pytest.mark.parametrize("name", ["ProfilerStep#{}", "## step {} ##", "iter_{}", "decode {}", "frame_{}", "步骤{}"])
def test_numbered_ranges_that_contain_the_launches(name: str) -> None:
    its = find([*loop(name, 4), *inner("layer", 4)], launches(4))
    assert its.frame["name"].to_list() == [name.format(n) for n in range(4)]


def test_a_range_that_launches_nothing_is_no_step() -> None:
    """As in two public reports: three ranges of the compiler, and kernels elsewhere."""
    its = find(inner("lower", 3, start=0, length=40), [5 * STEP + n for n in range(0, 190, 10)])
    assert (its.has_key_op, its.frame.height) == (False, 1)


def test_most_launches_have_to_be_inside() -> None:
    few = find(loop("step {}", 4), [*launches(4, per_step=1), *launches(1, per_step=20, start=9 * STEP)])
    assert few.is_whole_capture
    most = find(loop("step {}", 4), [*launches(4, per_step=6), *launches(1, per_step=20, start=9 * STEP)])
    assert most.frame.height == 4


def test_the_outermost_range_that_qualifies() -> None:
    its = find([*loop("train_step", 4), *inner("micro_batch", 4, length=700)], launches(4))
    assert its.key == "train_step"
    assert its.frame["name"].to_list() == [f"train_step [{n}]" for n in range(4)]


def cycles(outer: str, name: str, count: int = 4, parts: int = 4) -> Scene:
    """Ranges that repeat, each of which contains ranges that are numbered from 0."""
    ranges = [(outer.format(n), n * STEP, n * STEP + 950) for n in range(count)] if outer else []
    inside = [(n * STEP + 10 + 200 * k, k) for n in range(count) for k in range(parts)]
    return [*ranges, *[(name.format(k), start, start + 180) for start, k in inside]]


CYCLE = [n * STEP + 20 + 200 * k + j for n in range(4) for k in range(4) for j in range(3)]


@pytest.mark.parametrize(
    ("outer", "name", "key", "steps"),
    [
        ("train_step", "micro_batch {}", "train_step", 4),
        ("iteration", "batch {}", "iteration", 4),
        ("request", "decode {}", "request", 4),
        ("request", "step {}", "request", 4),
        ("generate", "token {}", "generate", 4),
        ("request {}", "step {}", "request *", 4),
        ("body", "micro_batch {}", "body", 4),
        ("train", "batch {}", "train/batch *", 16),
        ("epoch", "step {}", "epoch/step *", 16),
        ("epoch {}", "step {}", "epoch */step *", 16),
        ("layer", "micro_batch {}", "layer/micro_batch *", 16),
        ("", "micro_batch {}", "micro_batch *", 16),
        ("", "step {}", "step *", 16),
        ("train", "PjitFunction(train_step)", "train/PjitFunction(train_step)", 16),
    ],
)
@pytest.mark.parametrize("around", [False, True])
def test_numbers_that_begin_again(outer: str, name: str, key: str, steps: int, around: bool) -> None:
    """Numbers that begin again in each pass are those of its parts, but batches of an epoch are steps."""
    its = find([*([("main", 0, 4 * STEP)] if around else []), *cycles(outer, name)], CYCLE)
    assert (its.key.removeprefix("main/"), its.frame.height) == (key, steps)


def test_the_outermost_range_in_which_numbers_begin_again() -> None:
    outer = [(name, n * STEP - 5 + d, n * STEP + 960 - d) for n in range(4) for d, name in enumerate(["serve", "call"])]
    its = find([*outer, *cycles("request", "decode {}")], [t + 1 for t in CYCLE])
    assert (its.key, its.frame.height) == ("serve", 4)
    its = find([*outer, *cycles("request", "step {}")], [t + 1 for t in CYCLE])
    assert (its.key, its.frame.height) == ("serve/call/request", 4)


def test_numbers_that_go_on_in_the_next_range_are_those_of_steps() -> None:
    numbered = [(f"step {n}", start, end) for n, (_, start, end) in enumerate(cycles("", "{}"))]
    its = find([*cycles("request", "{}", parts=0), *numbered], CYCLE)
    assert (its.key, its.frame.height) == ("request/step *", 16)


def test_numbers_that_occur_twice_in_the_enclosing_range() -> None:
    outer = [("request", n * 2 * STEP - 5, n * 2 * STEP + 1990) for n in range(2)]
    its = find([*outer, *cycles("", "step {}")], [t + 1 for t in CYCLE])
    assert (its.key, its.frame.height) == ("request/step *", 16)


@pytest.mark.parametrize(("length", "key"), [(950, "request/step *"), (170, "request")])
def test_one_numbered_range_in_each_enclosing_range(length: int, key: str) -> None:
    """The enclosing range is the step if it contains more launches. Of five launches, the short ranges contain four."""
    outer = [("request", n * STEP, n * STEP + 990) for n in range(4)]
    its = find([*outer, *loop("step {}", 4, start=5, length=length - 15)], launches(4))
    assert (its.key, its.frame.height) == (key, 4)


def test_one_enclosing_range_in_each_process() -> None:
    """Two ranks run the same steps, whose numbers begin again only because the processes differ."""
    ranges = [("request", 1, 0, 4 * STEP), *[(name, 1, start, end) for name, start, end in loop("step {}", 4, start=5)]]
    rows = pl.concat([nvtx(*ranges, process=process) for process in (1, 2)])
    tables = {"nvtx_ranges": rows.with_columns(range_id=pl.int_range(pl.len())), **kernels(*launches(4))}
    its = Rollup.from_frames(declared(**tables)).iterations
    assert (its.key, its.frame.height) == ("request/step *", 4)


def test_steps_below_many_levels() -> None:
    chain = [(f"level_{d}x", d, 90_000 - d) for d in range(70)]
    its = find([*chain, *cycles("request", "step {}")], [t + 100 for t in CYCLE], key_op=None)
    assert its.label == "request"


def test_a_word_for_a_pass_inside_a_range_that_covers_more() -> None:
    """As in JAX: the annotation of a step contains the call of the compiled function, and copies."""
    outer = [("train", n * STEP, n * STEP + 900) for n in range(4)]
    its = find([*outer, *inner("PjitFunction(train_step)", 4, length=200)], launches(4, per_step=20))
    assert (its.key, its.frame.height) == ("train", 4)
    rows = [("layer", start, end) for _, start, end in outer]
    its = find([*rows, *inner("PjitFunction(train_step)", 4, length=250)], launches(4, per_step=20))
    assert its.label == "PjitFunction(train_step)"


@pytest.mark.parametrize(
    ("train", "evaluate", "key"),
    [
        ("train_step", "eval_step", "train_step"),
        ("train step {}", "eval step {}", "train step *"),
        ("step {}", "validation {}", "step *"),
        ("train", "validate", "train"),
        ("iteration", "EvalStep", "iteration"),
        ("batch {}", "test", "batch *"),
        ("prepare", "eval", "eval"),
    ],
)
def test_an_evaluation_that_launches_more(train: str, evaluate: str, key: str) -> None:
    """The steps of the training delimit, although the evaluation contains two thirds of the launches."""
    ranges = [*loop(train, 4), *[(evaluate.format(n), (4 + n) * STEP, (4 + n) * STEP + 900) for n in range(8)]]
    its = find(ranges, launches(12))
    assert (its.key, its.frame.height) == (key, 8 if key == evaluate else 4)


def test_an_evaluation_with_nearly_all_launches() -> None:
    ranges = [
        *loop("warm_up step {}", 2),
        *[(f"eval step {n}", (2 + n) * STEP, (2 + n) * STEP + 900) for n in range(48)],
    ]
    assert find(ranges, launches(50)).key == "eval step *"


def test_steps_of_training_and_evaluation_in_ranges_of_different_names() -> None:
    ranges = [("train", 0, 4 * STEP - 20), *loop("batch {}", 4, start=2), ("val", 4 * STEP - 10, 12 * STEP)]
    its = find([*ranges, *loop("batch {}", 8, start=4 * STEP + 2)], launches(12))
    assert (its.key, its.frame.height) == ("train/batch *", 4)


@pytest.mark.parametrize("outer", ["", "forward", "SqueezeNet"])
@pytest.mark.parametrize("name", ["fire {}", "{}", "[part {}]"])
def test_numbered_parts_of_a_single_pass_are_no_steps(outer: str, name: str) -> None:
    """Parts of a model launch different kernels. The passes of a loop launch the same ones."""
    ranges = [*([(outer, 0, 8 * STEP)] if outer else []), *loop(name, 8, start=5)]
    different = [f"conv_{n // 5}" for n in range(40)]
    assert find(ranges, launches(8), names=different).is_whole_capture
    same = find(ranges, launches(8), names=["gemm", "softmax", "add", "mul", "copy"])
    assert same.frame.height == (1 if outer == "forward" else 8)


def test_passes_with_a_word_may_launch_different_kernels() -> None:
    different = [f"conv_{n // 5}" for n in range(40)]
    for name in ("decode {}", "step {}", "第{}步", "ステップ {}"):
        assert find(loop(name, 8), launches(8), names=different).frame.height == 8
    assert find(loop("pass {}", 3), [], names=different).frame.height == 3


@pytest.mark.parametrize("name", ["{}", "第{}步", "[step {}]", "execute_context_{}(7)_generation_{}(3)", "#{}"])
def test_names_with_numbers_in_other_places(name: str) -> None:
    ranges = [(name.format(n, n), start, end) for n, (_, start, end) in enumerate(loop("{}", 4))]
    its = find([("main", 0, 4 * STEP), *[(text, start + 1, end) for text, start, end in ranges]], launches(4))
    assert its.frame["name"].to_list() == [text for text, _, _ in ranges]


def test_a_word_for_a_pass_that_only_ends_one() -> None:
    """DeepSpeed calls an update of the parameters a step. The iterations from one update to the next lack the first."""
    names = ["DeepSpeedEngine.forward", "DeepSpeedEngine.backward", "DeepSpeedEngine.step"]
    ranges = [r for n, name in enumerate(names) for r in inner(name, 4, start=100 + 300 * n, length=250)]
    its = find(ranges, launches(4, per_step=40))
    assert (its.label, its.frame.height) == ("DeepSpeedEngine.forward", 4)


def test_steps_in_ranges_with_different_names() -> None:
    outer = [(name, STEP * 2 * n, STEP * 2 * (n + 1) - 10) for n, name in enumerate(["cat", "dog", "fox"])]
    steps = [r for n in range(3) for r in loop("step {}", 2, start=2 * n * STEP + 5)]
    its = find([*outer, *steps], launches(6))
    assert (its.label, its.frame.height, len(its.key_ops)) == ("step *", 6, 3)
    assert its.frame["name"].to_list()[:2] == ["step 0 [0]", "step 1 [1]"]
    parts = [(name.replace("step", "attend"), start, end) for name, start, end in steps]
    assert find([*outer, *parts], launches(6)).is_whole_capture


@pytest.mark.parametrize(("name", "steps"), [("request", 4), ("generate", 4), ("work", 1)])
def test_requests_in_ranges_with_different_names(name: str, steps: int) -> None:
    workers = [("first", 0, 2 * STEP - 10), ("second", 2 * STEP, 4 * STEP)]
    requests = [(text, start + 5, end) for text, start, end in cycles(name, "decode {}")]
    its = find([*workers, *requests], [t + 5 for t in CYCLE])
    assert (its.label, its.frame.height) == (name if steps > 1 else "", steps)


def test_launches_in_nested_steps_count_once() -> None:
    """Each of 4 launches lies in two ranges. The other 6 launches lie in none."""
    outer = [("cat", 0, 2 * STEP - 10), ("dog", 2 * STEP, 4 * STEP)]
    steps = loop("step {}", 4, start=5, length=400)
    nested = [(name, start + 1, end - 1) for name, start, end in steps]
    starts = launches(4, per_step=1)
    assert find([*outer, *steps, *nested], starts).frame.height == 4
    assert find([*outer, *steps, *nested], [*starts, *launches(1, per_step=6, start=9 * STEP)]).is_whole_capture


def test_many_distinct_names_around_a_step() -> None:
    names = [(f"task {'x' * (n % 7)}{n} end", start, end) for n, (_, start, end) in enumerate(loop("{}", 50))]
    assert find([*names, *loop("step {}", 50, start=10, length=800)], launches(50)).frame.height == 50
    single = find([*names, ("step 7", 20, 900)], launches(1))
    assert (single.key, single.frame["name"].to_list()) == ("task 0 end/step 7", ["step 7"])


def test_layers_are_no_steps() -> None:
    layers = [("layer", 100 * n, 100 * n + 90) for n in range(8)]
    starts = [100 * n + k for n in range(8) for k in range(10, 60, 10)]
    assert find([("forward", 0, 900), *layers], starts).is_whole_capture


def test_a_range_that_begins_each_pass() -> None:
    its = find([*inner("forward", 4), *inner("backward", 4, start=300)], launches(4, per_step=15))
    assert (its.key, its.frame.height) == ("forward", 4)
    assert its.frame["start_ns"].to_list() == [n * STEP + 100 for n in range(4)]


def test_optimizer_steps_end_a_pass() -> None:
    ops = inner("aten::mm", 4, start=90, length=150)
    optimizer = inner("Optimizer.step#SGD.step", 4, start=400)
    its = find([*ops, *optimizer], launches(4), ["cpu_op"] * 4 + ["user_annotation"] * 4)
    assert (its.label, its.frame["end_ns"].to_list()) == ("Optimizer.step#SGD.step", [n * STEP + 500 for n in range(4)])


@pytest.mark.parametrize(
    ("name", "domain"),
    [("aten::linear", "default"), ("attention", "cpu_op"), ("MmBackward0", "default"), ("cublasSgemmEx", "cuBLAS")],
)
def test_ops_of_frameworks_and_libraries_are_no_steps(name: str, domain: str) -> None:
    assert find(inner(name, 6), launches(6), [domain] * 6).is_whole_capture


def test_python_frames_are_scopes() -> None:
    frames = [("train.py(3): main", 0, 9 * STEP), *inner("nn.Module: Net_0", 4, start=80, length=400)]
    ranges = [*frames, *inner("aten::mm", 4, length=150)]
    domain = ["python_function"] * 5 + ["cpu_op"] * 4
    rows = nvtx(*[(text, 1, start, end) for text, start, end in ranges]).with_columns(domain=pl.Series(domain))
    rollup = Rollup.from_frames(declared(nvtx_ranges=rows, **kernels(*launches(4))))
    assert rollup.iterations.is_whole_capture
    assert rollup.ops["op_name"].cast(str).to_list() == ["train.py(3): main/nn.Module: Net_0/aten::mm"]
    assert rollup.measures.instances["parent"].null_count() == 4


def test_a_single_numbered_step() -> None:
    its = find([("ProfilerStep#7", 0, STEP), *inner("aten::bmm", 1)], launches(1))
    assert (its.key, its.frame["name"].to_list()) == ("ProfilerStep#7", ["ProfilerStep#7"])


@pytest.mark.parametrize(
    ("name", "steps"),
    [("layer 1", 2), ("LAYER 1_1", 2), ("step */layer 1", 2), ("layer", 4), ("layer *", 4), ("step 0", 2), ("step", 2)],
)
def test_a_user_names_any_range(name: str, steps: int) -> None:
    layers = [(f"layer {n}", STEP * i + 100 + 300 * n, STEP * i + 300 + 300 * n) for i in range(2) for n in range(2)]
    its = find([*loop("step {}", 2), *layers], launches(2), key_op=name)
    assert (its.key, its.frame.height) == (name, steps)


def test_a_name_that_several_ops_have() -> None:
    train, test = ("train", 0, 2 * STEP), ("test", 2 * STEP, 4 * STEP)
    ranges = [train, *loop("step {}", 2), test, *loop("step {}", 2, start=2 * STEP)]
    its = find(ranges, launches(4), key_op="step")
    assert (its.frame.height, its.label, len(its.key_ops)) == (4, "step *", 2)


def test_a_name_that_no_range_has() -> None:
    with pytest.raises(TracekitError, match="the capture has no op 'stp', which was requested as key op"):
        find(loop("step {}", 4), launches(4), key_op="stp")


def test_without_gpu_work_the_longest_range_that_repeats() -> None:
    its = find([*inner("short", 4), *inner("long", 4, start=300, length=400)], [])
    assert its.key == "long"


def test_processes_without_an_id() -> None:
    ranges = nvtx(*[(text, 1, start, end) for text, start, end in loop("step {}", 4)])
    tables = {"nvtx_ranges": ranges, **kernels(*launches(4))}
    none = {name: table.with_columns(process_id=pl.lit(None, pl.Int64)) for name, table in tables.items()}
    its = Rollup.from_frames(declared(**none)).iterations
    assert its.frame.height == 4


@pytest.mark.parametrize(
    ("capture", "key", "steps", "inside"),
    [
        ("gpt.pt.trace.json.gz", "", 1, 587),
        ("stacks.pt.trace.json.gz", "Optimizer.step#AdamW.step", 6, 474),
        ("annotated.pt.trace.json.gz", "## train_step * ##", 6, 474),
        ("nested.sqlite", "step *", 16, 1144),
    ],
)
def test_captures(capture: str, key: str, steps: int, inside: int) -> None:
    """The kernels in steps are those of the capture, but those of two validations."""
    with tk.load(FIXTURES / "steps" / capture) as trace:
        row = trace.stats("steps").row(0, named=True)
        kernels = trace.rollup().frame("kernels").select("iteration").collect()["iteration"]
    assert (row["Range"] or "", row["Steps"], row["Kernels In Steps"]) == (key, steps, inside)
    assert kernels.drop_nulls().len() == inside
