#include "bellows/quant/formats/config.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <utility>

namespace bellows::quant {

namespace {

using Json = nlohmann::ordered_json;

constexpr std::array<std::pair<WeightFormat, const char*>, 7> format_names{{
    {WeightFormat::gptq, "gptq"},
    {WeightFormat::gptq_v2, "gptq_v2"},
    {WeightFormat::awq, "awq"},
    {WeightFormat::pack_quantized, "pack-quantized"},
    {WeightFormat::int_quantized, "int-quantized"},
    {WeightFormat::naive_quantized, "naive-quantized"},
    {WeightFormat::float_quantized, "float-quantized"},
}};

bool is_gptq(WeightFormat format) {
  return format == WeightFormat::gptq || format == WeightFormat::gptq_v2;
}

bool is_compressed_tensors(WeightFormat format) {
  return !is_gptq(format) && format != WeightFormat::awq;
}

bool is_one_of(int bits, std::initializer_list<int> supported) {
  return std::find(supported.begin(), supported.end(), bits) != supported.end();
}

bool supports_bits(WeightFormat format, int bits) {
  if (is_gptq(format)) return is_one_of(bits, {2, 3, 4, 8});
  if (format == WeightFormat::awq) return bits == 4;
  if (format == WeightFormat::pack_quantized) return is_one_of(bits, {2, 4, 8});
  return true;
}

/// A JSON object, with checks of the types of its fields.
class Fields {
 public:
  Fields(const Json& object, std::string where) : object_(object), where_(std::move(where)) {
    TORCH_CHECK_VALUE(object.is_object(), where_, ": expected a JSON object, found ", shown(object), ".");
  }

  bool has(const char* key) const { return object_.contains(key) && !object_[key].is_null(); }
  Fields object(const char* key) const { return {at(key, "an object"), where_ + "." + key}; }
  const Json& at(const char* key, const char* kind) const {
    TORCH_CHECK_VALUE(has(key), where_, ": expected ", kind, " in the field \"", key, "\", found no value.");
    return object_[key];
  }

  std::string text(const char* key) const {
    const Json& found = at(key, "a text");
    return require(found.is_string(), key, "a text", found), found.get<std::string>();
  }
  std::string text(const char* key, const char* otherwise) const { return has(key) ? text(key) : otherwise; }

  int64_t integer(const char* key, int64_t low, int64_t high) const {
    const Json& found = at(key, "an integer");
    const std::string range = c10::str("an integer in [", low, ", ", high, "]");
    const bool fits = found.is_number_integer() && !(found.is_number_unsigned() && found.get<uint64_t>() > INT64_MAX) &&
                      found.get<int64_t>() >= low && found.get<int64_t>() <= high;
    return require(fits, key, range.c_str(), found), found.get<int64_t>();
  }

  bool flag(const char* key, bool otherwise) const {
    if (!has(key)) return otherwise;
    const Json& found = object_[key];
    return require(found.is_boolean(), key, "true or false", found), found.get<bool>();
  }

  std::vector<std::string> texts(const char* key) const {
    if (!has(key)) return {};
    const Json& found = object_[key];
    const auto is_text = [](const Json& one) { return one.is_string(); };
    require(found.is_array() && std::all_of(found.begin(), found.end(), is_text), key, "a list of texts", found);
    return found.get<std::vector<std::string>>();
  }

  /// Throws: c10::ValueError with the message that the field has an unsupported value
  [[noreturn]] void reject(const char* key, const char* expected) const {
    TORCH_CHECK_VALUE(false, where_, ": expected ", expected, " in the field \"", key, "\", found ",
                      shown(object_.value(key, Json())), ".");
  }

  const Json& json() const { return object_; }
  const std::string& where() const { return where_; }

 private:
  static std::string shown(const Json& value) {
    std::string text = value.dump(-1, ' ', /*ensure_ascii=*/true, Json::error_handler_t::replace);
    return text.size() > 60 ? text.substr(0, 60) + "…" : text;
  }

  void require(bool fits, const char* key, const char* expected, const Json& found) const {
    TORCH_CHECK_VALUE(fits, where_, ": expected ", expected, " in the field \"", key, "\", found ", shown(found), ".");
  }

