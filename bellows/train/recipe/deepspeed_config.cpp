#include "bellows/train/recipe/deepspeed_config.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <sstream>
#include <utility>

#include "bellows/core/error.h"
#include "bellows/io/bytes.h"
#include "bellows/train/recipe/deepspeed_keys.h"

namespace bellows::train {

namespace {

using DsJson = nlohmann::json;

/// For each DeepSpeedKind but the last one.
constexpr const char* ds_kind_words[] = {"true or false", "an integer", "a number", "a text",
                                         "a list",        "an object",  "an object"};

/// An optimizer of DeepSpeed, and the values that it uses if the configuration has none.
struct DsOptimizer {
  std::string_view type;  ///< in lower case
  const char* name;       ///< in a recipe
  double lr;
  const char* betas = "";          ///< of the recipe's optimizer, as JSON; "" if it has no betas
  const char* default_betas = "";  ///< of DeepSpeed
  const char* eps = "";            ///< of both; "" if there is none
  const char* difference = "";     ///< the part that is not imported
};

constexpr const char* ds_adam_betas = "[0.9, 0.999]";

/// DeepSpeed's Adam decouples the weight decay as AdamW does, unless adam_w_mode is false.
constexpr DsOptimizer ds_optimizers[] = {
    {"adam", "adamw", 1e-3, ds_adam_betas, ds_adam_betas, "1e-8"},
    {"adamw", "adamw", 1e-3, ds_adam_betas, ds_adam_betas, "1e-8"},
    {"sgd", "sgd", 1e-3},
    {"rmsprop", "rmsprop", 1e-2, "", "", "1e-8"},
    {"adagrad", "adagrad", 1e-2, "", "", "1e-10"},
    {"lion", "lion", 1e-3, "[0.9, 0.99]", ds_adam_betas},
    {"onebitadam", "adamw", 1e-3, ds_adam_betas, ds_adam_betas, "1e-8",
     "The recipe has optimizer: adamw, without 1-bit compression. With data_parallel ddp or zero1, set "
     "gradient_compression: int8."},
    {"zerooneadam", "adamw", 1e-3, ds_adam_betas, ds_adam_betas, "1e-8",
     "The recipe has optimizer: adamw, without 1-bit compression. With data_parallel ddp or zero1, set "
     "gradient_compression: int8."},
};

/// A schedule of DeepSpeed.
struct DsSchedule {
  std::string_view type;     ///< in lower case
  const char* name;          ///< in a recipe
  std::string_view lr = "";  ///< the parameter with the base learning rate; "" for that of the optimizer
  double default_lr = 0;     ///< 0: that of the optimizer
  bool warmup = true;        ///< has the warmup parameters
};

constexpr DsSchedule ds_schedules[] = {
    {"warmuplr", "constant", "warmup_max_lr"},
    {"warmupdecaylr", "linear", "warmup_max_lr", 1e-3},
    {"warmupcosinelr", "cosine"},
    {"onecycle", "one_cycle", "cycle_max_lr", 0, false},
};

constexpr std::string_view ds_params = "scheduler.params.";

std::string ds_lower(std::string text) {
  std::ranges::transform(text, text.begin(), [](char c) { return c >= 'A' && c <= 'Z' ? c + ('a' - 'A') : c; });
  return text;
}

/// A value as JSON in ASCII, so that a terminal can show it.
std::string ds_value_text(const DsJson& value) {
  constexpr size_t most = 60;
  const std::string text = value.dump(-1, ' ', /*ensure_ascii=*/true, DsJson::error_handler_t::replace);
  return text.size() <= most ? text : text.substr(0, most) + "…";
}

/// A path in ASCII. JSON allows any characters in keys.
std::string ds_path_text(const std::string& path) {
  const std::string quoted = ds_value_text(path);
  return quoted.substr(1, quoted.size() - (quoted.ends_with('"') ? 2 : 1));
}

/// Parses the configuration. DeepSpeed also ignores comments, and also rejects keys that occur twice.
DsJson parse_ds_json(std::string_view text, const std::string& where) {
  std::vector<std::set<std::string>> keys;  // of the objects that are open
  const auto check = [&](int depth, DsJson::parse_event_t event, const DsJson& parsed) {
    TORCH_CHECK_VALUE(depth <= 16, where, ": expected JSON of at most 16 levels, found deeper nesting.");
    if (event == DsJson::parse_event_t::object_start) keys.emplace_back();
    if (event == DsJson::parse_event_t::object_end) keys.pop_back();
    if (event == DsJson::parse_event_t::key) {
      const auto& key = parsed.get_ref<const std::string&>();
      TORCH_CHECK_VALUE(keys.back().insert(key).second, where, ": the key ", ds_path_text(key),
                        " occurs twice in one object. Keep one of them.");
    }
    return true;
  };
  try {
    return DsJson::parse(text, check, /*allow_exceptions=*/true, /*ignore_comments=*/true);
  } catch (const DsJson::parse_error& error) {
    const size_t at = error.byte > 0 ? std::min(error.byte - 1, text.size()) : 0;
    TORCH_CHECK_VALUE(false, where, ": invalid JSON at byte ", at,
                      at < text.size() ? ": " + io::printable(text.substr(at), 20) : ": the file ends there", ".");
  } catch (const DsJson::out_of_range&) {
    TORCH_CHECK_VALUE(false, where, ": expected numbers that fit into a double, found a larger one.");
  }
  return {};
}

/// Older names of sections.
DsJson with_current_ds_names(DsJson document) {
  if (const auto zero = document.find("zero_optimization"); zero != document.end() && zero->is_boolean())
    *zero = {{"stage", zero->get<bool>() ? 1 : 0}};
  if (const auto old = document.find("bfloat16"); old != document.end() && !document.contains("bf16")) {
    document["bf16"] = *old;
    document.erase("bfloat16");
  }
  return document;
}

/// Whether a feature is on: its switch is set somewhere in it. Without a switch, every feature that is not empty is on.
bool ds_feature_is_on(const DsJson& feature, std::string_view key) {
  if (key.empty()) return !feature.empty();
  for (const auto& [name, value] : feature.items()) {
    if (value.is_object() && ds_feature_is_on(value, key)) return true;
    const bool off = value.is_null() || value == false || value == "none";
    if (name == key && !off) return true;
  }
  return false;
}

bool is_ds_integer(const DsJson& value) {
  if (value.is_number_unsigned()) return value.get<uint64_t>() <= INT64_MAX;
  if (value.is_number_integer()) return true;
  return value.is_number_float() && std::abs(value.get<double>()) < 9e18 &&
         value.get<double>() == std::floor(value.get<double>());
}

bool has_ds_kind(const DsJson& value, DeepSpeedKind kind) {
  switch (kind) {
    case DeepSpeedKind::boolean:
      return value.is_boolean();
    case DeepSpeedKind::integer:
      return is_ds_integer(value);
    case DeepSpeedKind::number:
      return value.is_number();
    case DeepSpeedKind::text:
      return value.is_string();
    case DeepSpeedKind::list:
      return value.is_array();
    case DeepSpeedKind::section:
    case DeepSpeedKind::feature:
      return value.is_object();
    case DeepSpeedKind::any:
      break;
  }
  return true;
}

/// Params: values – JSON values, separated by commas
bool is_harmless_value(const DsJson& value, std::string_view values) {
  if (values == "*") return true;
  const DsJson list = DsJson::parse("[" + std::string(values) + "]");
  return std::find(list.begin(), list.end(), value) != list.end();
}

/// Reads a configuration once.
class DeepSpeedImport {
 public:
  DeepSpeedImport(DsJson document, std::string where, int64_t ranks)
      : document_(with_current_ds_names(std::move(document))), where_(std::move(where)), ranks_(ranks) {}

