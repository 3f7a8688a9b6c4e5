#include "bellows/serve/model_config.h"

#include <c10/util/Exception.h>
#include <google/protobuf/io/tokenizer.h>
#include <google/protobuf/text_format.h>

#include <algorithm>
#include <charconv>
#include <set>
#include <utility>

#include "bellows/core/error.h"
#include "bellows/serve/model_config.pb.h"
#include "bellows/serve/tensor_types.h"

namespace bellows::serve {

namespace {

constexpr int64_t largest_batch = 1 << 20, most_instances = 1024;

/// Collects the messages of protobuf's parser.
class Messages final : public google::protobuf::io::ErrorCollector {
 public:
  Messages(const std::string& where, std::vector<std::string>& warnings) : where_(where), warnings_(warnings) {}

  void AddError(int line, int column, const std::string& message) override {
    if (error_.empty()) error_ = place(line, column) + message;
  }
  void AddWarning(int line, int column, const std::string& message) override {
    warnings_.push_back(place(line, column) + message);
  }
  const std::string& error() const { return error_; }

 private:
  // Lines are counted from 0, and -1 means that there is no line.
  std::string place(int line, int column) const {
    return where_ + (line < 0 ? ": " : ":" + std::to_string(line + 1) + ":" + std::to_string(column + 1) + ": ");
  }

  const std::string& where_;
  std::vector<std::string>& warnings_;
  std::string error_{};
};

/// Converts the messages to the structs and checks their values.
class Conversion {
 public:
  Conversion(const std::string& where, std::vector<std::string>& warnings) : where_(where), warnings_(warnings) {}

  ModelConfig model(const config::ModelConfig& from) {
    ModelConfig to;
    to.name = from.name();
    to.platform = from.platform();
    to.backend = backend_name(from);
    to.model_file = plain_file(from.default_model_filename(), "default_model_filename");
    to.max_batch_size = in_range(from.max_batch_size(), 0, largest_batch, "max_batch_size");
    for (const auto& input : from.input()) to.inputs.push_back(tensor(input, "input", to.inputs));
    for (const auto& output : from.output()) {
      to.outputs.push_back(tensor(output, "output", to.outputs));
      to.outputs.back().label_file = plain_file(output.label_filename(), "label_filename");
    }
    to.instances = instances(from);
    if (from.has_dynamic_batching()) to.dynamic_batching = batching(from.dynamic_batching(), to.max_batch_size);
    to.version_policy = versions(from.version_policy());
    for (const auto& one : from.model_warmup()) to.warmups.push_back(warmup(one));
    for (const auto& [key, value] : from.parameters()) to.parameters[key] = value.string_value();
    for (const auto& step : from.ensemble_scheduling().step()) to.ensemble.push_back(ensemble_step(step));
    TORCH_CHECK_VALUE(to.ensemble.empty() != (to.platform == "ensemble" || from.has_ensemble_scheduling()), where_,
                      ": the platform \"ensemble\" needs ensemble_scheduling with at least one step.");
    if (from.has_sequence_batching()) to.sequences = sequences(from.sequence_batching());
    apply_parameters(to);
    check_combinations(to);
    return to;
  }

 private:
  static constexpr std::pair<const char*, const char*> triton_names[] = {{"pytorch", "libtorch"},
                                                                         {"pytorch_libtorch", "libtorch"},
                                                                         {"libtorch", "libtorch"},
                                                                         {"onnxruntime", "onnxruntime"},
                                                                         {"tensorrt_plan", "tensorrt"},
                                                                         {"tensorrt", "tensorrt"},
                                                                         {"onnxruntime_onnx", "onnxruntime"}};

  static std::string backend_name(const config::ModelConfig& from) {
    const std::string& given = from.backend().empty() ? from.platform() : from.backend();
    for (const auto& [triton, own] : triton_names) {
      if (given == triton) return own;
    }
    return given;
  }

  /// The path must not lead out of the model's folder.
  std::string plain_file(const std::string& name, const char* field) const {
    TORCH_CHECK_VALUE(name.find('/') == std::string::npos && name != ".." && name.find('\0') == std::string::npos,
                      where_, ": ", field, ": expected the name of a file without a folder, got \"", name, "\".");
    return name;
  }

  int64_t in_range(int64_t value, int64_t low, int64_t high, const char* field) const {
    TORCH_CHECK_VALUE(value >= low && value <= high, where_, ": ", field, ": expected an integer from ", low, " to ",
                      high, ", got ", value, ".");
    return value;
  }

