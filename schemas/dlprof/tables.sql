-- The tables of a DLProf 1.8.0 database. Texts are kept once, in dictionary, and so are metrics; *_id points to them.

CREATE TABLE dictionary (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    string TEXT NOT NULL UNIQUE
);

CREATE TABLE read_only_grid_block (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    x INTEGER NOT NULL,
    y INTEGER NOT NULL,
    z INTEGER NOT NULL
);

CREATE TABLE read_only_model_info (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    domain_id INTEGER NOT NULL REFERENCES read_only_domains (id) ON UPDATE CASCADE ON DELETE CASCADE,
    domain_name STRING NOT NULL,
    profile_name STRING NOT NULL
);

CREATE TABLE read_only_gpu_infos (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    device_id INTEGER NOT NULL UNIQUE,
    gpu_name TEXT NOT NULL,
    compute_capability_major INTEGER NOT NULL,
    compute_capability_minor INTEGER NOT NULL,
    sm_count INTEGER NOT NULL
);

CREATE TABLE gpu_memories (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    total INTEGER NOT NULL,
    used INTEGER NOT NULL
);

CREATE TABLE read_only_system_config (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    is_valid BOOLEAN NOT NULL CHECK (is_valid IN (0, 1)),
    num_gpus TEXT NOT NULL,
    cpu_model TEXT NOT NULL,
    driver_version TEXT NOT NULL,
    framework TEXT NOT NULL,
    cuda_version TEXT NOT NULL,
    cudnn_version TEXT NOT NULL,
    nsys_version TEXT NOT NULL,
    dlprof_version TEXT NOT NULL,
    dlprof_build TEXT NOT NULL,
    profile_name TEXT NOT NULL,
    mode_enum INTEGER NOT NULL,
    mode_string TEXT NOT NULL,
    original_command TEXT NOT NULL
);

CREATE TABLE db_version (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    current_version TEXT NOT NULL,
    original_version TEXT NOT NULL
);

CREATE TABLE read_only_model_config (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    num_workers INTEGER NOT NULL,
    pin_memory BOOLEAN NOT NULL,
    cudnn_benchmark_disabled BOOLEAN NOT NULL,
    detect_anomaly BOOLEAN NOT NULL,
    gradcheck BOOLEAN NOT NULL,
    gradgradcheck BOOLEAN NOT NULL,
    autograd_profile BOOLEAN NOT NULL,
    autograd_set_detect_anomaly BOOLEAN NOT NULL,
    emit_nvtx BOOLEAN NOT NULL,
    amp_enabled BOOLEAN NOT NULL
);

CREATE TABLE read_only_domains (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    domain_name_id INTEGER NOT NULL REFERENCES dictionary (id) ON UPDATE CASCADE ON DELETE CASCADE
);

CREATE TABLE read_only_ops (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    domain_id INTEGER NOT NULL REFERENCES read_only_domains (id) ON UPDATE CASCADE ON DELETE CASCADE,
    op_id_id INTEGER NOT NULL REFERENCES dictionary (id) ON UPDATE CASCADE ON DELETE CASCADE,
    op_id STRING NOT NULL,
    op_name STRING NOT NULL,
    op_type_id INTEGER NOT NULL REFERENCES dictionary (id) ON UPDATE CASCADE ON DELETE CASCADE,
    device_id INTEGER NOT NULL REFERENCES dictionary (id) ON UPDATE CASCADE ON DELETE CASCADE,
    tc_support_status INTEGER NOT NULL,
    data_type_id INTEGER NOT NULL REFERENCES dictionary (id) ON UPDATE CASCADE ON DELETE CASCADE,
    data_format_id INTEGER NOT NULL REFERENCES dictionary (id) ON UPDATE CASCADE ON DELETE CASCADE,
    output_format_id INTEGER NOT NULL REFERENCES dictionary (id) ON UPDATE CASCADE ON DELETE CASCADE,
    parameters_format_id INTEGER NOT NULL REFERENCES dictionary (id) ON UPDATE CASCADE ON DELETE CASCADE,
    direction_id INTEGER NOT NULL REFERENCES dictionary (id) ON UPDATE CASCADE ON DELETE CASCADE,
    stack_trace STRING
);

CREATE TABLE read_only_sub_ops (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    op_id INTEGER NOT NULL REFERENCES read_only_ops (id) ON UPDATE CASCADE ON DELETE CASCADE,
    start_time INTEGER NOT NULL,
    stop_time INTEGER NOT NULL
);