  ImportedRecipe run() {
    check_section(document_, "", /*used=*/true);
    import_batch();
    import_optimizer();
    import_schedule();
    if (const auto norm = value_of("gradient_clipping")) put("gradient_clipping", "max_grad_norm", norm->dump());
    import_precision();
    import_zero();
    import_communication();
    import_accumulation_dtype();
    import_activations();
    import_logs();
    return finish();
  }

 private:
  // ---- the table

  /// Params: used – false: the section is off, so that its values have no effect
  void check_section(const DsJson& section, const std::string& prefix, bool used) {
    for (const auto& [name, value] : section.items()) {
      const DeepSpeedKey* key = name.find('.') == std::string::npos ? find_deepspeed_key(prefix + name) : nullptr;
      if (key) {
        check_value(*key, value, used);
      } else {
        report_unknown(prefix + name, value);
      }
    }
  }

  void check_value(const DeepSpeedKey& key, const DsJson& value, bool used) {
    if (value.is_null()) return;  // the default
    const std::string path(key.path);
    const bool container = key.kind == DeepSpeedKind::section || key.kind == DeepSpeedKind::feature;
    used = used && !is_unused(path);
    if (!container && value == "auto") {
      if (used && !follows_from_others(path)) report_auto(key);
      return;
    }
    if (!has_ds_kind(value, key.kind)) reject(path, ds_kind_words[static_cast<size_t>(key.kind)], value);
    if (key.kind == DeepSpeedKind::section) {
      const bool has_switch = find_deepspeed_key(path + ".enabled") != nullptr;
      check_section(value, path + ".", !has_switch || ds_feature_is_on(value, "enabled"));
    } else if (key.kind == DeepSpeedKind::feature) {
      if (ds_feature_is_on(value, key.harmless)) report(path, ds_value_text(value), std::string(key.advice));
    } else if (used && !is_harmless_value(value, key.harmless)) {
      report(path, ds_value_text(value), std::string(key.advice));
    }
  }

