-- Made after the rows, which is faster.

CREATE UNIQUE INDEX unique_read_only_ops ON read_only_ops (domain_id, op_id_id);
-- Nodes of a CUDA graph have one call, and may start together: not unique.
CREATE INDEX unique_read_only_kernels ON read_only_kernels (api_start, gpu_start, thread_id, read_only_ops_id);
CREATE UNIQUE INDEX unique_iteration_list ON iteration_list (aggr_id, iter_value);
CREATE UNIQUE INDEX unique_model_summary ON model_summary (aggr_id, domain_id);
CREATE UNIQUE INDEX unique_device_gpu_utilizations ON device_gpu_utilizations (aggr_id, domain_id, gpu_info_id);
CREATE UNIQUE INDEX unique_group_ops ON group_ops (aggr_id, domain_id, group_op_full_id_id, group_op_full_name_id);
CREATE UNIQUE INDEX unique_kernel_summaries ON kernel_summaries (aggr_id, domain_id, read_only_ops_id, kernel_name_id);
CREATE UNIQUE INDEX unique_kernel_iteration_node ON kernel_iteration_node (aggr_id, domain_id, read_only_ops_id, read_only_kernel_id, iter_value);
CREATE UNIQUE INDEX unique_kernel_iteration_stats ON kernel_iteration_stats (aggr_id, domain_id, iter_value);
CREATE UNIQUE INDEX unique_kernel_summary_metrics ON kernel_summary_metrics (aggr_id, domain_id);
CREATE UNIQUE INDEX unique_memory_summary_metrics ON memory_summary_metrics (aggr_id, domain_id);
CREATE UNIQUE INDEX unique_op_type_metrics ON op_type_metrics (aggr_id, domain_id, op_node_type_id);