  c10::ScalarType dtype(config::DataType type, const std::string& of) const {
    if (type == config::TYPE_STRING) return bytes_dtype;
    const std::string name = config::DataType_Name(type);
    const auto known = type_named(std::string_view(name).substr(std::min<size_t>(name.size(), 5)));
    TORCH_CHECK_VALUE(
        known, where_, ": ", of, ": data_type ", name.empty() ? "is unknown" : name + " is not supported",
        ". Supported: TYPE_BOOL, TYPE_UINT8 to TYPE_UINT64, TYPE_INT8 to TYPE_INT64, TYPE_FP16, TYPE_BF16, "
        "TYPE_FP32, TYPE_FP64 and TYPE_STRING.");
    return *known;
  }

  std::vector<int64_t> dims(const google::protobuf::RepeatedField<int64_t>& from, const std::string& of) const {
    for (const int64_t size : from)
      TORCH_CHECK_VALUE(size >= -1 && size != 0, where_, ": ", of, ": dims: expected sizes above 0, or -1, got ", size,
                        ".");
    return {from.begin(), from.end()};
  }

  template <class Tensor>
  TensorSpec tensor(const Tensor& from, const char* field, const std::vector<TensorSpec>& before) const {
    TORCH_CHECK_VALUE(!from.name().empty(), where_, ": ", field, " ", before.size(), " has no name.");
    const std::string of = std::string(field) + " \"" + from.name() + "\"";
    TORCH_CHECK_VALUE(std::ranges::find(before, from.name(), &TensorSpec::name) == before.end(), where_, ": ", of,
                      " is described twice.");
    return {.name = from.name(), .dtype = dtype(from.data_type(), of), .dims = dims(from.dims(), of)};
  }

  bool flag(const std::string& value, const char* field) const {
    TORCH_CHECK_VALUE(value == "true" || value == "false", where_, ": ", field,
                      ": expected the string_value \"true\" or \"false\", got \"", value, "\".");
    return value == "true";
  }

  int64_t instances(const config::ModelConfig& from) {
    int64_t count = 0;
    for (const auto& group : from.instance_group()) {
      if (group.kind() == config::ModelInstanceGroup::KIND_GPU)
        warnings_.push_back(where_ + ": instance_group: KIND_GPU has no effect, because models run on the CPU.");
      count += in_range(group.count() == 0 ? 1 : group.count(), 1, most_instances, "instance_group: count");
    }
    return in_range(std::max<int64_t>(count, 1), 1, most_instances, "instance_group: sum of count");
  }

  QueuePolicy policy(const config::ModelQueuePolicy& from) const {
    return {.delay_on_timeout = from.timeout_action() == config::ModelQueuePolicy::DELAY,
            .default_timeout_us = from.default_timeout_microseconds(),
            .allow_timeout_override = from.allow_timeout_override(),
            .max_queue_size = from.max_queue_size()};
  }

  DynamicBatching batching(const config::ModelDynamicBatching& from, int64_t max_batch_size) {
    DynamicBatching to;
    TORCH_CHECK_VALUE(max_batch_size > 0, where_, ": dynamic_batching needs a max_batch_size of at least 1.");
    for (const int64_t size : from.preferred_batch_size())
      to.preferred_sizes.push_back(in_range(size, 1, max_batch_size, "dynamic_batching: preferred_batch_size"));
    std::ranges::sort(to.preferred_sizes);
    constexpr uint64_t hour_us = 3'600'000'000;
    to.max_queue_delay_us = static_cast<uint64_t>(
        in_range(static_cast<int64_t>(std::min(from.max_queue_delay_microseconds(), hour_us + 1)), 0,
                 static_cast<int64_t>(hour_us), "dynamic_batching: max_queue_delay_microseconds"));
    to.priority_levels = from.priority_levels();
    constexpr uint64_t most_levels = 1000;
    TORCH_CHECK_VALUE(to.priority_levels <= most_levels, where_,
                      ": dynamic_batching: priority_levels: expected at most ", most_levels, ", got ",
                      to.priority_levels, ".");
    to.default_priority_level = from.default_priority_level();
    if (to.priority_levels > 0)
      in_range(static_cast<int64_t>(std::min(to.default_priority_level, most_levels + 1)), 1,
               static_cast<int64_t>(to.priority_levels), "dynamic_batching: default_priority_level");
    to.default_policy = policy(from.default_queue_policy());
    for (const auto& [level, one] : from.priority_queue_policy()) {
      TORCH_CHECK_VALUE(level >= 1 && level <= to.priority_levels, where_,
                        ": dynamic_batching: priority_queue_policy: there is no level ", level, ". priority_levels is ",
                        to.priority_levels, ".");
      to.priority_policies[level] = policy(one);
    }
    return to;
  }