  /// DeepSpeed ignores the parameters of stage 3 in other stages.
  bool is_unused(const std::string& path) const {
    if (!path.starts_with("zero_optimization.stage3_")) return false;
    const DsJson* stage = value_of("zero_optimization.stage");
    return !stage || *stage != 3;
  }

  /// Whether a batch size that is "auto" is determined by two others.
  bool follows_from_others(const std::string& path) const {
    constexpr const char* sizes[] = {"train_batch_size", "train_micro_batch_size_per_gpu",
                                     "gradient_accumulation_steps"};
    if (std::ranges::find(sizes, path) == std::end(sizes)) return false;
    return std::ranges::count_if(sizes, [&](const char* size) { return value_of(size) != nullptr; }) == 2;
  }

  // ---- reports and errors

  void report(std::string path, std::string value, std::string reason) {
    result_.unsupported.push_back({std::move(path), std::move(value), std::move(reason)});
  }

  void report(const std::string& path, std::string reason) {
    const DsJson* value = value_of(path);
    report(path, value ? ds_value_text(*value) : "", std::move(reason));
  }

  void report_auto(const DeepSpeedKey& key) {
    report(std::string(key.path), "\"auto\"",
           key.recipe_key.empty()
               ? std::string("The Hugging Face Trainer chooses this value. Bellows uses its default.")
               : c10::str("The Hugging Face Trainer chooses this value. Set ", key.recipe_key,
                          ", or the recipe keeps its default."));
  }

  void report_unknown(const std::string& path, const DsJson& value) {
    std::vector<std::string> known;
    for (const DeepSpeedKey& key : deepspeed_keys()) known.emplace_back(key.path);
    report(ds_path_text(path), ds_value_text(value),
           "This key is not part of DeepSpeed's documentation." + did_you_mean(path, known));
  }

