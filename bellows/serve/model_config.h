#pragma once

#include <c10/core/ScalarType.h>

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "bellows/runtime/backend.h"

namespace bellows::serve {

/// An input or output of a model, as clients see it.
struct TensorSpec {
  std::string name{};
  c10::ScalarType dtype = c10::kFloat;  ///< bytes_dtype for BYTES
  std::vector<int64_t> dims{};          ///< without the batch axis; -1 for a size that may vary
  std::string label_file{};           ///< of outputs: file with the names of classes, in the model's folder; may be ""
  std::vector<std::string> labels{};  ///< the lines of `label_file`
};

/// Returns whether a tensor of these sizes fits the description.
/// Params: batched – whether the sizes have a batch axis, which may have any size
bool sizes_fit(const TensorSpec& spec, bool batched, std::span<const int64_t> sizes);

/// The rules for requests that wait in a queue.
struct QueuePolicy {
  bool delay_on_timeout = false;        ///< requests that time out run after all others, instead of being rejected
  uint64_t default_timeout_us = 0;      ///< 0: no timeout
  bool allow_timeout_override = false;  ///< requests may state a shorter timeout
  uint64_t max_queue_size = 0;          ///< 0: the limit of the server
};

struct DynamicBatching {
  std::vector<int64_t> preferred_sizes{};  ///< in increasing order
  uint64_t max_queue_delay_us = 0;
  uint64_t priority_levels = 0;  ///< 0: all requests have the same priority. Level 1 is the highest
  uint64_t default_priority_level = 0;
  QueuePolicy default_policy{};
  std::map<uint64_t, QueuePolicy> priority_policies{};
};

struct VersionPolicy {
  enum class Kind { latest, all, specific };
  Kind kind = Kind::latest;
  int64_t count = 1;                ///< for `latest`
  std::vector<int64_t> versions{};  ///< for `specific`

  /// Returns the versions to load, in increasing order.
  std::vector<int64_t> select(std::vector<int64_t> available) const;
};

struct WarmupInput {
  std::string name{};
  c10::ScalarType dtype = c10::kFloat;
  std::vector<int64_t> dims{};  ///< without the batch axis
  bool random = false;          ///< random values; otherwise zeros
};

/// A request that runs when the model is loaded, before clients use the model.
struct Warmup {
  std::string name{};
  int64_t batch_size = 0;
  int64_t count = 1;
  std::vector<WarmupInput> inputs{};
};

/// Requests of different lengths are combined by padding their inputs (parameters pad_axis, pad_buckets, pad_values).
struct PadOptions {
  int64_t axis = 1;                        ///< counted with the batch axis
  std::vector<int64_t> buckets{};          ///< lengths to pad to, in increasing order; empty: the longest of the batch
  std::map<std::string, double> values{};  ///< that fill an input; 0 for other inputs
};

/// The server tokenizes texts for the model (parameters tokenizer, tokenizer_max_length).
struct TextOptions {
  std::string tokenizer{};  ///< file in the model's folder, or "bytes"
  int64_t max_length = 0;   ///< longer texts are truncated to this number of tokens; 0: no limit
};

/// A step of an ensemble: one call of another model.
struct EnsembleStep {
  std::string model{};
  int64_t version = 0;                          ///< 0: the newest one
  std::map<std::string, std::string> inputs{};  ///< from inputs of the model to tensors of the ensemble
  std::map<std::string, std::string> outputs{};
};

/// An input that tells the model about the sequence of each row.
struct SequenceControl {
  enum class Kind { start, ready, end, id };
  std::string input{};
  Kind kind = Kind::start;
  c10::ScalarType dtype = c10::kFloat;
  double if_false = 0, if_true = 1;
};

/// A tensor that the server keeps for each sequence: an output of a request becomes an input of the next one.
struct SequenceState {
  std::string input{}, output{};
  c10::ScalarType dtype = c10::kFloat;
  std::vector<int64_t> dims{};          ///< without the batch axis
  std::vector<int64_t> initial_dims{};  ///< of the zeros for the first request
};

struct SequenceBatching {
  uint64_t max_idle_us = 1'000'000;  ///< a sequence without requests ends after this time
  std::vector<SequenceControl> controls{};
  std::vector<SequenceState> states{};
};

/// A file `config.pbtxt`, with the defaults for missing fields.
struct ModelConfig {
  std::string name{};
  std::string backend{};       ///< name of a back end in bellows/runtime; "": the first one that reads the file
  std::string platform{};      ///< as in the file
  std::string model_file{};    ///< "": the file `model.*`
  int64_t max_batch_size = 0;  ///< 0: tensors have no batch axis, and requests are never combined
  std::vector<TensorSpec> inputs{}, outputs{};
  int64_t instances = 1;
  std::optional<DynamicBatching> dynamic_batching{};  ///< nothing: each request runs alone
  bool batch_invariant = false;  ///< the bits of an answer do not depend on the other requests of its batch
  VersionPolicy version_policy{};
  std::vector<Warmup> warmups{};
  std::map<std::string, std::string> parameters{};
  std::optional<PadOptions> padding{};
  std::optional<TextOptions> text{};
  std::vector<EnsembleStep> ensemble{};  ///< empty if the model is no ensemble
  std::optional<SequenceBatching> sequences{};
};

/// Reads a configuration in protobuf's text format.
/// Params:  where    – name of the file, for error messages
///          warnings – receives a message for each unknown field and each field without effect
/// Throws:  c10::ValueError if the text is malformed or a value is invalid (the message states the line)
ModelConfig parse_model_config(std::string_view text, const std::string& where, std::vector<std::string>& warnings);

/// Where each tensor of the configuration is in the model's lists.
struct TensorOrder {
  std::vector<size_t> inputs{};   ///< for each input of the model: its index in the configuration
  std::vector<size_t> outputs{};  ///< for each output of the configuration: its index in the model
};

/// Adds the inputs and outputs that the configuration does not describe, and checks the others against the model. Names
/// that end with "__0", "__1", … are positions, as in Triton's configurations of TorchScript files.
/// Control inputs and states of sequences are not part of the configuration's lists. They are at the end of the order, in
/// the order of the configuration's controls and states.
/// Throws: c10::ValueError if the configuration contradicts the model, or if neither of them states dtypes and sizes
TensorOrder complete_model_config(ModelConfig& config, const runtime::InferenceModel& model);

/// Returns the configuration as the JSON object of Triton's model configuration extension.
std::string model_config_json(const ModelConfig& config);

}  // namespace bellows::serve