  VersionPolicy versions(const config::ModelVersionPolicy& from) const {
    VersionPolicy to;
    if (from.has_all()) to.kind = VersionPolicy::Kind::all;
    if (from.has_latest()) to.count = std::max<int64_t>(from.latest().num_versions(), 1);
    if (!from.has_specific()) return to;
    to.kind = VersionPolicy::Kind::specific;
    for (const int64_t version : from.specific().versions())
      to.versions.push_back(in_range(version, 1, INT64_MAX, "version_policy: versions"));
    return to;
  }

  Warmup warmup(const config::ModelWarmup& from) const {
    Warmup to{.name = from.name(),
              .batch_size = in_range(from.batch_size(), 0, largest_batch, "model_warmup: batch_size"),
              .count = std::max<int64_t>(from.count(), 1)};
    for (const auto& [name, input] : from.inputs()) {
      const std::string of = "model_warmup \"" + from.name() + "\": input \"" + name + "\"";
      TORCH_CHECK_VALUE(input.input_data_type_case() != config::ModelWarmup::Input::INPUT_DATA_TYPE_NOT_SET, where_,
                        ": ", of, ": expected zero_data or random_data. Data files are not supported.");
      TORCH_CHECK_VALUE(input.data_type() != config::TYPE_STRING, where_, ": ", of,
                        ": TYPE_STRING is not supported in model_warmup.");
      TORCH_CHECK_VALUE(element_count({input.dims().data(), static_cast<size_t>(input.dims_size())}), where_, ": ", of,
                        ": expected sizes of at least 0.");
      to.inputs.push_back(
          {name, dtype(input.data_type(), of), {input.dims().begin(), input.dims().end()}, input.random_data()});
    }
    std::ranges::sort(to.inputs, {}, &WarmupInput::name);
    return to;
  }

  static std::map<std::string, std::string> texts(const google::protobuf::Map<std::string, std::string>& from) {
    std::map<std::string, std::string> to;
    for (const auto& [key, value] : from) to[key] = value;
    return to;
  }

  EnsembleStep ensemble_step(const config::ModelEnsembling::Step& from) const {
    EnsembleStep to{.model = from.model_name(),
                    .version = std::max<int64_t>(from.model_version(), 0),
                    .inputs = texts(from.input_map()),
                    .outputs = texts(from.output_map())};
    TORCH_CHECK_VALUE(!to.model.empty(), where_, ": ensemble_scheduling: a step has no model_name.");
    return to;
  }

  SequenceBatching sequences(const config::ModelSequenceBatching& from) const {
    SequenceBatching to;
    constexpr uint64_t day_us = 86'400'000'000;
    if (from.max_sequence_idle_microseconds() > 0)
      to.max_idle_us = std::min(from.max_sequence_idle_microseconds(), day_us);
    for (const auto& input : from.control_input()) {
      TORCH_CHECK_VALUE(!input.name().empty() && input.control_size() == 1, where_,
                        ": sequence_batching: control_input: expected a name and one control.");
      to.controls.push_back(control(input.name(), input.control(0)));
    }
    for (const auto& one : from.state()) to.states.push_back(state(one));
    return to;
  }

  SequenceControl control(const std::string& input, const config::ModelSequenceBatching::Control& from) const {
    using Source = config::ModelSequenceBatching;
    const std::string of = "control_input \"" + input + "\"";
    if (from.kind() == Source::Control::CONTROL_SEQUENCE_CORRID) {
      const auto type = dtype(from.data_type(), of);
      TORCH_CHECK_VALUE(c10::isIntegralType(type, /*includeBool=*/false) && c10::elementSize(type) >= 4, where_, ": ",
                        of, ": data_type: expected TYPE_INT32, TYPE_UINT32, TYPE_INT64 or TYPE_UINT64.");
      return {.input = input, .kind = SequenceControl::Kind::id, .dtype = type};
    }
    SequenceControl to{.input = input};
    if (from.kind() == Source::Control::CONTROL_SEQUENCE_READY) to.kind = SequenceControl::Kind::ready;
    if (from.kind() == Source::Control::CONTROL_SEQUENCE_END) to.kind = SequenceControl::Kind::end;
    const auto set = [&](c10::ScalarType type, const auto& values) {
      if (values.size() != 2) return;
      to.dtype = type;
      to.if_false = static_cast<double>(values.Get(0));
      to.if_true = static_cast<double>(values.Get(1));
    };
    set(c10::kInt, from.int32_false_true());
    set(c10::kFloat, from.fp32_false_true());
    set(c10::kBool, from.bool_false_true());
    TORCH_CHECK_VALUE(from.int32_false_true_size() + from.fp32_false_true_size() + from.bool_false_true_size() == 2,
                      where_, ": ", of,
                      ": expected two values in one of int32_false_true, fp32_false_true and "
                      "bool_false_true.");
    return to;
  }