  [[noreturn]] void reject(std::string_view path, std::string_view expected, const DsJson& value) const {
    C10_THROW_ERROR(ValueError,
                    c10::str(where_, ": ", path, ": expected ", expected, ", found ", ds_value_text(value), "."));
  }

  // ---- values

  /// Returns null if the key is missing.
  const DsJson* find(std::string_view path) const {
    const DsJson* value = &document_;
    while (!path.empty()) {
      if (!value->is_object()) return nullptr;
      const size_t dot = std::min(path.find('.'), path.size());
      const auto found = value->find(std::string(path.substr(0, dot)));
      if (found == value->end()) return nullptr;
      value = &*found;
      path.remove_prefix(std::min(dot + 1, path.size()));
    }
    return value;
  }

  bool is_auto(std::string_view path) const {
    const DsJson* value = find(path);
    return value && *value == "auto";
  }

  /// Returns null if the key is missing, null or "auto".
  const DsJson* value_of(std::string_view path) const {
    const DsJson* value = find(path);
    return value && !value->is_null() && *value != "auto" ? value : nullptr;
  }

  bool is_on(std::string_view path) const {
    const DsJson* value = value_of(path);
    return value && value->get<bool>();
  }

  std::string text_at(std::string_view path) const {
    const DsJson* value = value_of(path);
    return value ? ds_lower(value->get<std::string>()) : "";
  }

  /// Returns no number if the key has none. Throws: c10::ValueError if it is not an integer from `low` to `high`
  std::optional<int64_t> integer_at(std::string_view path, int64_t low, int64_t high) const {
    const DsJson* value = value_of(path);
    if (!value) return {};
    const auto number = value->get<int64_t>();
    if (number < low || number > high) reject(path, c10::str("an integer from ", low, " to ", high), *value);
    return number;
  }

  /// Sets a recipe key. Params: value – in a recipe
  void put(std::string_view path, const std::string& key, const std::string& value) {
    try {
      result_.recipe.set(c10::str(key, "=", value));
    } catch (const c10::ValueError&) {
      const std::vector<RecipeField> fields = recipe_fields();
      const auto field = std::ranges::find(fields, key, &RecipeField::name);
      const bool whole = field->type == "integer";
      const DsJson* found = value_of(path);
      reject(path,
             c10::str(whole ? "an integer of " : "a number of ", field->allowed, whole ? "" : " that fits into fp32,",
                      " for the recipe key ", key),
             found ? *found : DsJson(value));
    }
  }

  /// Sets a recipe key to the number at `path`, or to DeepSpeed's default if there is none.
  void put_number(std::string_view path, const std::string& key, double standard) {
    if (is_auto(path)) return;
    const DsJson* value = value_of(path);
    put(path, key, (value ? *value : DsJson(standard)).dump());
  }

  void put_lr(std::string_view path, double standard) {
    const DsJson* value = value_of(path);
    if (value && *value == 0) {
      report(std::string(path), "In a recipe, lr: 0 selects the default learning rate. Set lr.");
    } else {
      put_number(path, "lr", standard);
    }
  }

  // ---- batches

  void import_batch() {
    constexpr int64_t most = 1 << 20;
    const auto total = integer_at("train_batch_size", 1, int64_t{1} << 40);
    const auto micro = integer_at("train_micro_batch_size_per_gpu", 1, most);
    const auto steps = integer_at("gradient_accumulation_steps", 1, most);
    const int64_t accumulated = steps ? *steps : total && micro ? std::max<int64_t>(1, *total / (*micro * ranks_)) : 1;
    const int64_t per_rank = micro ? *micro : std::max<int64_t>(1, total.value_or(0) / (ranks_ * accumulated));
    if (total) check_batch(*total, per_rank, accumulated);
    put("gradient_accumulation_steps", "gradient_accumulation_steps", std::to_string(accumulated));
    if (micro || total)
      put(micro ? "train_micro_batch_size_per_gpu" : "train_batch_size", "batch_size",
          std::to_string(per_rank * ranks_));
  }