CREATE TABLE read_only_op_instances (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    read_only_ops_id INTEGER NOT NULL REFERENCES read_only_ops (id) ON UPDATE CASCADE ON DELETE CASCADE,
    cpu_start INTEGER NOT NULL,
    cpu_stop INTEGER NOT NULL,
    process_id INTEGER NOT NULL,
    thread_id INTEGER NOT NULL,
    input_names_id INTEGER NOT NULL REFERENCES dictionary (id) ON UPDATE CASCADE ON DELETE CASCADE,
    input_shapes_id INTEGER NOT NULL REFERENCES dictionary (id) ON UPDATE CASCADE ON DELETE CASCADE,
    output_names_id INTEGER NOT NULL REFERENCES dictionary (id) ON UPDATE CASCADE ON DELETE CASCADE,
    output_shapes_id INTEGER NOT NULL REFERENCES dictionary (id) ON UPDATE CASCADE ON DELETE CASCADE,
    parameters_id INTEGER NOT NULL REFERENCES dictionary (id) ON UPDATE CASCADE ON DELETE CASCADE
);

CREATE TABLE read_only_kernels (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    read_only_ops_id INTEGER NOT NULL,
    op_instance INTEGER NOT NULL,
    name_id INTEGER NOT NULL REFERENCES dictionary (id) ON UPDATE CASCADE ON DELETE CASCADE,
    long_name_id INTEGER NOT NULL REFERENCES dictionary (id) ON UPDATE CASCADE ON DELETE CASCADE,
    uses_tc BOOLEAN NOT NULL CHECK (uses_tc IN (0, 1)),
    api_start INTEGER NOT NULL,
    api_stop INTEGER NOT NULL,
    gpu_start INTEGER NOT NULL,
    gpu_stop INTEGER NOT NULL,
    grid_id INTEGER NOT NULL REFERENCES read_only_grid_block (id) ON UPDATE CASCADE ON DELETE CASCADE,
    block_id INTEGER NOT NULL REFERENCES read_only_grid_block (id) ON UPDATE CASCADE ON DELETE CASCADE,
    device_id INTEGER NOT NULL REFERENCES read_only_gpu_infos (device_id) ON UPDATE CASCADE ON DELETE CASCADE,
    process_id INTEGER NOT NULL,
    thread_id INTEGER NOT NULL
);

CREATE TABLE read_only_memsets (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    read_only_ops_id INTEGER NOT NULL,
    op_instance INTEGER NOT NULL,
    name_id INTEGER NOT NULL REFERENCES dictionary (id) ON UPDATE CASCADE ON DELETE CASCADE,
    api_start INTEGER NOT NULL,
    api_stop INTEGER NOT NULL,
    gpu_start INTEGER NOT NULL,
    gpu_stop INTEGER NOT NULL,
    num_bytes INTEGER NOT NULL,
    device_id INTEGER NOT NULL REFERENCES read_only_gpu_infos (device_id) ON UPDATE CASCADE ON DELETE CASCADE,
    process_id INTEGER NOT NULL,
    thread_id INTEGER NOT NULL
);

CREATE TABLE read_only_memcpys (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    read_only_ops_id INTEGER NOT NULL,
    op_instance INTEGER NOT NULL,
    name_id INTEGER NOT NULL REFERENCES dictionary (id) ON UPDATE CASCADE ON DELETE CASCADE,
    api_start INTEGER NOT NULL,
    api_stop INTEGER NOT NULL,
    gpu_start INTEGER NOT NULL,
    gpu_stop INTEGER NOT NULL,
    num_bytes INTEGER NOT NULL,
    copy_kind INTEGER NOT NULL,
    device_id INTEGER NOT NULL REFERENCES read_only_gpu_infos (device_id) ON UPDATE CASCADE ON DELETE CASCADE,
    process_id INTEGER NOT NULL,
    thread_id INTEGER NOT NULL
);

CREATE TABLE read_only_cuda_syncs (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    read_only_ops_id INTEGER NOT NULL,
    op_instance INTEGER NOT NULL,
    name_id INTEGER NOT NULL REFERENCES dictionary (id) ON UPDATE CASCADE ON DELETE CASCADE,
    api_start INTEGER NOT NULL,
    api_stop INTEGER NOT NULL,
    gpu_start INTEGER NOT NULL,
    gpu_stop INTEGER NOT NULL,
    sync_type INTEGER NOT NULL,
    event_id INTEGER NOT NULL,
    device_id INTEGER NOT NULL REFERENCES read_only_gpu_infos (device_id) ON UPDATE CASCADE ON DELETE CASCADE,
    process_id INTEGER NOT NULL,
    thread_id INTEGER NOT NULL
);

