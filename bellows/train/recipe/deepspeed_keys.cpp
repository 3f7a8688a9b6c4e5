#include "bellows/train/recipe/deepspeed_keys.h"

#include <algorithm>

namespace bellows::train {

namespace {

constexpr std::string_view ds_amp_level = "Set amp_level: O3 to keep weights and gradients in 16 bits.";
constexpr std::string_view ds_average = "Bellows averages gradients without scaling them first. Only rounding differs.";
constexpr std::string_view ds_one_bit = "1-bit compression is not available.";
constexpr std::string_view ds_zenflow =
    "The optimizer step waits for all gradients. Set offload_state to offload the optimizer.";
constexpr std::string_view ds_run_folder = "Logs are written to the run folder. Set run_folder.";
constexpr std::string_view ds_two_buckets =
    "Bellows keeps two buckets of complete parameters in memory. Set bucket_mb or shard_units.";
constexpr std::string_view ds_quantized_sharding =
    "Parameters and gradients are not quantized when they are sent. With data_parallel ddp or zero1, set "
    "gradient_compression: int8.";
constexpr std::string_view ds_one_cycle =
    "With lr_schedule: one_cycle, the learning rate rises in the first 30 % of the steps, and falls in all others.";
constexpr std::string_view ds_momentum_cycle =
    "lr_schedule: one_cycle varies the momentum by 0.05 around the value of momentum.";
constexpr std::string_view ds_trace =
    "Set trace_steps and run_folder to write the times of some steps as a Chrome trace.";

constexpr std::string_view ds_curriculum =
    "In your own loop, order samples with data::curriculum(). In a recipe, set length_buckets: true for texts.";

/// The order of the rows has no meaning.
constexpr DeepSpeedKey ds_keys[] = {
    // Batches.
    {"train_batch_size", DeepSpeedKind::integer, "*", "", "batch_size"},
    {"train_micro_batch_size_per_gpu", DeepSpeedKind::integer, "*", "", "batch_size"},
    {"gradient_accumulation_steps", DeepSpeedKind::integer, "*", "", "gradient_accumulation_steps"},
    {"managed_gradient_accumulation", DeepSpeedKind::boolean, "true",
     "The trainer counts the batches of each optimizer step. Set gradient_accumulation_steps."},
    {"dataloader_drop_last", DeepSpeedKind::boolean, "false",
     "The trainer also uses the last batch, which can be smaller."},

    // Optimizer.
    {"optimizer", DeepSpeedKind::section},
    {"optimizer.type", DeepSpeedKind::text, "*", "", "optimizer"},
    {"optimizer.legacy_fusion", DeepSpeedKind::boolean},
    {"optimizer.params", DeepSpeedKind::section},
    {"optimizer.params.lr", DeepSpeedKind::number, "*", "", "lr"},
    {"optimizer.params.betas", DeepSpeedKind::list},
    {"optimizer.params.eps", DeepSpeedKind::number},
    {"optimizer.params.weight_decay", DeepSpeedKind::number, "*", "", "weight_decay"},
    {"optimizer.params.momentum", DeepSpeedKind::number, "*", "", "momentum"},
    {"optimizer.params.adam_w_mode", DeepSpeedKind::boolean},
    {"optimizer.params.torch_adam", DeepSpeedKind::boolean},
    {"optimizer.params.fused", DeepSpeedKind::boolean},
    {"optimizer.params.foreach", DeepSpeedKind::boolean},
    {"optimizer.params.set_grad_none", DeepSpeedKind::boolean},
    {"optimizer.params.bias_correction", DeepSpeedKind::boolean, "true", "adam and adamw always correct the bias."},
    {"optimizer.params.amsgrad", DeepSpeedKind::boolean, "false",
     "In your own loop, set amsgrad in optim::AdamWOptions."},
    {"optimizer.params.nesterov", DeepSpeedKind::boolean, "false",
     "In your own loop, set nesterov in optim::SGDOptions."},
    {"optimizer.params.dampening", DeepSpeedKind::number, "0", "In your own loop, set dampening in optim::SGDOptions."},
    {"optimizer.params.maximize", DeepSpeedKind::boolean, "false", "The trainer minimizes the loss."},
    {"optimizer.params.alpha", DeepSpeedKind::number, "0.99", "In your own loop, set alpha in optim::RMSpropOptions."},
    {"optimizer.params.centered", DeepSpeedKind::boolean, "false",
     "In your own loop, set centered in optim::RMSpropOptions."},
    {"optimizer.params.lr_decay", DeepSpeedKind::number, "0",
     "In your own loop, set lr_decay in optim::AdagradOptions."},
    {"optimizer.params.initial_accumulator_value", DeepSpeedKind::number, "0",
     "In your own loop, set initial_accumulator_value in optim::AdagradOptions."},
    {"optimizer.params.max_grad_norm", DeepSpeedKind::number, "0",
     "DeepSpeed reads gradient_clipping instead. Set max_grad_norm in the recipe.", "max_grad_norm"},
    {"optimizer.params.freeze_step", DeepSpeedKind::integer, "", ds_one_bit},
    {"optimizer.params.cuda_aware", DeepSpeedKind::boolean, "false", ds_one_bit},
    {"optimizer.params.comm_backend_name", DeepSpeedKind::text, "", ds_one_bit},

    // Learning rate schedule.
    {"scheduler", DeepSpeedKind::section},
    {"scheduler.type", DeepSpeedKind::text, "*", "", "lr_schedule"},
    {"scheduler.params", DeepSpeedKind::section},
    {"scheduler.params.warmup_min_lr", DeepSpeedKind::number, "0", "The warmup starts close to a learning rate of 0."},
    {"scheduler.params.warmup_max_lr", DeepSpeedKind::number, "*", "", "lr"},
    {"scheduler.params.warmup_num_steps", DeepSpeedKind::integer, "*", "", "warmup_epochs"},
    {"scheduler.params.warmup_type", DeepSpeedKind::text},
    {"scheduler.params.warmup_min_ratio", DeepSpeedKind::number, "0",
     "The warmup starts close to a learning rate of 0."},
    {"scheduler.params.total_num_steps", DeepSpeedKind::integer, "",
     "The schedule ends with the last epoch. Choose epochs so that the run has this number of optimizer steps.",
     "epochs"},
    {"scheduler.params.cos_min_ratio", DeepSpeedKind::number, "*", "", "lr_schedule_end"},
    {"scheduler.params.cycle_min_lr", DeepSpeedKind::number, "*", "", "lr_schedule_end"},
    {"scheduler.params.cycle_max_lr", DeepSpeedKind::number, "*", "", "lr"},
    {"scheduler.params.cycle_first_step_size", DeepSpeedKind::integer, "", ds_one_cycle},
    {"scheduler.params.cycle_second_step_size", DeepSpeedKind::integer, "", ds_one_cycle},
    {"scheduler.params.cycle_first_stair_count", DeepSpeedKind::integer, "0",
     "The learning rate changes in every step."},
    {"scheduler.params.cycle_second_stair_count", DeepSpeedKind::integer, "0",
     "The learning rate changes in every step."},
    {"scheduler.params.decay_step_size", DeepSpeedKind::integer, "0", "The cycle ends with the last step of the run."},
    {"scheduler.params.decay_lr_rate", DeepSpeedKind::number, "0", "The cycle ends with the last step of the run."},
    {"scheduler.params.cycle_momentum", DeepSpeedKind::boolean, "true", ds_momentum_cycle},
    {"scheduler.params.cycle_min_mom", DeepSpeedKind::number, "", ds_momentum_cycle},
    {"scheduler.params.cycle_max_mom", DeepSpeedKind::number, "", ds_momentum_cycle},
    {"scheduler.params.decay_mom_rate", DeepSpeedKind::number, "0", "The cycle ends with the last step of the run."},
    {"scheduler.params.lr_range_test_min_lr", DeepSpeedKind::number},  // with a type that is reported
    {"scheduler.params.lr_range_test_step_size", DeepSpeedKind::integer},
    {"scheduler.params.lr_range_test_step_rate", DeepSpeedKind::number},
    {"scheduler.params.lr_range_test_staircase", DeepSpeedKind::boolean},
    {"scheduler.params.last_batch_iteration", DeepSpeedKind::integer, "-1", "Use --resume to continue a run."},

    // Precision.
    {"fp16", DeepSpeedKind::section},
    {"fp16.enabled", DeepSpeedKind::boolean, "*", "", "precision"},
    {"fp16.auto_cast", DeepSpeedKind::boolean},
    {"fp16.loss_scale", DeepSpeedKind::number, "0", "Bellows always adapts the loss scale during training."},
    {"fp16.initial_scale_power", DeepSpeedKind::integer, "16",
     "The loss scale starts at 2^16, and adapts during training."},
    {"fp16.loss_scale_window", DeepSpeedKind::integer, "1000, 2000",
     "The loss scale is raised after 2,000 steps without an overflow."},
    {"fp16.hysteresis", DeepSpeedKind::integer, "1, 2", "The loss scale is lowered after each overflow."},
    {"fp16.consecutive_hysteresis", DeepSpeedKind::boolean},
    {"fp16.min_loss_scale", DeepSpeedKind::number, "0, 1", "The loss scale has no minimum."},
    {"fp16.fused_mode", DeepSpeedKind::boolean},
    {"fp16.fp16_master_weights_and_grads", DeepSpeedKind::boolean, "false", ds_amp_level},
    {"bf16", DeepSpeedKind::section},
    {"bf16.enabled", DeepSpeedKind::boolean, "*", "", "precision"},
    {"bf16.immediate_grad_update", DeepSpeedKind::boolean},
    {"bf16.check_grad_overflow", DeepSpeedKind::boolean},
    {"bf16.bf16_master_weights_and_grads", DeepSpeedKind::boolean, "false", ds_amp_level},
    {"bf16.bf16_optimizer_states", DeepSpeedKind::boolean, "false", ds_amp_level},
    {"torch_autocast", DeepSpeedKind::section},
    {"torch_autocast.enabled", DeepSpeedKind::boolean, "*", "", "precision"},
    {"torch_autocast.dtype", DeepSpeedKind::text, "*", "", "precision"},
    {"torch_autocast.lower_precision_safe_modules", DeepSpeedKind::list, "",
     "Set gradient_compression: bf16 to send gradients in 16 bits."},
    {"amp", DeepSpeedKind::section},
    {"amp.enabled", DeepSpeedKind::boolean, "*", "", "precision"},
    {"amp.opt_level", DeepSpeedKind::text, "*", "", "amp_level"},
    {"amp.loss_scale", DeepSpeedKind::any, "\"dynamic\"", "Bellows always adapts the loss scale during training."},
    {"data_types", DeepSpeedKind::section},
    {"data_types.grad_accum_dtype", DeepSpeedKind::text, "*", "", "gradient_accumulation_dtype"},
    {"data_types.param_dtype", DeepSpeedKind::text, "", "Set precision and amp_level.", "precision"},
    {"data_types.buffer_dtype", DeepSpeedKind::text, "", "Buffers keep their dtype."},

    // Gradients and communication.
    {"gradient_clipping", DeepSpeedKind::number, "*", "", "max_grad_norm"},
    {"prescale_gradients", DeepSpeedKind::boolean, "false", ds_average},
    {"gradient_predivide_factor", DeepSpeedKind::number, "1", ds_average},
    {"gradient_allreduce_op", DeepSpeedKind::text, "\"mean\"", "Gradients are averaged over the ranks. Adapt lr."},
    {"sparse_gradients", DeepSpeedKind::boolean, "false", "Gradients of embeddings are sent as dense tensors."},
    {"communication_data_type", DeepSpeedKind::text, "*", "", "gradient_compression"},
    {"seq_parallel_comm_data_type", DeepSpeedKind::text, "\"fp32\"", "Recipes do not divide sequences among ranks."},
    {"disable_allgather", DeepSpeedKind::boolean},

    // ZeRO.
    {"zero_allow_untested_optimizer", DeepSpeedKind::boolean},
    {"zero_force_ds_cpu_optimizer", DeepSpeedKind::boolean},
    {"zero_optimization", DeepSpeedKind::section},
    {"zero_optimization.stage", DeepSpeedKind::integer, "*", "", "data_parallel"},
    {"zero_optimization.reduce_bucket_size", DeepSpeedKind::integer, "*", "", "bucket_mb"},
    {"zero_optimization.allgather_bucket_size", DeepSpeedKind::integer, "200000000, 500000000",
     "bucket_mb is the size of all buckets.", "bucket_mb"},
    {"zero_optimization.stage3_prefetch_bucket_size", DeepSpeedKind::integer, "*", "", "bucket_mb"},
    {"zero_optimization.overlap_comm", DeepSpeedKind::boolean, "true", "Communication always overlaps with backward."},
    {"zero_optimization.contiguous_gradients", DeepSpeedKind::boolean, "true", "Gradients are always sent in buckets."},
    {"zero_optimization.reduce_scatter", DeepSpeedKind::boolean},
    {"zero_optimization.allgather_partitions", DeepSpeedKind::boolean},
    {"zero_optimization.use_multi_rank_bucket_allreduce", DeepSpeedKind::boolean},
    {"zero_optimization.round_robin_gradients", DeepSpeedKind::boolean},
    {"zero_optimization.load_from_fp32_weights", DeepSpeedKind::boolean},
    {"zero_optimization.elastic_checkpoint", DeepSpeedKind::boolean},
    {"zero_optimization.ignore_unused_parameters", DeepSpeedKind::boolean},
    {"zero_optimization.legacy_stage1", DeepSpeedKind::boolean},
    {"zero_optimization.parameter_alignment", DeepSpeedKind::boolean},
    {"zero_optimization.compute_grad_norm", DeepSpeedKind::boolean},
    {"zero_optimization.memory_efficient_linear", DeepSpeedKind::boolean},
    {"zero_optimization.override_module_apply", DeepSpeedKind::boolean},
    {"zero_optimization.pipeline_loading_checkpoint", DeepSpeedKind::boolean},
    {"zero_optimization.log_trace_cache_warnings", DeepSpeedKind::boolean},
    {"zero_optimization.enable_sanity_checks", DeepSpeedKind::boolean},
    {"zero_optimization.save_muon_momentum_buffer_in_memory", DeepSpeedKind::boolean},
    {"zero_optimization.sub_group_size", DeepSpeedKind::integer},
    {"zero_optimization.offload_optimizer", DeepSpeedKind::section},
    {"zero_optimization.offload_optimizer.device", DeepSpeedKind::text, "*", "", "offload_state"},
    {"zero_optimization.offload_optimizer.nvme_path", DeepSpeedKind::text, "*", "", "offload_shard_folder"},
    {"zero_optimization.offload_optimizer.ratio", DeepSpeedKind::number, "1", "All optimizer state is offloaded."},
    {"zero_optimization.offload_optimizer.buffer_count", DeepSpeedKind::integer},
    {"zero_optimization.offload_optimizer.pin_memory", DeepSpeedKind::boolean},
    {"zero_optimization.offload_optimizer.pipeline", DeepSpeedKind::boolean},
    {"zero_optimization.offload_optimizer.pipeline_read", DeepSpeedKind::boolean},
    {"zero_optimization.offload_optimizer.pipeline_write", DeepSpeedKind::boolean},
    {"zero_optimization.offload_optimizer.fast_init", DeepSpeedKind::boolean},
    {"zero_optimization.offload_param", DeepSpeedKind::section},
    {"zero_optimization.offload_param.device", DeepSpeedKind::text, "*", "", "offload_parameters"},
    {"zero_optimization.offload_param.nvme_path", DeepSpeedKind::text, "*", "", "offload_shard_folder"},
    {"zero_optimization.offload_param.buffer_count", DeepSpeedKind::integer},
    {"zero_optimization.offload_param.buffer_size", DeepSpeedKind::integer},
    {"zero_optimization.offload_param.max_in_cpu", DeepSpeedKind::integer},
    {"zero_optimization.offload_param.pin_memory", DeepSpeedKind::boolean},
    {"zero_optimization.cpu_offload", DeepSpeedKind::boolean, "*", "", "offload_state"},
    {"zero_optimization.cpu_offload_param", DeepSpeedKind::boolean, "*", "", "offload_parameters"},
    {"zero_optimization.cpu_offload_params", DeepSpeedKind::boolean, "*", "", "offload_parameters"},
    {"zero_optimization.cpu_offload_use_pin_memory", DeepSpeedKind::boolean},
    {"zero_optimization.stage3_max_live_parameters", DeepSpeedKind::integer, "1000000000", ds_two_buckets},
    {"zero_optimization.stage3_max_reuse_distance", DeepSpeedKind::integer, "1000000000", ds_two_buckets},
    {"zero_optimization.stage3_param_persistence_threshold", DeepSpeedKind::integer, "100000",
     "ZeRO-3 shards small parameters, too. They share buckets with others."},
    {"zero_optimization.stage3_model_persistence_threshold", DeepSpeedKind::integer},
    {"zero_optimization.stage3_module_granularity_threshold", DeepSpeedKind::integer},
    {"zero_optimization.stage3_partition_stream_chunk_size", DeepSpeedKind::integer},
    {"zero_optimization.stage3_gather_16bit_weights_on_model_save", DeepSpeedKind::boolean},
    {"zero_optimization.stage3_gather_fp16_weights_on_model_save", DeepSpeedKind::boolean},
    {"zero_optimization.stage3_use_all_reduce_for_fetch_params", DeepSpeedKind::boolean},
    {"zero_optimization.stage3_allgather_sequential", DeepSpeedKind::boolean},
    {"zero_optimization.zero_hpz_partition_size", DeepSpeedKind::integer, "0, 1",
     "All ranks share one copy of the parameters. Set mesh to shard within groups of ranks (hybrid sharding)."},
    {"zero_optimization.mics_shard_size", DeepSpeedKind::integer, "-1",
     "All ranks share one copy of the parameters. Set mesh to shard within groups of ranks (hybrid sharding)."},
    {"zero_optimization.mics_hierarchical_params_gather", DeepSpeedKind::boolean, "false",
     "Parameters are gathered in one collective."},
    {"zero_optimization.zero_quantized_weights", DeepSpeedKind::boolean, "false", ds_quantized_sharding},
    {"zero_optimization.zero_quantized_nontrainable_weights", DeepSpeedKind::boolean, "false", ds_quantized_sharding},
    {"zero_optimization.zero_quantized_gradients", DeepSpeedKind::boolean, "false", ds_quantized_sharding},
    {"zero_optimization.zeropp_loco_param", DeepSpeedKind::feature, "", ds_quantized_sharding},
    {"zero_optimization.zenflow", DeepSpeedKind::feature, "", ds_zenflow},
    {"zero_optimization.leaf_module", DeepSpeedKind::feature, "", "Set shard_units to gather a module as a whole."},
    {"aio", DeepSpeedKind::any},  // only for offloading to a disk, which is reported

    // Activations.
    {"activation_checkpointing", DeepSpeedKind::section},
    {"activation_checkpointing.partition_activations", DeepSpeedKind::boolean, "false",
     "Ranks do not share saved activations. Set recompute: blocks to save less of them."},
    {"activation_checkpointing.cpu_checkpointing", DeepSpeedKind::boolean, "false",
     "Set offload_folder to a folder on a fast disk. Activations stay there until backward."},
    {"activation_checkpointing.number_checkpoints", DeepSpeedKind::integer, "0",
     "recompute: blocks recomputes every block. Set activation_memory_budget to save a part of the activations."},
    {"activation_checkpointing.contiguous_memory_optimization", DeepSpeedKind::boolean},
    {"activation_checkpointing.synchronize_checkpoint_boundary", DeepSpeedKind::boolean},
    {"activation_checkpointing.profile", DeepSpeedKind::boolean, "false", ds_trace},

    // Logs.
    {"steps_per_print", DeepSpeedKind::integer, "*", "", "logging_steps"},
    {"wall_clock_breakdown", DeepSpeedKind::boolean, "false", ds_trace},
    {"memory_breakdown", DeepSpeedKind::boolean, "false", "Run `bellows plan`, which shows the memory of a step."},
    {"dump_state", DeepSpeedKind::boolean},
    {"flops_profiler", DeepSpeedKind::feature, "enabled", ds_trace},
    {"comms_logger", DeepSpeedKind::feature, "enabled", ds_trace},
    {"tensorboard", DeepSpeedKind::section},
    {"tensorboard.enabled", DeepSpeedKind::boolean, "*", "", "log"},
    {"tensorboard.output_path", DeepSpeedKind::text, "\"\"", ds_run_folder},
    {"tensorboard.job_name", DeepSpeedKind::text, "\"DeepSpeedJobName\"", ds_run_folder},
    {"csv_monitor", DeepSpeedKind::section},
    {"csv_monitor.enabled", DeepSpeedKind::boolean, "*", "", "log"},
    {"csv_monitor.output_path", DeepSpeedKind::text, "\"\"", ds_run_folder},
    {"csv_monitor.job_name", DeepSpeedKind::text, "\"DeepSpeedJobName\"", ds_run_folder},
    {"wandb", DeepSpeedKind::feature, "enabled", "Set log: csv, tensorboard, and upload the files of the run folder."},
    {"comet", DeepSpeedKind::feature, "enabled", "Set log: csv, tensorboard, and upload the files of the run folder."},
    {"trackio", DeepSpeedKind::feature, "enabled",
     "Set log: csv, tensorboard, and upload the files of the run folder."},
    {"timers", DeepSpeedKind::any},
    {"log_level", DeepSpeedKind::any},

    // Other features.
    {"autotuning", DeepSpeedKind::feature, "enabled",
     "Run `bellows ladder` or `bellows plan --fit`, which find a fast recipe."},
    {"checkpoint", DeepSpeedKind::section},
    {"checkpoint.tag_validation", DeepSpeedKind::text},
    {"checkpoint.load_universal", DeepSpeedKind::boolean},  // checkpoints load on any number of ranks
    {"checkpoint.parallel_write", DeepSpeedKind::any},
    {"checkpoint.use_node_local_storage", DeepSpeedKind::boolean, "false",
     "All ranks write to one run folder, which must be on a shared file system."},
    {"compile", DeepSpeedKind::feature, "", "Set compile: step to compile the training step on the CPU."},
    {"compression_training", DeepSpeedKind::feature, "enabled",
     "Set quantize: int8 for quantization-aware training, or run `bellows quantize` after training."},
    {"quantize_training", DeepSpeedKind::feature, "", "Set quantize: int8 for quantization-aware training."},
    {"weight_quantization", DeepSpeedKind::feature, "", "Run `bellows quantize` after training."},
    {"curriculum_learning", DeepSpeedKind::feature, "enabled", ds_curriculum},
    {"data_efficiency", DeepSpeedKind::feature, "enabled", ds_curriculum},
    {"elasticity", DeepSpeedKind::feature, "enabled",
     "Run `bellows launch --max-restarts K --min-ranks M`. The batch size stays the same on any number of ranks."},
    {"eigenvalue", DeepSpeedKind::feature, "enabled", "Eigenvalues of the Hessian are not computed."},
    {"expert_parallel", DeepSpeedKind::feature, "enabled", "Expert parallelism is not available."},
    {"graph_harvesting", DeepSpeedKind::boolean, "false", "CUDA graphs are not available."},
    {"hybrid_engine", DeepSpeedKind::feature, "enabled", "Training and text generation use separate models."},
    {"nebula", DeepSpeedKind::feature, "enabled", "async_checkpoints: true writes checkpoints in the background."},
    {"datastates", DeepSpeedKind::feature, "", "async_checkpoints: true writes checkpoints in the background."},
    {"pipeline", DeepSpeedKind::feature, "", "Set mesh to {pipeline: N} to divide the model into N stages."},
    {"progressive_layer_drop", DeepSpeedKind::feature, "enabled", "Layers are not dropped during training."},
    {"sparse_attention", DeepSpeedKind::feature, "", "Attention is dense."},
    {"tensor_parallel", DeepSpeedKind::feature, "", "Set mesh to {tensor: N} to divide the layers among N ranks."},
    {"use_data_before_expert_parallelism", DeepSpeedKind::boolean},
    {"vocabulary_size", DeepSpeedKind::any},
    {"disable_python_gc", DeepSpeedKind::boolean},
};

}  // namespace

std::span<const DeepSpeedKey> deepspeed_keys() {
  return ds_keys;
}

const DeepSpeedKey* find_deepspeed_key(std::string_view path) {
  const auto* found = std::ranges::find(ds_keys, path, &DeepSpeedKey::path);
  return found == std::end(ds_keys) ? nullptr : found;
}

}  // namespace bellows::train
