#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace bellows::train {

/// All settings of a training run, as a plain struct that can be read from and written to YAML. Each member is a YAML
/// key of the same name. Settings that change results come first. Settings that only affect speed and memory follow,
/// then output settings.
struct Recipe {
  // Training: model, data, optimization.
  std::string model = "digits_resnet";
  int64_t num_classes = 0;
  std::string data;
  std::string eval_data;
  std::string eval_split;
  std::string subset;
  std::string weights;
  int64_t epochs = 10;
  int64_t batch_size = 32;
  int64_t batch_size_per_rank = 0;
  int64_t image_size = 0;
  std::string tokenizer;
  std::string text_field;
  std::string features;
  std::string target;
  std::string loss = "auto";
  std::string metrics;
  int64_t max_length = 0;
  bool length_buckets = false;
  std::string optimizer = "auto";
  double lr = 0;
  double momentum = 0.9;
  double weight_decay = 5e-4;
  double warmup_epochs = 0;
  std::string lr_schedule = "constant";
  double lr_schedule_end = 0;
  int64_t gradient_accumulation_steps = 1;
  std::string gradient_accumulation_dtype = "auto";
  double max_grad_norm = 0;
  double max_grad_value = 0;
  double label_smoothing = 0;
  std::string teacher;
  std::string teacher_weights;
  double distill = 0.7;
  double distill_temperature = 2;
  std::string distill_init = "none";
  std::string teacher_dtype = "auto";
  bool teacher_compile = false;
  std::string teacher_cache;
  int64_t teacher_top = 0;
  std::string quantize = "none";
  std::string quantize_scales = "observed";
  int64_t quantize_start_step = 0;
  int64_t batch_norm_freeze_step = 0;
  double ema_decay = 0;
  bool sync_batch_norm = false;
  int64_t batch_size_start = 0;
  int64_t image_size_start = 0;
  double growth_epochs = 0;
  std::string augment = "none";
  std::string bad_samples = "fail";
  std::string on_nan = "stop";
  int64_t seed = 1;
  double target_accuracy = 0;
  int64_t eval_steps = 0;
  int64_t early_stopping_patience = 0;

  // Speed and memory.
  std::string device = "cpu";
  std::string precision = "fp32";
  std::string amp_level = "O1";
  bool channels_last = false;
  std::string optimizer_impl = "auto";
  std::string optimizer_state = "auto";
  int64_t num_workers = 2;
  int64_t prefetch = 4;
  int64_t image_cache_mb = 0;
  bool allocator_reuse = false;
  bool fast_random = false;
  bool deterministic = false;
  bool require_seed = false;
  std::string compile = "none";
  double memory_budget = 1;
  bool optimizer_in_backward = false;
  std::string recompute = "none";
  double activation_memory_budget = 0;
  int64_t activation_memory_budget_mb = 0;
  std::string activation_dtype = "full";
  std::string offload_folder;
  int64_t offload_reserve_mb = 0;
  std::string data_parallel = "ddp";
  int64_t replicas = 0;
  std::string gradient_compression = "none";
  int64_t bucket_mb = 25;
  std::string shard_units;
  bool reshard_after_forward = true;
  bool sync_each_batch = true;
  bool shard_frozen = false;
  int64_t gathered_frozen_mb = -1;
  std::string mesh;
  bool shard_state_over_all = false;
  std::string tensor_plan = "auto";
  bool sequence_parallel = false;
  std::string context_method = "ring";
  std::string pipeline_schedule = "1f1b";
  int64_t micro_batches = 0;
  int64_t pipeline_stages = 1;
  std::string offload_parameters = "none";
  std::string offload_state = "none";
  std::string offload_shard_folder;
  int64_t reproducible_ranks = 0;

  // Output: checkpoints, logs, traces.
  std::string run_folder;
  int64_t save_steps = 0;
  int64_t save_total_limit = 3;
  int64_t save_top_k = 0;
  bool async_checkpoints = true;
  std::string log = "csv";
  std::string trace_steps;
  int64_t logging_steps = 20;
  std::string train_metrics = "device";
  bool sample_stats = false;

  /// Params: where – name of the text in error messages, such as a path
  /// Throws: c10::ValueError if a key is unknown (the message has its new name or suggests the nearest key). It is also
  ///         thrown if a value has the wrong type or range (the message has key, value and line)
  static Recipe parse(std::string_view text, std::string_view where = "recipe");
  /// Throws: c10::ValueError if parse() throws it or the file cannot be read
  static Recipe load(const std::string& path);

  /// Applies a command-line override such as "lr=0.1".
  /// Throws: c10::ValueError if parse() would reject the key or value
  void set(std::string_view key_equals_value);

  /// Checks the ranges of all members and their combinations. parse() and load() call it.
  /// Throws: c10::ValueError if a check fails (the message has the key, its value and the allowed values)
  void validate() const;

  /// Returns the complete recipe as YAML. parse() restores an equal recipe from it.
  /// Params: comments – write the description above each key
  std::string to_yaml(bool comments = false) const;

  bool operator==(const Recipe&) const = default;
};

/// A row of the table from which recipes are read, written, checked and documented.
struct RecipeField {
  std::string name;           ///< the key
  std::string type;           ///< "integer", "number", "true or false" or "text"
  std::string allowed;        ///< such as "fp32, bf16", "1 …" or "0 … 1"; empty if any value is allowed
  std::string default_value;  ///< as YAML
  std::string help;
  bool changes_bits = false;  ///< a different value changes results or their rounding
  std::string former_name;    ///< key in older versions; empty if the key was not renamed
};

/// Returns all keys, in the order of the struct's members.
std::vector<RecipeField> recipe_fields();

/// Describes a setting that conflicts with optimizer_in_backward, such as "max_grad_norm = 1 needs …". Such settings
/// need gradients after backward, but optimizer_in_backward frees them. The description is empty if nothing conflicts.
std::string optimizer_in_backward_conflict(const Recipe& recipe);

}  // namespace bellows::train
