"""Which numbers in names of ranges are those of steps."""

from __future__ import annotations

import polars as pl
import pytest
from tracekit.core.ops import step_names


def labels(*names: str, parents: list[int | None] | None = None, threads: list[int] | None = None) -> list[str]:
    parent = pl.Series(parents or [None] * len(names), dtype=pl.Int64)
    thread = pl.DataFrame({"thread_id": threads or [1] * len(names)})
    made = step_names.label_ranges(parent, pl.Series(names, dtype=pl.Categorical), thread)
    return made.cast(pl.String).to_list()


@pytest.mark.parametrize(
    ("first", "second", "label"),
    [
        ("step 3", "step 4", "step *"),
        ("ProfilerStep#10", "ProfilerStep#11", "ProfilerStep *"),
        ("## train_step 3 ##", "## train_step 4 ##", "## train_step * ##"),
        ("step_3", "step_12", "step_*"),
        ("iter-3", "iter-4", "iter-*"),
        ("TrainStep 1", "TrainStep 2", "TrainStep *"),
        ("epoch 1 step 12", "epoch 2 step 3", "epoch * step *"),
        ("step 3/100", "step 4/100", "step */*"),
        ("Step 190 to 200", "Step 200 to 210", "Step * to *"),
        ("step 3 loss 0.25", "step 4 loss 1", "step * loss *"),
        ("Batch[7]", "Batch[8]", "Batch *"),
        ("micro_batch 1", "micro_batch 2", "micro_batch *"),
        ("step 3 lr=1.5e-05", "step 4 lr=9e-06", "step * lr=*"),
        ("step 3 buffer 0x7f1a", "step 4 buffer 0x55", "step * buffer *"),
        ("step 3 (12ms)", "step 4 (9.5ms)", "step * (*ms)"),
        ("train#step_num=3,_r=1#", "train#step_num=4,_r=1#", "train#step_num=*,_r=*#"),
        ("batch_idx=3 of 9", "batch_idx=4 of 9", "batch_idx=* of *"),
        ("Batch No. 3: x", "Batch No. 4: x", "Batch No. *: x"),
        ("[step 3]", "[step 4]", "[step *]"),
        ("step [3]", "step [4]", "step *"),
        ("run (iter: 3)", "run (iter: 4)", "run (iter *)"),
        ("[epoch 1] [step 3]", "[epoch 1] [step 4]", "[epoch *] [step *]"),
        ("第3步", "第4步", "第*步"),
        ("第 3 轮", "第 4 轮", "第 * 轮"),
        ("第3ステップ", "第4ステップ", "第*ステップ"),
        (
            "execute_context_0(7)_generation_1(3)",
            "execute_context_2(0)_generation_8(8)",
            "execute_context_*(*)_generation_*(*)",
        ),
        ("execute_generation_4(4)", "execute_generation_5(5)", "execute_generation_*(*)"),
    ],
)
@pytest.mark.parametrize("depth", [0, 1, 2])
def test_steps_at_any_depth(first: str, second: str, label: str, depth: int) -> None:
    """Two ranges with one name each, below none, one or two other ranges, and once more below the same ranges."""
    outer = [f"outer {d}" for d in range(depth)]
    parents = [d - 1 if d else None for d in range(depth)] + [depth - 1 if depth else None] * 4
    assert labels(*outer, first, second, first, second, parents=parents)[depth:] == [label] * 4


@pytest.mark.parametrize("name", ["batch_norm 1", "stepper 2", "BatchNorm2d 1", "layer1", "batch2d", "x 1 y"])
def test_other_numbers_in_names_that_recur(name: str) -> None:
    other = name.translate(str.maketrans("12", "34"))
    assert labels("run", name, other, name, other, parents=[None, 0, 0, 0, 0])[1:] == [name, other] * 2


def test_layers_stay_apart_and_single_siblings_are_steps() -> None:
    assert labels("forward", "layer 0", "layer 1", parents=[None, 0, 0]) == ["forward", "layer 0", "layer 1"]
    assert labels("layer 0", "layer 1") == ["layer 0", "layer 1"]
    assert labels("generate", "decode 0", "decode 1", parents=[None, 0, 0]) == ["generate", "decode *", "decode *"]
    recurring = labels("forward", "part 0", "part 1", "forward", "part 0", "part 1", parents=[None, 0, 0, None, 3, 3])
    assert recurring == ["forward", "part 0", "part 1"] * 2


def test_a_name_of_several_threads_recurs_only_on_one_thread() -> None:
    parents = [None, 0, 0, None, 3, 3]
    made = labels("run", "pass 0", "pass 1", "run", "pass 0", "pass 1", parents=parents, threads=[1, 1, 1, 2, 2, 2])
    assert made == ["run", "pass *", "pass *"] * 2


