"""The work of instructions of compiled programs, from their text."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tracekit.core.work import hlo
from tracekit.core.work.call import Work

A, B = "bf16[256,512]{1,0}", "bf16[512,1024]{1,0}"
IMAGE, FILTER, OUT = "f16[8,64,28,28]{3,2,1,0}", "f16[128,16,3,3]{3,2,1,0}", "f16[8,128,28,28]{3,2,1,0}"
LABELS = "dim_labels=bf01_oi01->bf01, feature_group_count=4"
WINDOW = "window={size=3x3 pad=1_1x1_1}"
CONVOLUTION = 2 * (8 * 128 * 28 * 28) * (16 * 3 * 3)
SIZES = [8 * 64 * 28 * 28 * 2, 128 * 16 * 3 * 3 * 2, 8 * 128 * 28 * 28 * 2]
GEMM = {"gemm_backend_config": {"dot_dimension_numbers": {"lhs_contracting_dimensions": ["1"]}}}
BATCHED = 'lhs_batch_dims={0}, lhs_contracting_dims={2}, metadata={op_name="jit(f)/dot, a"}'
TARGET = "custom_call_target"
CUBLAS = f'{TARGET}="__cublas$gemm"'
CUBLAS_FP8 = f'{TARGET}="__cublas$lt$matmul$f8", backend_config={json.dumps(GEMM["gemm_backend_config"])}'
PAIRS = 2 * 16 * 128 * 256


def attention(mask: str = "NO_MASK", sizes: object = ("2", "16", "128", "256"), **more: object) -> str:
    config = {"intermediate_tensor_shape": {"dimensions": sizes}, "mask_type": mask, **more}
    return f"backend_config={json.dumps({'cudnn_fmha_backend_config': config})}"


Q, K, V = "bf16[2,128,16,64]{3,2,1,0}", "bf16[2,256,4,64]{3,2,1,0}", "bf16[2,256,4,32]{3,2,1,0}"
BYTES = [2 * 2 * 128 * 16 * 64, 2 * 2 * 256 * 4 * 64, 2 * 2 * 256 * 4 * 32, 2 * 2 * 128 * 16 * 32]
FMHA = f'(bf16[2,128,16,32], u8[0]) custom-call({Q} %q, {K} %k, {V} %v), custom_call_target="__cudnn$fmhaSoftmax"'
FMHA_BACKWARD = (
    f"({Q}, {K}, {V}, u8[0]) custom-call({Q} %q, {K} %k, {V} %v, f32[2,16,128] %s, bf16[2,128,16,32] %o), "
    'custom_call_target="__cudnn$fmhaSoftmaxBackward"'
)
TE = (
    "backend_config={attn_heads = 16 : i64, input_batch = 2 : i64, kv_max_seqlen = 128 : i64, mask_type = MASK : i64, "
    "num_gqa_groups = 16 : i64, q_max_seqlen = 128 : i64, qk_head_dim = 64 : i64, v_head_dim = 64 : i64}"
)
TE_CALL = "(bf16[2,128,16,64], u8[0]) custom-call(bf16[2,128,3,16,64] %qkv), custom_call_target="
SQUARE = 2 * 16 * 2 * 128 * 128 * 128
TE_BYTES = 2 * 2 * 128 * 16 * 64
KNOWN: list[tuple[str, Work]] = [
    (
        f"f32[256,1024] dot({A} %a, {B} %b), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}",
        Work("matrix_product", 2 * 256 * 512 * 1024, 2 * (256 + 1024) * 512, 4 * 256 * 1024, "bf16"),
    ),
    (
        "f32[4,8,16]{2,1,0:T(8,128)} dot(f32[4,8,32]{2,1,0:T(8,128)S(1)} %a, f32[4,32,16] %b), " + BATCHED,
        Work("matrix_product", 2 * 4 * 8 * 16 * 32, 4 * (4 * 8 * 32 + 4 * 32 * 16), 4 * 4 * 8 * 16, "fp32"),
    ),
    (
        f"(f32[256,1024], s8[99]) custom-call({A} %a, {B} %b), {CUBLAS}, backend_config={json.dumps(GEMM)}",
        Work("matrix_product", 2 * 256 * 512 * 1024, 2 * (256 + 1024) * 512, 4 * 256 * 1024, "bf16"),
    ),
    (
        "(f16[16,8], s8[9]) custom-call(f8e4m3fn[16,32] %a, f8e4m3fn[8,32] %b, f32[] %s), " + CUBLAS_FP8,
        Work("matrix_product", 2 * 16 * 8 * 32, 16 * 32 + 8 * 32 + 4, 2 * 16 * 8, "fp8"),
    ),
    (
        f"{OUT} convolution({IMAGE} %a, {FILTER} %b), {WINDOW}, {LABELS}",
        Work("convolution", CONVOLUTION, SIZES[0] + SIZES[1], SIZES[2], "fp16"),
    ),
    (
        f'({OUT}, u8[5]) custom-call({IMAGE} %a, {FILTER} %b), {LABELS}, {TARGET}="__cudnn$convForward"',
        Work("convolution", CONVOLUTION, SIZES[0] + SIZES[1], SIZES[2], "fp16"),
    ),
    (
        f'({IMAGE}, u8[5]) custom-call({OUT} %a, {FILTER} %b), {LABELS}, {TARGET}="__cudnn$convBackwardInput"',
        Work("convolution", CONVOLUTION, SIZES[2] + SIZES[1], SIZES[0], "fp16"),
    ),
    (
        f'({FILTER}, u8[5]) custom-call({IMAGE} %a, {OUT} %b), {LABELS}, {TARGET}="__cudnn$convBackwardFilter"',
        Work("convolution", CONVOLUTION, SIZES[0] + SIZES[2], SIZES[1], "fp16"),
    ),
    (  # the backward pass of a convolution with stride 2: as many products as its forward pass
        "f32[1,4,16] convolution(f32[1,8,8] %g, f32[3,4,8] %w), window={size=3 lhs_dilate=2}, dim_labels=bf0_0oi->bf0",
        Work("convolution", 2 * 4 * 8 * 3 * 8, 4 * (64 + 96), 4 * 64, "fp32"),
    ),
    (
        f"{FMHA}, {attention()}",
        Work("attention", PAIRS * 2 * (64 + 32), sum(BYTES[:3]), BYTES[3], "bf16"),
    ),
    (
        f"{FMHA_BACKWARD}, {attention()}",
        Work("attention", PAIRS * 2 * (64 * 3 + 32 * 2), sum(BYTES[:3]) + 2 * BYTES[3], sum(BYTES[:3]), "bf16"),
    ),
    (
        f'{TE_CALL}"te_fused_attn_forward_ffi", {TE.replace("MASK", "0")}',
        Work("attention", SQUARE, 3 * TE_BYTES, TE_BYTES, "bf16"),
    ),
    (
        f'{TE_CALL}"te_fused_attn_backward_ffi", {TE.replace("MASK", "2")}',
        Work("attention", SQUARE // 4 * 5, 5 * TE_BYTES, 3 * TE_BYTES, "bf16"),
    ),
    ("f32[8] add(f32[8] %a, f32[8] %b)", Work("pointwise", 8, 64, 32)),
    ("s32[8] add(s32[8] %a, s32[8] %b)", Work("pointwise", 0, 64, 32)),
    ("pred[8] compare(f32[8] %a, f32[8] %b), direction=LT", Work("pointwise", 8, 64, 8)),
    ("pred[8] and(pred[8] %a, pred[8] %b)", Work("pointwise", 0, 16, 8)),
    ("f32[2] reduce(f32[2,8] %a, f32[] %i), dimensions={1}, to_apply=%sum", Work("reduction", 16, 68, 8)),
    ("f32[2,4] reduce-window(f32[2,8] %a, f32[] %i), window={size=1x2 stride=1x2}", Work("reduction", 16, 68, 32)),
    ("bf16[8] convert(f32[8] %a)", Work("copy", 0, 32, 16)),
    ("s4[9] copy(s4[9] %a)", Work("copy", 0, 5, 5)),
    ("f32[2] slice(f32[8] %a), slice={[0:2]}", Work("copy", 0, 8, 8)),
    ("f32[2,4] gather(f32[9,4] %a, s32[2] %i)", Work("copy", 0, 40, 32)),
    ("f32[9,4] dynamic-update-slice(f32[9,4] %a, f32[1,4] %u, s32[] %i, s32[] %j)", Work("copy", 0, 24, 16)),
    ("f32[9,4] scatter(f32[9,4] %a, s32[2] %i, f32[2,4] %u), to_apply=%f", Work("copy", 0, 40, 32)),
    ("(f32[8], f32[8], u32[]) copy-start(f32[8] %a)", Work("copy", 0, 32, 32)),
    ("f32[8] all-reduce(f32[8] %a), replica_groups={{0,1}}, to_apply=%sum", Work("collective", 8, 32, 32)),
    ("(f32[4], f32[8]) all-gather-start(f32[4] %a), dimensions={0}", Work("collective", 0, 16, 32)),
    ("f32[8] bitcast(f32[8] %a)", Work("copy", 0, 0, 0)),
    ("(f32[8], token[]) tuple(f32[8] %a, token[] %t)", Work("copy", 0, 0, 0)),
]
UNKNOWN = [
    "f32[8] sort(f32[8] %a)",
    "f32[8] all-reduce-done(f32[8] %a)",
    'f32[8] custom-call(f32[8] %a), custom_call_target="mine"',
    f'f32[8] custom-call({A} %a, {B} %b), custom_call_target="__cublas$gemm"',
    f'f32[8] custom-call({A} %a, {B} %b), custom_call_target="__cublas$gemm", backend_config=[]',
    f"f32[8] custom-call({A} %a, {B} %b), " + CUBLAS_FP8.replace('"1"', "true"),
    f"f32[256,1024] dot({A} %a, {B} %b), lhs_contracting_dims={{2}}",
    f"f32[256,1024] dot(({A}, {A}) %a, {B} %b), lhs_contracting_dims={{1}}",
    f"f32[256,1024] dot({A} %a), lhs_contracting_dims={{1}}",
    f"() dot({A} %a, {B} %b), lhs_contracting_dims={{1}}",
    f"f32[256,1024] dot(%a, {B} %b), lhs_contracting_dims={{1}}",
    f"{OUT} convolution({IMAGE} %a, {FILTER} %b), dim_labels=bf01_oi0->bf01",
    "f32[1,4,16] convolution(f32[1,8,8] %g, f32[3,4,8] %w), window={size=3 lhs_dilate=2}, dim_labels=b0_0oi->bf0",
    f"{FMHA}, {attention('PADDING')}",
    f"{FMHA.replace('256,4,', '256,3,')}, {attention()}",
    f"{FMHA}, {attention(sliding_window_length=8)}",
    f"{FMHA}, {attention(sizes=['2', '16', '128'])}",
    f"{FMHA}, {attention(sizes=['2', '16', '128', 'x'])}",
    f"{FMHA}, {attention(sizes=['2', '16', '127', '256'])}",
    f"{FMHA}, {attention(sizes=['2', '3', '128', '256'])}",
    f"{FMHA_BACKWARD.replace(', u8[0]) custom', ') custom').replace(f'({Q}, {K}, ', '(')}, {attention()}",
    f'{TE_CALL}"te_fused_attn_forward_ffi", {TE.replace("MASK", "1")}',
    f'{TE_CALL}"te_fused_attn_forward_ffi", {TE.replace("MASK", "4").replace("q_max_seqlen = 1", "q_max_seqlen = 2")}',
    f"f32[{10**18},{10**18}] add(f32[8] %a)",
    f"f32[{10**30}] add(f32[8] %a)",
    f"f64[{1 << 62}] add(f64[{1 << 62}] %a)",
    f"f32[{'1,' * 100}1] add(f32[8] %a)",
    "f32[8] fusion(f32[8] %a), kind=kLoop, calls=%missing",
]
TEXTS = ["", "%a", "%a = f32[8]", "%a = (f32[8]", "%a = f32[8] add(f32[8] %b", "%a = f32[8] +", "x" * (1 << 18)]


@pytest.mark.parametrize(("text", "work"), KNOWN, ids=[text[:60] for text, _ in KNOWN])
def test_known_instructions(text: str, work: Work) -> None:
    instruction = hlo.parse_instruction(f"ROOT %x.1 = {text}")
    assert instruction is not None
    computed = hlo.compute_instruction_work(instruction, {})
    assert computed is not None
    assert computed._replace(model_flop=None) == work


@pytest.mark.parametrize("text", UNKNOWN, ids=range(len(UNKNOWN)))
def test_unknown_instructions(text: str) -> None:
    instruction = hlo.parse_instruction(f"%x.1 = {text}")
    assert instruction is not None
    assert hlo.compute_instruction_work(instruction, {}) is None


@pytest.mark.parametrize("text", TEXTS, ids=range(len(TEXTS)))
def test_texts_that_are_no_instructions(text: str) -> None:
    assert hlo.parse_instruction(text) is None
    assert hlo.parse_computation([text]) == {}


def test_unknown_types_have_unknown_bytes() -> None:
    instruction = hlo.parse_instruction("%x = u4096[8] copy(u4096[8] %a)")
    assert instruction is not None
    assert hlo.compute_instruction_work(instruction, {}) == Work("copy", 0, None, None)
    partial = hlo.parse_instruction("%x = u4096[8] slice(u4096[9] %a)")
    assert partial is not None
    assert hlo.compute_instruction_work(partial, {}) == Work("copy", 0, None, None)


FUSED = {
    "product": [
        "%p0 = f32[4,8] parameter(0)",
        "%p1 = f32[8,16] parameter(1)",
        "%c = bf16[4,8] convert(%p0)",
        "%d = bf16[8,16] convert(f32[8,16] %p1)",
        "%dot = f32[4,16] dot(%c, %d), lhs_contracting_dims={1}",
        "ROOT %tanh = f32[4,16] tanh(%dot)",
    ],
    "sliced": [
        "%p0 = f32[100,8] parameter(0)",
        "%p1 = s32[] parameter(1)",
        "%s = f32[1,8] dynamic-slice(f32[100,8] %p0, s32[] %p1, s32[] %p1), dynamic_slice_sizes={1,8}",
        "ROOT %n = f32[1,8] negate(f32[1,8] %s)",
    ],
    "updated": [
        "%p0 = f32[100,8] parameter(0)",
        "%p1 = f32[1,8] parameter(1)",
        "%p2 = s32[] parameter(2)",
        "%p3 = s32[] parameter(3)",
        "ROOT %u = f32[100,8] dynamic-update-slice(f32[100,8] %p0, f32[1,8] %p1, s32[] %p2, s32[] %p2)",
    ],
    "sum": ["%p0 = f32[8] parameter(0)", "%z = f32[] constant(0)", "%r = f32[] reduce(%p0, %z), dimensions={0}"],
    "looped": ["%p0 = f32[8] parameter(0)", "%l = f32[8] call(f32[8] %p0), to_apply=%looped"],
    "mixed": [
        "%a = f32[] parameter(0)",
        "%x = f32[1,1] dot(f32[1,1] %b, f32[1,1] %c)",
        "%y = f64[1,1] dot(f64[1,1] %b, f64[1,1] %c)",
    ],
}


@pytest.mark.parametrize(
    ("text", "work"),
    [
        (
            "f32[4,16] fusion(f32[4,8] %a, f32[8,16] %b), kind=kCustom, calls=%product",
            Work("matrix_product", 2 * 4 * 8 * 16 + 4 * 16, 4 * (32 + 128), 4 * 64, "bf16"),
        ),
        ("f32[1,8] fusion(f32[100,8] %a, s32[] %i), kind=kLoop, calls=%sliced", Work("pointwise", 8, 36, 32)),
        ("f32[100,8] fusion(f32[100,8] %a), kind=kLoop, calls=%updated", Work("copy", 0, 40, 32)),
        ("f32[] fusion(f32[8] %a), kind=kInput, calls=%sum", Work("reduction", 8, 32, 4)),
        ("f32[8] call(f32[8] %a), to_apply=%looped", None),
        ("f32[] fusion(f32[] %a), kind=kLoop, calls=%mixed", Work("matrix_product", 4, 4, 4, None)),
    ],
    ids=FUSED,
)
def test_fusions_sum_the_instructions_of_their_computation(text: str, work: Work | None) -> None:
    computations = {name: hlo.parse_computation(texts) for name, texts in FUSED.items()}
    instruction = hlo.parse_instruction(f"%x = {text}")
    assert instruction is not None
    assert hlo.compute_instruction_work(instruction, computations) == work


@given(st.text(alphabet='%=()[]{}," \\af32x.1-_', max_size=80))
def test_any_text_is_parsed_or_refused(text: str) -> None:
    for head in ("", "%x = f32[2] dot(", "%x = f32[2] custom-call(f32[2] %a), backend_config="):
        instruction = hlo.parse_instruction(head + text)
        if instruction is not None:
            hlo.compute_instruction_work(instruction, {})