CREATE TABLE read_only_cuda_calls (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    read_only_ops_id INTEGER NOT NULL,
    op_instance INTEGER NOT NULL,
    name_id INTEGER NOT NULL REFERENCES dictionary (id) ON UPDATE CASCADE ON DELETE CASCADE,
    api_start INTEGER NOT NULL,
    api_stop INTEGER NOT NULL,
    process_id INTEGER NOT NULL,
    thread_id INTEGER NOT NULL
);

CREATE TABLE aggregations (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    server_user_name TEXT NOT NULL,
    server_host_name TEXT NOT NULL,
    start_timestamp INTEGER NOT NULL,
    end_timestamp INTEGER NOT NULL
);

CREATE TABLE category_summary (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    cpu_time INTEGER NOT NULL,
    gpu_time INTEGER NOT NULL,
    cpu_overhead INTEGER NOT NULL,
    gpu_idle INTEGER NOT NULL,
    count INTEGER NOT NULL
);

CREATE TABLE metric (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    count INTEGER NOT NULL,
    max INTEGER NOT NULL,
    min INTEGER NOT NULL,
    sum INTEGER NOT NULL,
    avg REAL NOT NULL
);

CREATE TABLE node_time_metrics (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    cpu_time_metric_id INTEGER NOT NULL REFERENCES metric (id) ON UPDATE CASCADE ON DELETE CASCADE,
    gpu_time_metric_id INTEGER NOT NULL REFERENCES metric (id) ON UPDATE CASCADE ON DELETE CASCADE,
    api_time_metric_id INTEGER NOT NULL REFERENCES metric (id) ON UPDATE CASCADE ON DELETE CASCADE,
    cpu_overhead_time_metric_id INTEGER NOT NULL REFERENCES metric (id) ON UPDATE CASCADE ON DELETE CASCADE,
    gpu_idle_time_metric_id INTEGER NOT NULL REFERENCES metric (id) ON UPDATE CASCADE ON DELETE CASCADE
);

CREATE TABLE kernel_time_metrics (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    api_time_metric_id INTEGER NOT NULL REFERENCES metric (id) ON UPDATE CASCADE ON DELETE CASCADE,
    gpu_time_metric_id INTEGER NOT NULL REFERENCES metric (id) ON UPDATE CASCADE ON DELETE CASCADE
);

CREATE TABLE expert_systems_feedback (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    aggr_id INTEGER NOT NULL,
    exp_sys_id TEXT NOT NULL,
    problem TEXT NOT NULL,
    recommendation TEXT NOT NULL,
    javascript_function TEXT NOT NULL,
    javascript_args TEXT NOT NULL
);

CREATE TABLE iteration_key (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    aggr_id INTEGER NOT NULL UNIQUE REFERENCES aggregations (id) ON UPDATE CASCADE ON DELETE CASCADE,
    key_node_id INTEGER NOT NULL REFERENCES dictionary (id) ON UPDATE CASCADE ON DELETE CASCADE
);

CREATE TABLE iteration_list (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    aggr_id INTEGER NOT NULL REFERENCES aggregations (id) ON UPDATE CASCADE ON DELETE CASCADE,
    iter_value INTEGER NOT NULL,
    start_time INTEGER NOT NULL,
    stop_time INTEGER NOT NULL
);

CREATE TABLE iteration_aggregation_list (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    aggr_id INTEGER NOT NULL REFERENCES aggregations (id) ON UPDATE CASCADE ON DELETE CASCADE,
    iter_value INTEGER NOT NULL,
    gpu_utilization REAL NOT NULL,
    tc_duration INTEGER NOT NULL,
    non_tc_duration INTEGER NOT NULL,
    memory_duration INTEGER NOT NULL,
    dataloader_duration INTEGER NOT NULL,
    io_duration INTEGER NOT NULL,
    cpu_duration INTEGER NOT NULL,
    other_duration INTEGER NOT NULL
);