  SequenceState state(const config::ModelSequenceBatching::State& from) const {
    const std::string of = "sequence_batching: state \"" + from.input_name() + "\"";
    TORCH_CHECK_VALUE(!from.input_name().empty() && !from.output_name().empty(), where_, ": ", of,
                      ": expected input_name and output_name.");
    SequenceState to{.input = from.input_name(),
                     .output = from.output_name(),
                     .dtype = dtype(from.data_type(), of),
                     .dims = dims(from.dims(), of)};
    TORCH_CHECK_VALUE(to.dtype != bytes_dtype, where_, ": ", of, ": a state cannot be of TYPE_STRING.");
    TORCH_CHECK_VALUE(from.initial_state_size() <= 1, where_, ": ", of, ": expected at most one initial_state.");
    to.initial_dims = to.dims;
    if (from.initial_state_size() == 1) {
      const auto& initial = from.initial_state(0);
      TORCH_CHECK_VALUE(initial.zero_data(), where_, ": ", of,
                        ": initial_state: expected zero_data: true. Files are not "
                        "supported.");
      to.initial_dims.assign(initial.dims().begin(), initial.dims().end());
    }
    for (int64_t& size : to.initial_dims) size = size == -1 ? 0 : size;  // a state that grows starts empty
    TORCH_CHECK_VALUE(element_count(to.initial_dims).value_or(INT64_MAX) <= most_state_elements, where_, ": ", of,
                      ": initial_state: expected sizes of at least 0 and at most ", most_state_elements, " elements.");
    return to;
  }

  void apply_parameters(ModelConfig& to) {
    constexpr int64_t longest = int64_t{1} << 30;
    for (const auto& [key, value] : to.parameters) {
      if (key == "pad_axis") {
        if (!to.padding) to.padding.emplace();
        to.padding->axis = integer(value, 1, 63, "parameters: pad_axis");
      } else if (key == "pad_buckets") {
        if (!to.padding) to.padding.emplace();
        for (const std::string& one : list(value))
          to.padding->buckets.push_back(integer(one, 1, longest, "parameters: pad_buckets"));
        std::ranges::sort(to.padding->buckets);
      } else if (key == "pad_values") {
        if (!to.padding) to.padding.emplace();
        for (const std::string& one : list(value)) add_pad_value(*to.padding, one);
      } else if (key == "tokenizer") {
        if (!to.text) to.text.emplace();
        to.text->tokenizer = plain_file(value, "parameters: tokenizer");
        TORCH_CHECK_VALUE(!value.empty(), where_, ": parameters: tokenizer: expected the name of a file, or bytes.");
      } else if (key == "tokenizer_max_length") {
        if (!to.text) to.text.emplace();
        to.text->max_length = integer(value, 1, longest, "parameters: tokenizer_max_length");
      } else if (key == "batch_invariant") {
        to.batch_invariant = flag(value, "parameters: batch_invariant");
      } else {
        warnings_.push_back(where_ + ": parameters: \"" + key + "\" has no effect.");
      }
    }
  }

  static std::vector<std::string> list(const std::string& text) {
    std::vector<std::string> parts;
    std::string part;
    for (const char c : text + ",") {
      if (c == ',')
        parts.push_back(std::exchange(part, {}));
      else if (c != ' ')
        part += c;
    }
    return parts;
  }

  int64_t integer(const std::string& text, int64_t low, int64_t high, const char* field) const {
    int64_t value = 0;
    const char* end = text.data() + text.size();
    const auto [stop, error] = std::from_chars(text.data(), end, value);
    TORCH_CHECK_VALUE(error == std::errc() && stop == end && value >= low && value <= high, where_, ": ", field,
                      ": expected an integer from ", low, " to ", high, ", got \"", text, "\".");
    return value;
  }

