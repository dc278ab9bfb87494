"""What to change in a program, by cause and framework, and how to check the change."""

from __future__ import annotations

CHANGES: dict[str, dict[str, str]] = {
    "data_loading": {
        "pytorch": "load data in worker processes: DataLoader(num_workers=8, pin_memory=True, persistent_workers=True)",
        "jax": "load data in other threads or processes and prefetch it with jax.device_put",
        "tensorflow": "add dataset.map(..., num_parallel_calls=AUTOTUNE).prefetch(AUTOTUNE)",
        "any": "load and prepare data in other threads or processes, at least one step ahead",
    },
    "more_workers": {
        "any": "let the worker processes keep up: use more of them, a larger prefetch_factor, or less work per item",
    },
    "cpu_work": {
        "any": "move this work to another thread or process, do it before the loop, or do it on the GPU",
    },
    "launch_overhead": {
        "pytorch": "capture the step in a CUDA graph: torch.compile(mode='reduce-overhead') or torch.cuda.graph",
        "jax": "put the whole step into one jax.jit, and enable command buffers (--xla_gpu_enable_command_buffer)",
        "tensorflow": "use tf.function(jit_compile=True) for the whole step",
        "any": "capture the launches in a CUDA graph, or merge small kernels",
    },
    "synchronization": {
        "pytorch": "do not read values in the loop: keep metrics on the GPU and call .item() once every N steps",
        "jax": "do not convert results to Python or NumPy in the loop; block_until_ready only at the end",
        "any": "do not synchronize in the loop: use events and streams, and read results once at the end",
    },
    "host_round_trip": {
        "pytorch": "compute this with torch operations on the GPU instead of .cpu() and NumPy",
        "jax": "use jax.numpy inside jit instead of NumPy",
        "any": "compute this on the GPU, so that the data does not leave it",
    },
    "blocking_io": {
        "pytorch": "save in the background: copy to pinned buffers, then write in another thread "
        "(torch.distributed.checkpoint.async_save), or save less often",
        "any": "write files in another thread, or less often",
    },
    "pageable_copy": {
        "pytorch": "use pinned memory and prefetch: DataLoader(pin_memory=True), x.to(device, non_blocking=True)",
        "any": "allocate the buffer with cudaMallocHost and copy with cudaMemcpyAsync, one step ahead",
    },
    "small_copies": {
        "pytorch": "gather the values in one pinned tensor on the CPU, and copy it once",
        "any": "gather the data in one pinned buffer, and copy it once",
    },
    "exposed_copy": {
        "pytorch": "copy the next batch on a second stream while the current one is computed",
        "any": "copy on a second stream while kernels run",
    },
    "memory_allocation": {
        "pytorch": "keep memory in the caching allocator: no empty_cache() in the loop; "
        "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True against fragmentation",
        "jax": "keep buffers and donate arguments (donate_argnums); check XLA_PYTHON_CLIENT_ALLOCATOR",
        "any": "allocate buffers once before the loop, or use cudaMallocAsync with a memory pool",
    },
    "first_call": {
        "any": "warm up all shapes before the loop, and keep compiled code in a cache on disk",
    },
    "recompilation": {
        "pytorch": "avoid new shapes and constants: pad or bucket inputs, torch.compile(dynamic=True); "
        "TORCH_LOGS=recompiles names the reason",
        "jax": "pad or bucket shapes, and pass changing values as arrays; jax.log_compiles names the reason",
        "any": "compile once and reuse the result: pad or bucket inputs of changing shapes",
    },
    "precision": {
        "pytorch": "use torch.autocast('cuda', torch.bfloat16), or TF32: torch.set_float32_matmul_precision('high')",
        "jax": "use bfloat16, or jax_default_matmul_precision='tensorfloat32'",
        "tensorflow": "use mixed_bfloat16, or tf.config.experimental.enable_tensor_float_32_execution(True)",
        "any": "use BF16 or TF32 on Tensor Cores (CUBLAS_COMPUTE_32F_FAST_TF32)",
    },
    "double_precision": {
        "pytorch": "use torch.float32 instead of torch.float64, with torch.set_float32_matmul_precision('high')",
        "jax": "use float32: do not enable jax_enable_x64",
        "any": "use single precision, if the results stay accurate enough",
    },
    "unfused_attention": {
        "pytorch": "use torch.nn.functional.scaled_dot_product_attention",
        "jax": "use jax.nn.dot_product_attention(implementation='cudnn')",
        "any": "use a fused attention kernel, such as FlashAttention or that of cuDNN",
    },
    "unfused_pointwise": {
        "pytorch": "fuse them with torch.compile",
        "jax": "put them into one jax.jit",
        "tensorflow": "use tf.function(jit_compile=True)",
        "any": "merge these kernels into one",
    },
    "memory_layout": {
        "pytorch": "keep model and input in channels_last: model.to(memory_format=torch.channels_last)",
        "any": "store images in NHWC, which convolutions on Tensor Cores need",
    },
    "unfused_optimizer": {
        "pytorch": "pass fused=True to the optimizer, or foreach=True",
        "any": "update all parameters in one kernel",
    },
    "low_occupancy": {
        "any": "launch more thread blocks: split the work of a block, or process more data per launch",
    },
    "strided_access": {
        "any": "let neighboring threads access neighboring addresses: swap loops or indices, or transpose tiles in "
        "shared memory",
    },
    "partial_warps": {
        "any": "launch blocks whose number of threads is a multiple of 32",
    },
    "few_active_warps": {
        "any": "let more warps run on each multiprocessor: larger blocks, less shared memory, fewer registers",
    },
    "serialized_streams": {
        "pytorch": "run independent branches on several streams, or batch them into larger operations",
        "any": "run independent work on several streams, or batch it",
    },
    "communication_exposed": {
        "pytorch": "overlap it with the backward pass: DistributedDataParallel or FSDP with prefetch, larger buckets",
        "jax": "enable the latency-hiding scheduler (--xla_gpu_enable_latency_hiding_scheduler=true)",
        "any": "start communication earlier on a stream of its own, so that it overlaps computation",
    },
    "gpu_idle_unexplained": {
        "any": "record what the CPU does in this time, and run tracekit why again",
    },
    "late_rank": {
        "any": "balance this work between ranks, or make it faster on the late rank",
    },
    "barrier": {
        "any": "remove barriers from the loop: collectives already order the ranks",
    },
    "small_messages": {
        "pytorch": "reduce larger buckets (bucket_cap_mb=25 or more), or coalesce collectives",
        "any": "combine small collectives into large ones, for example with ncclGroupStart",
    },
    "imbalance": {
        "any": "distribute the work evenly between ranks: sort or pack samples by length, shard evenly",
    },
}
"""What to change, by cause and framework. ``any`` applies to all frameworks without an entry of their own.

Some causes have several changes, which have names of their own.
"""