CREATE TABLE model_summary (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    aggr_id INTEGER NOT NULL REFERENCES aggregations (id) ON UPDATE CASCADE ON DELETE CASCADE,
    domain_id INTEGER NOT NULL REFERENCES read_only_domains (id) ON UPDATE CASCADE ON DELETE CASCADE,
    is_custom_domain BOOLEAN NOT NULL CHECK (is_custom_domain IN (0, 1)),
    wall_time INTEGER NOT NULL,
    nodes_total_id INTEGER NOT NULL REFERENCES category_summary (id) ON UPDATE CASCADE ON DELETE CASCADE,
    nodes_tc_eligible_id INTEGER NOT NULL REFERENCES category_summary (id) ON UPDATE CASCADE ON DELETE CASCADE,
    nodes_using_tc_id INTEGER NOT NULL REFERENCES category_summary (id) ON UPDATE CASCADE ON DELETE CASCADE,
    nodes_other_id INTEGER NOT NULL REFERENCES category_summary (id) ON UPDATE CASCADE ON DELETE CASCADE,
    gpu_utilization REAL NOT NULL,
    tc_utilization REAL NOT NULL,
    tc_duration_pct REAL NOT NULL,
    non_tc_duration_pct REAL NOT NULL,
    memory_duration_pct REAL NOT NULL,
    dataloader_duration_pct REAL NOT NULL,
    io_duration_pct REAL NOT NULL,
    cpu_duration_pct REAL NOT NULL,
    other_duration_pct REAL NOT NULL,
    avg_iteration_time REAL NOT NULL,
    iteration_time_std_dev REAL NOT NULL,
    iter_total INTEGER NOT NULL,
    iter_aggregated INTEGER NOT NULL,
    iter_start INTEGER NOT NULL,
    iter_stop INTEGER NOT NULL,
    key_node_id INTEGER NOT NULL REFERENCES dictionary (id) ON UPDATE CASCADE ON DELETE CASCADE
);

CREATE TABLE device_gpu_utilizations (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    aggr_id INTEGER NOT NULL,
    domain_id INTEGER NOT NULL REFERENCES read_only_domains (id) ON UPDATE CASCADE ON DELETE CASCADE,
    gpu_info_id INTEGER NOT NULL REFERENCES read_only_gpu_infos (id) ON UPDATE CASCADE ON DELETE CASCADE,
    gpu_utilization REAL NOT NULL
);

CREATE TABLE op_nodes (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    aggr_id INTEGER NOT NULL REFERENCES aggregations (id) ON UPDATE CASCADE ON DELETE CASCADE,
    read_only_ops_id INTEGER NOT NULL REFERENCES read_only_ops (id) ON UPDATE CASCADE ON DELETE CASCADE,
    node_time_metrics_id INTEGER NOT NULL REFERENCES node_time_metrics (id) ON UPDATE CASCADE ON DELETE CASCADE,
    kernel_time_metrics_id INTEGER NOT NULL REFERENCES kernel_time_metrics (id) ON UPDATE CASCADE ON DELETE CASCADE,
    num_calls INTEGER NOT NULL,
    kernel_calls INTEGER NOT NULL,
    tc_eligible BOOLEAN NOT NULL CHECK (tc_eligible IN (0, 1)),
    using_tc BOOLEAN NOT NULL CHECK (using_tc IN (0, 1)),
    is_bad_data_type BOOLEAN NOT NULL CHECK (is_bad_data_type IN (0, 1))
);

CREATE TABLE group_ops (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    aggr_id INTEGER NOT NULL REFERENCES aggregations (id) ON UPDATE CASCADE ON DELETE CASCADE,
    domain_id INTEGER NOT NULL REFERENCES read_only_domains (id) ON UPDATE CASCADE ON DELETE CASCADE,
    row_type INTEGER NOT NULL,
    group_op_full_id_id INTEGER NOT NULL REFERENCES dictionary (id) ON UPDATE CASCADE ON DELETE CASCADE,
    group_op_full_name_id INTEGER NOT NULL REFERENCES dictionary (id) ON UPDATE CASCADE ON DELETE CASCADE,
    level INTEGER NOT NULL,
    num_op_instances INTEGER NOT NULL,
    num_supported_leaf_ops INTEGER NOT NULL,
    num_tc_leaf_ops INTEGER NOT NULL,
    group_op_time_metrics_id INTEGER NOT NULL REFERENCES node_time_metrics (id) ON UPDATE CASCADE ON DELETE CASCADE
);