  void check_batch(int64_t total, int64_t per_rank, int64_t accumulated) const {
    const int64_t one_rank = per_rank * accumulated;
    const std::string hint =
        total % one_rank == 0 ? c10::str("Set `ranks` to ", total / one_rank, ".") : "Change one of these numbers.";
    TORCH_CHECK_VALUE(total == one_rank * ranks_, where_, ": train_batch_size: expected ",
                      "train_micro_batch_size_per_gpu × gradient_accumulation_steps × ranks = ", per_rank, " × ",
                      accumulated, " × ", ranks_, " = ", one_rank * ranks_, ", found ", total, ". ", hint);
  }

  // ---- optimizer and schedule

  /// Returns the type of the optimizer or the schedule in lower case; "" if there is none.
  std::string type_in(const std::string& section) {
    const std::string type = text_at(section + ".type");
    const DsJson* found = value_of(section);
    if (type.empty() && found && !found->empty())
      report(section, c10::str("The parameters are not imported, because ", section, ".type has no value."));
    return type;
  }

  void import_optimizer() {
    const std::string type = type_in("optimizer");
    if (type.empty()) return;
    const auto* found = std::ranges::find(ds_optimizers, type, &DsOptimizer::type);
    if (found == std::end(ds_optimizers)) {
      report("optimizer.type",
             "There is no such optimizer in a recipe, so its parameters are not imported. Set optimizer, lr and "
             "weight_decay.");
      return;
    }
    const DsJson* decoupled = value_of("optimizer.params.adam_w_mode");
    const bool l2 = type == "adam" && decoupled && !decoupled->get<bool>();
    put("optimizer.type", "optimizer", l2 ? "adam" : found->name);
    if (*found->difference) report("optimizer.type", found->difference);
    put_lr("optimizer.params.lr", found->lr);
    const bool torch_adamw = is_on("optimizer.params.torch_adam") && !l2;
    put_number("optimizer.params.weight_decay", "weight_decay", torch_adamw ? 0.01 : 0);
    import_momentum(*found);
  }

  void import_momentum(const DsOptimizer& optimizer) {
    const std::string name = optimizer.name;
    if (name == "sgd" || name == "rmsprop") {
      put_number("optimizer.params.momentum", "momentum", 0);
    } else if (value_of("optimizer.params.momentum")) {
      report("optimizer.params.momentum", "The key momentum applies to sgd and rmsprop only, not to " + name + ".");
    }
    report_constants("optimizer.params.betas", optimizer.betas, optimizer.default_betas);
    report_constants("optimizer.params.eps", optimizer.eps, optimizer.eps);
  }

  /// Reports a parameter that differs from the constant in Bellows.
  /// Params: constant, standard – of Bellows and DeepSpeed, as JSON; "" if the optimizer has no such parameter
  void report_constants(const std::string& path, const std::string& constant, const std::string& standard) {
    const DsJson* value = value_of(path);
    if (is_auto(path) || (!value && constant == standard)) return;
    if (value && !constant.empty() && *value == DsJson::parse(constant)) return;
    report(path, value ? ds_value_text(*value) : standard + " (default)",
           constant.empty() ? std::string("The optimizer has no such parameter.")
                            : c10::str("A recipe always uses ", constant,
                                       ". In your own loop, set it in the options of the optimizer."));
  }

  void import_schedule() {
    const std::string type = type_in("scheduler");
    if (type.empty()) return;
    const auto* found = std::ranges::find(ds_schedules, type, &DsSchedule::type);
    if (found == std::end(ds_schedules)) {
      report("scheduler.type",
             "There is no such schedule in a recipe, so its parameters are not imported. Set lr_schedule.");
      return;
    }
    put("scheduler.type", "lr_schedule", found->name);
    if (!found->lr.empty()) {
      const std::string path = c10::str(ds_params, found->lr);
      if (value_of(path) || found->default_lr > 0) put_lr(path, found->default_lr);
    }
    if (found->warmup) report_warmup();
    import_schedule_end(type);
  }