  const Json& object_;
  std::string where_;
};

// Formatting and copying JSON is recursive, so the nesting of untrusted text is limited.
Json parse(std::string_view text, const std::string& where) {
  constexpr int deepest = 16;
  const auto limit = [&](int depth, Json::parse_event_t, const Json&) {
    TORCH_CHECK_VALUE(depth <= deepest, where, ": expected JSON of at most ", deepest,
                      " levels, found deeper nesting.");
    return true;
  };
  Json document = Json::parse(text, limit, /*allow_exceptions=*/false);
  TORCH_CHECK_VALUE(!document.is_discarded(), where, ": expected a JSON object, found invalid JSON.");
  return document;
}

Scheme weight_scheme_of(int bits, bool symmetric, int64_t group_size) {
  return {.bits = bits,
          .is_signed = symmetric,
          .symmetric = symmetric,
          .granularity = group_size > 0 ? Granularity::group : Granularity::channel,
          .group_size = group_size > 0 ? group_size : Scheme().group_size};
}

/// Reads `bits` and `group_size`, where −1 means one scale for each output channel.
Scheme read_groups(const Fields& fields, bool symmetric) {
  const auto bits = static_cast<int>(fields.integer("bits", 1, 8));
  const int64_t group_size = fields.integer("group_size", -1, INT32_MAX);
  if (group_size == 0) fields.reject("group_size", "at least 1, or -1 for one scale per output channel,");
  return weight_scheme_of(bits, symmetric, group_size);
}

QuantizationConfig read_gptq(const Fields& fields) {
  if (fields.has("dynamic") && !fields.json()["dynamic"].empty())
    fields.reject("dynamic", "no options for single layers");
  const std::string format = fields.text("checkpoint_format", "gptq");
  if (format != "gptq" && format != "gptq_v2") fields.reject("checkpoint_format", "\"gptq\" or \"gptq_v2\"");
  return {.format = format == "gptq" ? WeightFormat::gptq : WeightFormat::gptq_v2,
          .weights = read_groups(fields, fields.flag("sym", true)),
          .activation_order = fields.flag("desc_act", false)};
}

QuantizationConfig read_awq(const Fields& fields) {
  std::string version = fields.text("version", "gemm");
  if (version != "gemm" && version != "GEMM") fields.reject("version", "\"gemm\"");
  return {.format = WeightFormat::awq,
          .weights = read_groups(fields, !fields.flag("zero_point", true)),
          .ignore = fields.texts("modules_to_not_convert")};
}

bool is_float_type(const Fields& fields) {
  const std::string type = fields.text("type", "int");
  if (type != "int" && type != "float") fields.reject("type", "\"int\" or \"float\"");
  if (type == "float" && fields.integer("num_bits", 1, 64) != 8)
    fields.reject("num_bits", "8 bits for floating-point values");
  return type == "float";
}

Scheme read_args(const Fields& fields) {
  Scheme scheme =
      weight_scheme_of(static_cast<int>(fields.integer("num_bits", 1, 8)), fields.flag("symmetric", true), -1);
  scheme.is_signed = true;
  const std::string strategy = fields.text("strategy", fields.has("group_size") ? "group" : "tensor");
  if (strategy == "tensor") {
    scheme.granularity = Granularity::tensor;
  } else if (strategy == "token") {
    scheme.granularity = Granularity::token;
  } else if (strategy == "group") {
    scheme.granularity = Granularity::group;
    scheme.group_size = fields.integer("group_size", 1, INT32_MAX);
  } else if (strategy != "channel") {
    fields.reject("strategy", "\"tensor\", \"token\", \"channel\" or \"group\"");
  }
  return scheme;
}

/// Whether files contain a group index. Without one, "weight" and "static" only mean the order of quantization.
bool has_group_index(const Fields& weights) {
  if (!weights.has("actorder")) return false;
  if (weights.json()["actorder"].is_boolean()) return weights.flag("actorder", false);
  const std::string order = weights.text("actorder");
  if (order != "group" && order != "weight" && order != "static" && order != "dynamic")
    weights.reject("actorder", "\"group\", \"weight\", \"static\" or \"dynamic\"");
  return order == "group" || order == "dynamic";
}

std::optional<ActivationConfig> read_inputs(const Fields& group) {
  if (!group.has("input_activations")) return {};
  const Fields fields = group.object("input_activations");
  ActivationConfig inputs{.scheme = read_args(fields), .dynamic = false, .is_float = is_float_type(fields)};
  // "local" means that one of two levels of scales is dynamic.
  if (fields.has("dynamic") && !fields.json()["dynamic"].is_boolean()) fields.reject("dynamic", "true or false");
  inputs.dynamic = fields.flag("dynamic", false);
  return inputs;
}

/// The format of a group of layers. Newer files repeat it in the group.
WeightFormat read_format(const Fields& fields) {
  const std::string format = fields.text("format");
  const auto* const found = std::find_if(format_names.begin(), format_names.end(), [&](const auto& one) {
    return is_compressed_tensors(one.first) && format == one.second;
  });
  if (found == format_names.end())
    fields.reject("format", "\"pack-quantized\", \"int-quantized\", \"naive-quantized\" or \"float-quantized\"");
  return found->first;
}

QuantizationConfig read_compressed_tensors(const Fields& fields) {
  const Fields groups = fields.object("config_groups");
  if (groups.json().size() != 1) fields.reject("config_groups", "exactly one group of layers");
  const Fields group{groups.json().begin().value(), groups.where() + "." + groups.json().begin().key()};
  const Fields weights = group.object("weights");
  return {.format = read_format(group.has("format") ? group : fields),
          .weights = read_args(weights),
          .is_float = is_float_type(weights),
          .activation_order = has_group_index(weights),
          .inputs = read_inputs(group),
          .targets = group.texts("targets"),
          .ignore = fields.texts("ignore")};
}

Json args_of(const Scheme& scheme, bool is_float, bool dynamic) {
  const char* strategy = "tensor";
  if (scheme.granularity == Granularity::channel) strategy = "channel";
  if (scheme.granularity == Granularity::token) strategy = "token";
  if (scheme.granularity == Granularity::group) strategy = "group";
  return {{"num_bits", is_float ? 8 : scheme.bits},
          {"type", is_float ? "float" : "int"},
          {"symmetric", is_float || scheme.symmetric},
          {"strategy", strategy},
          {"group_size", scheme.granularity == Granularity::group ? Json(scheme.group_size) : Json()},
          {"dynamic", dynamic}};
}

int64_t group_size_of(const Scheme& scheme) {
  return scheme.granularity == Granularity::group ? scheme.group_size : -1;
}

Json gptq_json(const QuantizationConfig& config) {
  return {{"quant_method", "gptq"},
          {"bits", config.weights.bits},
          {"group_size", group_size_of(config.weights)},
          {"desc_act", config.activation_order},
          {"sym", config.weights.symmetric},
          {"checkpoint_format", name_of(config.format)}};
}

Json awq_json(const QuantizationConfig& config) {
  return {{"quant_method", "awq"},
          {"bits", config.weights.bits},
          {"group_size", group_size_of(config.weights)},
          {"zero_point", !config.weights.symmetric},
          {"version", "gemm"},
          {"modules_to_not_convert", config.ignore.empty() ? Json() : Json(config.ignore)}};
}

Json compressed_tensors_json(const QuantizationConfig& config) {
  Json weights = args_of(config.weights, config.is_float, /*dynamic=*/false);
  weights["actorder"] = config.activation_order ? Json("group") : Json();
  Json inputs;
  if (config.inputs) inputs = args_of(config.inputs->scheme, config.inputs->is_float, config.inputs->dynamic);
  const Json group{{"targets", config.targets},
                   {"weights", weights},
                   {"input_activations", inputs},
                   {"output_activations", nullptr}};
  return {{"quant_method", "compressed-tensors"},
          {"format", name_of(config.format)},
          {"quantization_status", "compressed"},
          {"config_groups", {{"group_0", group}}},
          {"ignore", config.ignore},
          {"kv_cache_scheme", nullptr}};
}

}  // namespace

void QuantizationConfig::check() const {
  const std::string name = name_of(format);
  weights.check();
  TORCH_CHECK_VALUE(is_float || supports_bits(format, weights.bits), "quantization config: the format ", name,
                    " does not support ", weights.bits, " bits.");
  TORCH_CHECK_VALUE(is_float ? format == WeightFormat::float_quantized || format == WeightFormat::naive_quantized
                             : format != WeightFormat::float_quantized,
                    "quantization config: the format ", name, " does not support ",
                    is_float ? "floating-point" : "integer", " weights.");
  const bool has_axis = weights.granularity == Granularity::channel && weights.axis == 0;
  const bool has_tensor = weights.granularity == Granularity::tensor && is_compressed_tensors(format);
  TORCH_CHECK_VALUE(has_axis || has_tensor || weights.granularity == Granularity::group, "quantization config: the ",
                    "format ", name, " does not support ", weights.to_text(), ".");
  TORCH_CHECK_VALUE(!inputs || is_compressed_tensors(format), "quantization config: the format ", name,
                    " stores no quantization of inputs. Use a format of compressed-tensors.");
  TORCH_CHECK_VALUE(!activation_order || format != WeightFormat::awq,
                    "quantization config: the format awq has no group ",
                    "index. Use another format for `activation_order`.");
  TORCH_CHECK_VALUE(ignore.empty() || !is_gptq(format), "quantization config: the format ", name,
                    " stores no list of layers to ignore. Quantize all linear layers, or use another format.");
}

std::string to_json(const QuantizationConfig& config, int indent) {
  config.check();
  const Json json = is_gptq(config.format)               ? gptq_json(config)
                    : config.format == WeightFormat::awq ? awq_json(config)
                                                         : compressed_tensors_json(config);
  return json.dump(indent, ' ', /*ensure_ascii=*/false, Json::error_handler_t::replace);
}

QuantizationConfig parse_quantization_config(std::string_view json, const std::string& where) {
  const Json document = parse(json, where);
  const Fields whole(document, where);
  const Fields fields = whole.has("quantization_config") ? whole.object("quantization_config") : whole;
  const std::string method = fields.text("quant_method");
  QuantizationConfig config;
  if (method == "gptq") {
    config = read_gptq(fields);
  } else if (method == "awq") {
    config = read_awq(fields);
  } else if (method == "compressed-tensors") {
    config = read_compressed_tensors(fields);
  } else {
    fields.reject("quant_method", "\"gptq\", \"awq\" or \"compressed-tensors\"");
  }
  config.check();
  return config;
}

const char* name_of(WeightFormat format) {
  return std::find_if(format_names.begin(), format_names.end(), [&](const auto& one) { return one.first == format; })
      ->second;
}

}  // namespace bellows::quant