  void add_pad_value(PadOptions& to, const std::string& text) const {
    const size_t equals = text.rfind('=');
    double value = 0;
    const char* end = text.data() + text.size();
    const char* begin = equals == std::string::npos ? end : text.data() + equals + 1;
    const auto [stop, error] = std::from_chars(begin, end, value);
    TORCH_CHECK_VALUE(equals > 0 && error == std::errc() && stop == end, where_,
                      ": parameters: pad_values: expected a list such as \"input_ids=0, mask=0\", got \"", text, "\".");
    to.values[text.substr(0, equals)] = value;
  }

  /// Features that cannot be combined.
  void check_combinations(const ModelConfig& to) const {
    const auto need = [&](bool condition, const char* message) { TORCH_CHECK_VALUE(condition, where_, ": ", message); };
    const bool batched = to.max_batch_size > 0;
    need(!to.padding || to.parameters.contains("pad_axis"), "parameters: pad_buckets and pad_values need pad_axis.");
    need(!to.padding || batched, "parameters: pad_axis needs a max_batch_size of at least 1.");
    need(!to.text || !to.text->tokenizer.empty(), "parameters: tokenizer_max_length needs tokenizer.");
    need(!to.text || batched, "parameters: tokenizer needs a max_batch_size of at least 1.");
    need(!to.text || !to.sequences, "parameters: tokenizer cannot be combined with sequence_batching.");
    need(!to.sequences || !to.dynamic_batching, "sequence_batching cannot be combined with dynamic_batching.");
    need(!to.batch_invariant || batched, "batch_invariant needs a max_batch_size of at least 1.");
    need(!to.batch_invariant || !to.padding,
         "parameters: pad_axis cannot be combined with batch_invariant, because the length of a batch changes bits.");
    need(!to.batch_invariant || !to.sequences, "batch_invariant cannot be combined with sequence_batching.");
    need(!to.sequences || !to.padding, "parameters: pad_axis cannot be combined with sequence_batching.");
    need(!to.sequences || to.warmups.empty(), "model_warmup cannot be combined with sequence_batching.");
    if (to.ensemble.empty()) return;
    need(!to.sequences && !to.dynamic_batching && !to.padding && !to.text && to.warmups.empty(),
         "an ensemble has no dynamic_batching, sequence_batching, model_warmup, tokenizer and pad_axis. Set them for "
         "its "
         "models.");
    need(!to.inputs.empty() && !to.outputs.empty(), "an ensemble needs input and output.");
  }

  static constexpr int64_t most_state_elements = int64_t{1} << 28;
  const std::string& where_;
  std::vector<std::string>& warnings_;
};

}  // namespace

bool sizes_fit(const TensorSpec& spec, bool batched, std::span<const int64_t> sizes) {
  const size_t first = batched ? 1 : 0;
  return sizes.size() == spec.dims.size() + first &&
         std::equal(spec.dims.begin(), spec.dims.end(), sizes.begin() + static_cast<ptrdiff_t>(first),
                    [](int64_t expected, int64_t size) { return expected < 0 || expected == size; });
}

std::vector<int64_t> VersionPolicy::select(std::vector<int64_t> available) const {
  std::ranges::sort(available);
  if (kind == Kind::specific) {
    const std::set<int64_t> wanted(versions.begin(), versions.end());
    std::erase_if(available, [&](int64_t version) { return !wanted.contains(version); });
  } else if (kind == Kind::latest && static_cast<int64_t>(available.size()) > count) {
    available.erase(available.begin(), available.end() - count);
  }
  return available;
}

ModelConfig parse_model_config(std::string_view text, const std::string& where, std::vector<std::string>& warnings) {
  config::ModelConfig parsed;
  Messages messages(where, warnings);
  google::protobuf::TextFormat::Parser parser;
  parser.RecordErrorsTo(&messages);
  parser.AllowUnknownField(true);
  parser.SetRecursionLimit(32);  // deeper messages would overflow the stack
  const bool done = parser.ParseFromString(std::string(text), &parsed);
  TORCH_CHECK_VALUE(done, messages.error().empty() ? where + ": malformed configuration" : messages.error(), ".");
  return Conversion(where, warnings).model(parsed);
}

}  // namespace bellows::serve