CHECKS: dict[str, str] = {
    "data_loading": "replace the input with one batch that stays on the GPU, and time a step",
    "cpu_work": "leave this work out, and time a step",
    "launch_overhead": "time a step with the CUDA graph; kernels should follow one another without gaps",
    "synchronization": "leave out the reads of values, and time a step; the CPU should run ahead of the GPU",
    "host_round_trip": "use constant data on the GPU instead, and time a step",
    "blocking_io": "write nothing, and time a step",
    "pageable_copy": "time a step with pinned memory; the copies should run beside kernels",
    "small_copies": "time a step, and count its copies: tracekit stats AFTER -r cuda_gpu_mem_time_sum",
    "exposed_copy": "leave out the copies, and time a step: overlapping cannot save more",
    "memory_allocation": "time a step; steady steps should not allocate memory: tracekit stats AFTER -r cuda_api_sum",
    "first_call": "time the first and the second step of one shape",
    "recompilation": "count compilations per step with the setting",
    "precision": "time a step with the setting, and compare the loss",
    "unfused_attention": "time a step, and compare the results; no kernel of softmax should remain",
    "unfused_pointwise": "time a step, and compare the results",
    "memory_layout": "time a step; no kernel that converts layouts should remain",
    "unfused_optimizer": "time the step of the optimizer with the setting",
    "low_occupancy": "time the kernel with more blocks",
    "serialized_streams": "time a step, and compare the results, which differ if the work is not independent",
    "communication_exposed": "leave out the communication, and time a step: overlapping cannot save more",
    "gpu_idle_unexplained": "a capture with these records names the cause",
    "late_rank": "time this range on every rank",
    "barrier": "time a step without barriers",
    "small_messages": "time a step, and count its collectives",
    "imbalance": "compare the GPU time of this range on all ranks",
}
"""How to check a change, by cause."""
DEFAULT_CHECK = "capture again, and compare: tracekit diff BEFORE AFTER"
"""How to check the change of a cause without an entry of its own."""