  /// DeepSpeed counts the warmup in steps, whose number per epoch depends on the data.
  void report_warmup() {
    const std::string steps_path = c10::str(ds_params, "warmup_num_steps"),
                      type_path = c10::str(ds_params, "warmup_type");
    const auto steps = integer_at(steps_path, 0, INT64_MAX);
    if (steps && *steps == 0) return;
    const bool known = steps || !is_auto(steps_path);
    if (known)
      report(
          steps_path, steps ? std::to_string(*steps) : "1000 (default)",
          "A recipe counts the warmup in epochs. Set warmup_epochs to this number, divided by the optimizer steps per "
          "epoch.");
    const std::string warmup = text_at(type_path);
    if (warmup == "linear" || is_auto(type_path) || (warmup.empty() && !known)) return;
    report(type_path, warmup.empty() ? "\"log\" (default)" : ds_value_text(*value_of(type_path)),
           "The warmup of a recipe is linear.");
  }

  void import_schedule_end(const std::string& type) {
    const std::string ratio = c10::str(ds_params, "cos_min_ratio"), low = c10::str(ds_params, "cycle_min_lr"),
                      high = c10::str(ds_params, "cycle_max_lr");
    if (type == "warmupcosinelr") put_number(ratio, "lr_schedule_end", 1e-4);
    if (type != "onecycle" || !value_of(low)) return;
    if (!value_of(high)) return report(low, "lr_schedule_end is a fraction of cycle_max_lr, which has no value.");
    const auto from = value_of(low)->get<double>(), to = value_of(high)->get<double>();
    if (!(from >= 0 && from <= to && to > 0)) reject(low, "a number from 0 to cycle_max_lr", *value_of(low));
    put(low, "lr_schedule_end", DsJson(from / to).dump());
  }

  // ---- precision

  void import_precision() {
    std::vector<std::string> on;
    for (const char* section : {"fp16", "bf16", "torch_autocast", "amp"}) {
      if (is_on(c10::str(section, ".enabled"))) on.emplace_back(section);
    }
    if (on.empty()) return;
    TORCH_CHECK_VALUE(on.size() == 1, where_, ": ", on[1], ".enabled: expected false, because ", on[0],
                      ".enabled is true, found true. Turn on only one of them.");
    if (on[0] == "amp") return import_apex();
    if (on[0] != "torch_autocast") return put(on[0] + ".enabled", "precision", on[0]);
    const std::string dtype = text_at("torch_autocast.dtype");
    const bool half = dtype == "float16" || dtype == "fp16" || dtype == "torch.float16" || dtype == "half";
    const bool known = half || dtype.empty() || dtype == "bfloat16" || dtype == "bf16" || dtype == "torch.bfloat16";
    if (!known) reject("torch_autocast.dtype", "bfloat16 or float16", *value_of("torch_autocast.dtype"));
    put("torch_autocast.enabled", "precision", half ? "fp16" : "bf16");
  }

  /// NVIDIA apex computes in fp16.
  void import_apex() {
    const DsJson* found = value_of("amp.opt_level");
    const std::string level = found ? found->get<std::string>() : "O1";
    constexpr std::string_view levels[] = {"O0", "O1", "O2", "O3"};
    if (std::ranges::find(levels, level) == std::end(levels)) reject("amp.opt_level", "O0, O1, O2 or O3", *found);
    if (level == "O0") return;
    put("amp.enabled", "precision", "fp16");
    if (result_.recipe.max_grad_norm > 0 || result_.recipe.gradient_accumulation_steps > 1) {
      if (level != "O1")
        report("amp.opt_level", "With fp16, max_grad_norm and gradient_accumulation_steps need amp_level: O1.");
      return;
    }
    put("amp.opt_level", "amp_level", level);
  }