@pytest.mark.parametrize(
    "name", ["frame_{}", "Frame{}", "token{}", "request-{}", "train/{}", "Run[{}]", "步骤{}", "ループ{}"]
)
def test_numbers_joined_to_words_of_passes(name: str) -> None:
    """A number that is joined to another word may be that of a part of a model or of a function."""
    star = name.removesuffix("]").replace("{}", "*").replace("[*", " *")
    for outer in [[], ["run"]]:
        parents = [None, 0, 0] if outer else [None, None]
        assert labels(*outer, name.format(0), name.format(1), parents=parents) == [*outer, star, star]
    recurring = ["run", name.format(0), name.format(1), name.format(0)]
    assert labels(*recurring, parents=[None, 0, 0, 0]) == recurring


@pytest.mark.parametrize(
    ("first", "second", "label"),
    [
        ("0", "1", "*"),
        ("007", "008", "*"),
        ("#3", "#4", "#*"),
        ("[3]", "[4]", "[*]"),
        ("[image 3]", "[image 4]", "[image *]"),
    ],
)
def test_bare_numbers_and_brackets(first: str, second: str, label: str) -> None:
    assert labels(first, second) == [label, label]
    assert labels("run", first, second, parents=[None, 0, 0]) == ["run", label, label]
    assert labels("run", first, second, first, parents=[None, 0, 0, 0]) == ["run", first, second, first]


@pytest.mark.parametrize("outer", ["forward", "model.forward", "Backward 1", "fwd", "nn.Module: SqueezeNet_0"])
def test_numbered_parts_of_a_forward_pass_stay_apart(outer: str) -> None:
    parts = [outer, "fire 0", "fire 1"]
    assert labels(*parts, parents=[None, 0, 0]) == parts
    assert labels(outer, "decode 0", "decode 1", parents=[None, 0, 0]) == [outer, "decode *", "decode *"]
    assert labels(outer, "step 0", "step 1", parents=[None, 0, 0]) == [outer, "step *", "step *"]


@pytest.mark.parametrize("name", ["conv{}", "h.{}", "relu_{}", "encode{}", "gemm_{}", "brain{}", "fc/{}", "层{}"])
def test_numbers_joined_to_other_words(name: str) -> None:
    assert labels(name.format(0), name.format(1)) == [name.format(0), name.format(1)]


def test_ranges_inside_of_each_other_are_no_siblings() -> None:
    chain = ["depth 0", "depth 1", "depth 2"]
    assert labels(*chain, parents=[None, 0, 1]) == chain
    assert labels("run", *chain, parents=[None, 0, 1, 2]) == ["run", *chain]
    assert labels("step 0", "step 1", parents=[None, 0]) == ["step *", "step *"]


def test_one_number_is_no_step() -> None:
    assert labels("step 3", "step 3") == ["step 3", "step 3"]


@pytest.mark.parametrize(
    ("expression", "names", "others"),
    [
        ("step", ["step *", "train_step", "step 3", "第*步"], ["epoch *", "optimizer step", "layer", "第*轮"]),
        ("epoch", ["epoch *", "train_epoch", "第*轮"], ["step *", "第*步", "epoch_loss"]),
        ("numbered_step", ["step 3", "第3步"], ["step *", "train_step", "layer"]),
        ("model_part", ["layer", "Layer *"], ["step *", "players 1 x"]),
        ("micro_batch", ["micro_batch *", "MicroBatch *", "micro-step"], ["batch *", "mini_batch *", "micrometer"]),
        ("request", ["request", "request *", "generate", "my_query *"], ["requested", "train", "step *"]),
        ("repeated", ["decode *", "frame_*", "run", "ステップ *"], ["decoder *", "fire *", "brun *"]),
        (
            "evaluation",
            [
                "eval_step",
                "eval step *",
                "Evaluation",
                "val",
                "validate",
                "EvalStep",
                "runValidation",
                "test",
                "test step *",
            ],
            ["train_step", "interval", "value", "evaluated_run", "test_model", "latest", "invalid step"],
        ),
        ("training", ["train_step", "Training", "pretrain"], ["step *", "rain"]),
    ],
)
def test_words(expression: str, names: list[str], others: list[str]) -> None:
    rows = pl.DataFrame({"label": [*names, *others]})
    contains = rows.select(getattr(step_names, f"names_{expression}_expr")(pl.col("label"))).to_series().to_list()
    assert contains == [True] * len(names) + [False] * len(others)


def test_a_star_at_the_end() -> None:
    rows = pl.DataFrame({"label": ["step *", "[step *]", "a_*(*)", "*", "a * b", "step"]})
    ends = rows.select(step_names.ends_with_star_expr(pl.col("label"))).to_series().to_list()
    assert ends == [True, True, True, True, False, False]