CREATE TABLE kernel_summaries (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    aggr_id INTEGER NOT NULL REFERENCES aggregations (id) ON UPDATE CASCADE ON DELETE CASCADE,
    domain_id INTEGER NOT NULL REFERENCES read_only_domains (id) ON UPDATE CASCADE ON DELETE CASCADE,
    read_only_ops_id INTEGER NOT NULL REFERENCES read_only_ops (id) ON UPDATE CASCADE ON DELETE CASCADE,
    kernel_name_id INTEGER NOT NULL REFERENCES dictionary (id) ON UPDATE CASCADE ON DELETE CASCADE,
    api_time_metric_id INTEGER NOT NULL REFERENCES metric (id) ON UPDATE CASCADE ON DELETE CASCADE,
    gpu_time_metric_id INTEGER NOT NULL REFERENCES metric (id) ON UPDATE CASCADE ON DELETE CASCADE,
    uses_tc BOOLEAN NOT NULL CHECK (uses_tc IN (0, 1))
);

CREATE TABLE kernel_iteration_node (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    aggr_id INTEGER NOT NULL REFERENCES aggregations (id) ON UPDATE CASCADE ON DELETE CASCADE,
    domain_id INTEGER NOT NULL REFERENCES read_only_domains (id) ON UPDATE CASCADE ON DELETE CASCADE,
    read_only_ops_id INTEGER NOT NULL REFERENCES read_only_ops (id) ON UPDATE CASCADE ON DELETE CASCADE,
    read_only_kernel_id INTEGER NOT NULL REFERENCES read_only_kernels (id) ON UPDATE CASCADE ON DELETE CASCADE,
    iter_value INTEGER NOT NULL,
    total_count INTEGER NOT NULL,
    uses_tc_count INTEGER NOT NULL,
    total_gpu_time INTEGER NOT NULL,
    tc_gpu_time INTEGER NOT NULL
);

CREATE TABLE kernel_iteration_stats (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    aggr_id INTEGER NOT NULL REFERENCES aggregations (id) ON UPDATE CASCADE ON DELETE CASCADE,
    domain_id INTEGER NOT NULL REFERENCES read_only_domains (id) ON UPDATE CASCADE ON DELETE CASCADE,
    iter_value INTEGER NOT NULL,
    total_count INTEGER NOT NULL,
    uses_tc_count INTEGER NOT NULL,
    total_gpu_time INTEGER NOT NULL,
    tc_gpu_time INTEGER NOT NULL
);

CREATE TABLE kernel_summary_metrics (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    aggr_id INTEGER NOT NULL REFERENCES aggregations (id) ON UPDATE CASCADE ON DELETE CASCADE,
    domain_id INTEGER NOT NULL REFERENCES read_only_domains (id) ON UPDATE CASCADE ON DELETE CASCADE,
    kernels_total_id INTEGER NOT NULL REFERENCES category_summary (id) ON UPDATE CASCADE ON DELETE CASCADE,
    kernels_using_tc_id INTEGER NOT NULL REFERENCES category_summary (id) ON UPDATE CASCADE ON DELETE CASCADE,
    kernels_non_tc_id INTEGER NOT NULL REFERENCES category_summary (id) ON UPDATE CASCADE ON DELETE CASCADE
);

CREATE TABLE memory_summary_metrics (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    aggr_id INTEGER NOT NULL REFERENCES aggregations (id) ON UPDATE CASCADE ON DELETE CASCADE,
    domain_id INTEGER NOT NULL REFERENCES read_only_domains (id) ON UPDATE CASCADE ON DELETE CASCADE,
    memory_time_id INTEGER NOT NULL REFERENCES category_summary (id) ON UPDATE CASCADE ON DELETE CASCADE
);

CREATE TABLE op_type_metrics (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    aggr_id INTEGER NOT NULL,
    domain_id INTEGER NOT NULL REFERENCES read_only_domains (id) ON UPDATE CASCADE ON DELETE CASCADE,
    op_node_type_id INTEGER NOT NULL REFERENCES dictionary (id) ON UPDATE CASCADE ON DELETE CASCADE,
    op_type_metrics_id INTEGER NOT NULL REFERENCES node_time_metrics (id) ON UPDATE CASCADE ON DELETE CASCADE,
    num_nodes INTEGER NOT NULL,
    num_calls INTEGER NOT NULL
);