  // ---- ranks

  void import_zero() {
    constexpr const char* strategies[] = {"ddp", "zero1", "zero2", "zero3"};
    const int64_t stage = integer_at("zero_optimization.stage", 0, 3).value_or(0);
    put("zero_optimization.stage", "data_parallel", strategies[stage]);
    if (stage > 0) import_bucket(stage);
    if (is_on("zero_optimization.cpu_offload")) put_offload("zero_optimization.cpu_offload", "offload_state", "host");
    for (const char* path : {"zero_optimization.cpu_offload_param", "zero_optimization.cpu_offload_params"}) {
      if (is_on(path)) put_offload(path, "offload_parameters", "host");
    }
    import_offload("zero_optimization.offload_optimizer", "offload_state");
    import_offload("zero_optimization.offload_param", "offload_parameters");
  }

  /// Params: section – with the keys `device` and `nvme_path`; key – of the recipe
  void import_offload(const std::string& section, const std::string& key) {
    const std::string device_path = section + ".device", folder_path = section + ".nvme_path";
    const std::string device = text_at(device_path);
    if (device.empty() || device == "none") return;
    if (device == "cpu") return put_offload(device_path, key, "host");
    if (device != "nvme") reject(device_path, "none, cpu or nvme", *value_of(device_path));
    const DsJson* folder = value_of(folder_path);
    if (!folder || folder->get<std::string>().empty()) {
      report(device_path, c10::str("nvme_path has no value. Set ", key, ": file and offload_shard_folder."));
      return;
    }
    const auto path = folder->get<std::string>();
    const std::string before = result_.recipe.offload_shard_folder;
    if (!before.empty() && before != path)
      return report(folder_path, c10::str(key, " also uses offload_shard_folder, which is ", before, "."));
    put_offload(device_path, key, "file", path);
  }

  void put_offload(const std::string& path, const std::string& key, const std::string& place,
                   const std::string& folder = {}) {
    const std::string& strategy = result_.recipe.data_parallel;
    const bool fits = key == "offload_parameters" ? strategy == "zero3" : strategy.starts_with("zero");
    if (!fits) return report(path, c10::str(key, " does not work with data_parallel ", strategy, "."));
    put(path, key, place);
    if (!folder.empty()) put(path, "offload_shard_folder", folder);
  }

  /// DeepSpeed counts the elements of a bucket. Its defaults do not replace the default of the recipe.
  void import_bucket(int64_t stage) {
    constexpr int64_t most = int64_t{1} << 40;
    const std::string reduce_path = "zero_optimization.reduce_bucket_size";
    const std::string prefetch_path = "zero_optimization.stage3_prefetch_bucket_size";
    auto reduced = integer_at(reduce_path, 0, most);
    auto prefetched = stage == 3 ? integer_at(prefetch_path, 0, most) : std::nullopt;
    if (reduced == 500'000'000) reduced.reset();
    if (prefetched == 50'000'000 || prefetched == 500'000'000) prefetched.reset();
    if (reduced) put_bucket(reduce_path, *reduced);
    if (!reduced && prefetched) put_bucket(prefetch_path, *prefetched);
    if (reduced && prefetched && *reduced != *prefetched)
      report(prefetch_path, "bucket_mb is the size of all buckets. It has the value of reduce_bucket_size.");
  }

  /// Weights and gradients are in fp32 with amp_level: O1, so that an element has 4 bytes.
  void put_bucket(const std::string& path, int64_t elements) {
    constexpr int64_t most_mb = 4096, per_mb = (1 << 20) / 4;
    const int64_t mb = (elements + per_mb - 1) / per_mb;
    put(path, "bucket_mb", std::to_string(std::clamp<int64_t>(mb, 1, most_mb)));
    if (mb > most_mb)
      report(path, c10::str("These elements have ", mb, " MiB, but bucket_mb is at most ", most_mb, "."));
  }

