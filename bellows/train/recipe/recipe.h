#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace bellows::train {

/// Everything that decides a training run: one plain struct, read from and written to YAML. What changes the result
/// stands first, what changes only speed and memory second, what only watches last. Each member is one key of the same
/// name.
struct Recipe {
  // What is trained, on what.
  std::string model = "digits_resnet";
  int64_t num_classes = 0;
  std::string data;
  std::string eval_data;
  std::string subset;
  std::string weights;
  int64_t epochs = 10;
  int64_t batch_size = 32;
  int64_t image_size = 0;
  std::string tokenizer;
  std::string text_field;
  int64_t sequence_length = 0;
  bool length_buckets = false;
  std::string optimizer = "sgd";
  double lr = 0.05;
  double momentum = 0.9;
  double weight_decay = 5e-4;
  double warmup_epochs = 0;
  std::string schedule = "constant";
  double schedule_end = 0;
  int64_t accumulate = 1;
  std::string accumulate_dtype = "auto";
  double clip_norm = 0;
  double clip_value = 0;
  double label_smoothing = 0;
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
  int64_t eval_every = 0;
  int64_t patience = 0;

  // How fast, at what cost in memory.
  std::string device = "cpu";
  std::string precision = "fp32";
  std::string precision_level = "O1";
  bool channels_last = false;
  std::string optimizer_impl = "auto";
  std::string optimizer_state = "auto";
  int64_t loader_threads = 2;
  int64_t prefetch = 4;
  int64_t cache_mb = 0;
  bool keep_freed_memory = false;
  std::string compile = "none";
  bool step_in_backward = false;
  std::string recompute = "none";
  double recompute_keep = 0;
  int64_t recompute_keep_mb = 0;
  std::string activations = "full";
  std::string offload_folder;
  int64_t offload_reserve_mb = 0;
  std::string data_parallel = "ddp";
  std::string gradient_compression = "none";
  int64_t bucket_mb = 25;

  // What is kept and shown.
  std::string run_folder;
  int64_t checkpoint_every = 0;
  int64_t keep_checkpoints = 3;
  int64_t keep_best = 0;
  bool async_checkpoints = true;
  std::string log = "csv";
  std::string trace_steps;
  int64_t log_every = 20;
  std::string train_metrics = "device";
  bool sample_stats = false;

  /// Params: where – how messages call the text: a path
  /// Throws: c10::ValueError – unknown key (with the nearest one), wrong type or range: key, value, line
  static Recipe parse(std::string_view text, std::string_view where = "recipe");
  /// Throws: c10::ValueError – as parse(), and when the file cannot be read
  static Recipe load(const std::string& path);

  /// One command-line override: "lr=0.1".
  /// Throws: c10::ValueError – as parse()
  void set(std::string_view key_equals_value);

  /// Checks the ranges of all members and what must hold between them; parse() and load() did so already.
  /// Throws: c10::ValueError – key, value, what is allowed
  void validate() const;

  /// The whole recipe; parse(to_yaml()) == *this.
  /// Params: comments – say above each key what it means
  std::string to_yaml(bool comments = false) const;

  bool operator==(const Recipe&) const = default;
};

/// One row of the table that reads, writes, checks and documents recipes.
struct RecipeField {
  std::string name;           ///< the key
  std::string type;           ///< "integer", "number", "true or false", "text"
  std::string allowed;        ///< "fp32, bf16", "1 …", "0 … 1"; "" for any
  std::string default_value;  ///< as YAML
  std::string help;
  bool changes_bits = false;  ///< another value gives other numbers, or the same ones rounded otherwise
};

/// All keys, in the order of the struct.
std::vector<RecipeField> recipe_fields();

/// What of the recipe needs gradients that outlive backward: "clip_norm = 1 needs …"; "": nothing.
std::string step_in_backward_conflict(const Recipe& recipe);

}  // namespace bellows::train
