#include <nlohmann/json.hpp>

#include "bellows/report/json_text.h"
#include "bellows/serve/model_config.h"
#include "bellows/serve/tensor_types.h"

namespace bellows::serve {

namespace {

using nlohmann::ordered_json;

ordered_json tensor_json(const TensorSpec& spec, bool output) {
  ordered_json json = {{"name", spec.name}, {"data_type", config_type_name(spec.dtype)}, {"dims", spec.dims}};
  if (output) json["label_filename"] = spec.label_file;
  return json;
}

ordered_json policy_json(const QueuePolicy& policy) {
  return {{"timeout_action", policy.delay_on_timeout ? "DELAY" : "REJECT"},
          {"default_timeout_microseconds", policy.default_timeout_us},
          {"allow_timeout_override", policy.allow_timeout_override},
          {"max_queue_size", policy.max_queue_size}};
}

ordered_json batching_json(const DynamicBatching& batching) {
  ordered_json json = {{"preferred_batch_size", batching.preferred_sizes},
                       {"max_queue_delay_microseconds", batching.max_queue_delay_us},
                       {"preserve_ordering", false},
                       {"priority_levels", batching.priority_levels},
                       {"default_priority_level", batching.default_priority_level},
                       {"default_queue_policy", policy_json(batching.default_policy)},
                       {"priority_queue_policy", ordered_json::object()}};
  for (const auto& [level, policy] : batching.priority_policies)
    json["priority_queue_policy"][std::to_string(level)] = policy_json(policy);
  return json;
}

ordered_json version_json(const VersionPolicy& policy) {
  if (policy.kind == VersionPolicy::Kind::all) return {{"all", ordered_json::object()}};
  if (policy.kind == VersionPolicy::Kind::specific) return {{"specific", {{"versions", policy.versions}}}};
  return {{"latest", {{"num_versions", policy.count}}}};
}

ordered_json warmup_json(const Warmup& warmup) {
  ordered_json json = {{"name", warmup.name},
                       {"batch_size", warmup.batch_size},
                       {"inputs", ordered_json::object()},
                       {"count", warmup.count}};
  for (const WarmupInput& input : warmup.inputs)
    json["inputs"][input.name] = {{"data_type", config_type_name(input.dtype)},
                                  {"dims", input.dims},
                                  {input.random ? "random_data" : "zero_data", true}};
  return json;
}

ordered_json ensemble_json(const std::vector<EnsembleStep>& steps) {
  ordered_json list = ordered_json::array();
  for (const EnsembleStep& step : steps)
    list.push_back({{"model_name", step.model},
                    {"model_version", step.version == 0 ? -1 : step.version},
                    {"input_map", step.inputs},
                    {"output_map", step.outputs}});
  return {{"step", std::move(list)}};
}

ordered_json control_json(const SequenceControl& control) {
  using Kind = SequenceControl::Kind;
  const auto values = [&](const char* field, auto sample) -> ordered_json {
    using Value = decltype(sample);
    return {{field, {static_cast<Value>(control.if_false), static_cast<Value>(control.if_true)}}};
  };
  ordered_json json = control.dtype == c10::kInt    ? values("int32_false_true", int32_t{})
                      : control.dtype == c10::kBool ? values("bool_false_true", false)
                                                    : values("fp32_false_true", 0.0F);
  if (control.kind == Kind::id) json = {{"data_type", config_type_name(control.dtype)}};
  json["kind"] = control.kind == Kind::start   ? "CONTROL_SEQUENCE_START"
                 : control.kind == Kind::ready ? "CONTROL_SEQUENCE_READY"
                 : control.kind == Kind::end   ? "CONTROL_SEQUENCE_END"
                                               : "CONTROL_SEQUENCE_CORRID";
  return {{"name", control.input}, {"control", ordered_json::array({std::move(json)})}};
}

ordered_json sequences_json(const SequenceBatching& sequences) {
  ordered_json json = {{"max_sequence_idle_microseconds", sequences.max_idle_us},
                       {"direct", ordered_json::object()},
                       {"control_input", ordered_json::array()},
                       {"state", ordered_json::array()}};
  for (const SequenceControl& control : sequences.controls) json["control_input"].push_back(control_json(control));
  for (const SequenceState& state : sequences.states) {
    const ordered_json initial = {
        {"data_type", config_type_name(state.dtype)}, {"dims", state.initial_dims}, {"zero_data", true}};
    json["state"].push_back({{"input_name", state.input},
                             {"output_name", state.output},
                             {"data_type", config_type_name(state.dtype)},
                             {"dims", state.dims},
                             {"initial_state", ordered_json::array({initial})}});
  }
  return json;
}

}  // namespace

std::string model_config_json(const ModelConfig& config) {
  ordered_json json = {{"name", config.name},
                       {"platform", config.platform},
                       {"backend", config.backend},
                       {"version_policy", version_json(config.version_policy)},
                       {"max_batch_size", config.max_batch_size},
                       {"input", ordered_json::array()},
                       {"output", ordered_json::array()},
                       {"instance_group", ordered_json::array()},
                       {"default_model_filename", config.model_file}};
  for (const TensorSpec& input : config.inputs) json["input"].push_back(tensor_json(input, /*output=*/false));
  for (const TensorSpec& output : config.outputs) json["output"].push_back(tensor_json(output, /*output=*/true));
  json["instance_group"].push_back({{"name", config.name}, {"kind", "KIND_CPU"}, {"count", config.instances}});
  if (config.dynamic_batching) json["dynamic_batching"] = batching_json(*config.dynamic_batching);
  if (config.sequences) json["sequence_batching"] = sequences_json(*config.sequences);
  if (!config.ensemble.empty()) json["ensemble_scheduling"] = ensemble_json(config.ensemble);
  json["parameters"] = ordered_json::object();
  for (const auto& [key, value] : config.parameters) json["parameters"][key] = {{"string_value", value}};
  json["model_warmup"] = ordered_json::array();
  for (const Warmup& warmup : config.warmups) json["model_warmup"].push_back(warmup_json(warmup));
  return json_text(json);
}

}  // namespace bellows::serve