  void import_communication() {
    const std::string path = "communication_data_type", dtype = text_at(path);
    if (dtype.empty() || dtype == "fp32") return;
    if (dtype != "fp16" && dtype != "bf16") reject(path, "fp32, fp16 or bf16", *value_of(path));
    const bool shards_gradients = result_.recipe.data_parallel == "zero2" || result_.recipe.data_parallel == "zero3";
    if (shards_gradients) {
      report(path, "gradient_compression works with data_parallel ddp and zero1 only. Gradients are sent in fp32.");
    } else {
      put(path, "gradient_compression", dtype);
    }
  }

  void import_accumulation_dtype() {
    const std::string path = "data_types.grad_accum_dtype", dtype = text_at(path);
    if (dtype.empty() || dtype == "fp32") return;
    if (dtype != "fp16" && dtype != "bf16") reject(path, "fp32, fp16 or bf16", *value_of(path));
    if (dtype == "bf16" && ranks_ == 1 && result_.recipe.data_parallel == "ddp")
      return put(path, "gradient_accumulation_dtype", dtype);
    report(path, dtype == "fp16" ? "Gradients are accumulated in fp32. gradient_accumulation_dtype: bf16 is available."
                                 : "gradient_accumulation_dtype works with one process and ddp only.");
  }

  // ---- memory and logs

  /// DeepSpeed's section only has options: the program chooses what to checkpoint. Any of them suggests that it does.
  void import_activations() {
    const std::string section = "activation_checkpointing.";
    const int64_t checkpoints = integer_at(section + "number_checkpoints", 0, INT64_MAX).value_or(0);
    if (checkpoints > 0 || is_on(section + "partition_activations") || is_on(section + "cpu_checkpointing"))
      put(section + "number_checkpoints", "recompute", "blocks");
  }

  void import_logs() {
    if (const auto steps = integer_at("steps_per_print", 1, INT64_MAX))
      put("steps_per_print", "logging_steps", std::to_string(*steps));
    const bool csv = is_on("csv_monitor.enabled"), tensorboard = is_on("tensorboard.enabled");
    if (tensorboard) put("tensorboard.enabled", "log", csv ? "csv, tensorboard" : "tensorboard");
  }

  ImportedRecipe finish() {
    std::ranges::stable_sort(result_.unsupported, {}, &UnsupportedKey::key);
    result_.recipe.validate();
    std::istringstream before(Recipe{}.to_yaml()), after(result_.recipe.to_yaml());
    for (std::string old_line, line; std::getline(before, old_line) && std::getline(after, line);) {
      if (line != old_line) result_.changed.push_back(line.substr(0, line.find(':')));
    }
    return std::move(result_);
  }

  const DsJson document_;
  const std::string where_;
  const int64_t ranks_;
  ImportedRecipe result_;
};

}  // namespace

std::string ImportedRecipe::to_yaml() const {
  std::string text;
  std::istringstream lines(recipe.to_yaml());
  for (std::string line; std::getline(lines, line);) {
    if (std::ranges::find(changed, line.substr(0, line.find(':'))) != changed.end()) text += line + "\n";
  }
  return text;
}

ImportedRecipe import_deepspeed_config(std::string_view json, std::string_view where, int64_t ranks) {
  const std::string origin = c10::str("import: ", where);
  constexpr int64_t most_ranks = 1 << 20;
  TORCH_CHECK_VALUE(ranks >= 1 && ranks <= most_ranks, origin, ": expected `ranks` from 1 to ", most_ranks, ", found ",
                    ranks, ".");
  DsJson document = parse_ds_json(json, origin);
  TORCH_CHECK_VALUE(document.is_object(), origin, ": expected a JSON object with the keys of DeepSpeed, found ",
                    ds_value_text(document), ".");
  return DeepSpeedImport(std::move(document), origin, ranks).run();
}

}  // namespace bellows::train
