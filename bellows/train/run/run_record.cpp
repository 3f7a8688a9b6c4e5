#include "bellows/train/run/run_record.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <ATen/Version.h>
#include <sys/stat.h>
#include <unistd.h>
#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <array>
#include <mutex>
#include <nlohmann/json.hpp>
#include <set>

#include "bellows/core/version.h"
#include "bellows/data/fingerprint.h"
#include "bellows/io/crc32.h"
#include "bellows/system/file.h"
#include "bellows/system/machine.h"

namespace bellows::train {

namespace {

using Facts = std::map<std::string, std::string>;

constexpr std::string_view environment_prefix = "env.";

/// Environment variables that OpenMP, math libraries, libtorch and the allocator read.
constexpr std::array<std::string_view, 14> watched_variables = {"OMP_",    "GOMP_",   "KMP_",    "MKL_",      "ONEDNN_",
                                                                "DNNL_",   "ATEN_",   "TORCH_",  "PYTORCH_",  "CUDA_",
                                                                "CUBLAS_", "NVIDIA_", "MALLOC_", "LD_PRELOAD"};

/// The size of libtorch's flight recorder. A world of several ranks sets it (comm/group.cpp).
constexpr std::string_view set_by_ranks = "TORCH_FR_BUFFER_SIZE";

/// Facts that must be equal for bit-identical results.
const std::set<std::string, std::less<>> facts_of_bits = {"bellows",
                                                          "libtorch",
                                                          "mkl",
                                                          "onednn",
                                                          "compiler",
                                                          "build_flags",
                                                          "model_file",
                                                          "teacher_weights_file",
                                                          "tokenizer_file",
                                                          "cpu",
                                                          "instruction_sets",
                                                          "cpu_capability",
                                                          "threads",
                                                          "deterministic_algorithms",
                                                          "float32_matmul_precision",
                                                          "onednn_enabled",
                                                          "cudnn_deterministic",
                                                          "cudnn_benchmark",
                                                          "tf32_cudnn"};

/// Whether a variable changes results, and not only speed or output. Thread counts and vector instructions are recorded
/// as separate facts.
bool variable_changes_bits(std::string_view name) {
  if (name.find("VERBOSE") != std::string_view::npos) return false;
  return name.starts_with("MKL_") || name.starts_with("ONEDNN_") || name.starts_with("DNNL_") ||
         name.starts_with("CUBLAS_") || name.starts_with("NVIDIA_") || name == "OMP_DYNAMIC";
}

bool fact_changes_bits(const std::string& name) {
  if (name.starts_with(environment_prefix)) return variable_changes_bits(name.substr(environment_prefix.size()));
  return facts_of_bits.contains(name);
}

const char* on_off(bool on) {
  return on ? "on" : "off";
}

void add_versions(Facts& facts, const Machine& machine) {
  facts["bellows"] = BELLOWS_VERSION;
  facts["libtorch"] = machine.libtorch;
  facts["libtorch_path"] = machine.libtorch_path;
  facts["mkl"] = at::get_mkl_version();
  facts["onednn"] = at::get_mkldnn_version();
#ifdef __clang__
  facts["compiler"] = __VERSION__;
#else
  facts["compiler"] = "GCC " __VERSION__;
#endif
  facts["build_flags"] = BELLOWS_BUILD_FLAGS;
}

void add_machine(Facts& facts, const Machine& machine) {
  std::string instruction_sets;
  for (const std::string& name : machine.isa) instruction_sets += (instruction_sets.empty() ? "" : " ") + name;
  std::array<char, 256> host{};
  ::gethostname(host.data(), host.size() - 1);
  facts["host"] = host.data();
  facts["os"] = machine.os;
  facts["cpu"] = machine.cpu + (machine.cpu_family_model.empty() ? "" : ", " + machine.cpu_family_model);
  facts["instruction_sets"] = instruction_sets;
  facts["cpu_capability"] = at::get_cpu_capability();
  facts["cores"] = std::to_string(machine.cores);
  facts["memory_bytes"] = std::to_string(machine.memory_bytes);
}

void add_settings(Facts& facts) {
  const at::Context& context = at::globalContext();
  facts["threads"] = std::to_string(at::get_num_threads());
  facts["interop_threads"] = std::to_string(at::get_num_interop_threads());
  facts["deterministic_algorithms"] =
      context.deterministicAlgorithmsWarnOnly() ? "warn" : on_off(context.deterministicAlgorithms());
  facts["float32_matmul_precision"] =
      std::array{"highest", "high", "medium"}.at(static_cast<size_t>(context.float32MatmulPrecision()));
  facts["onednn_enabled"] = on_off(context.userEnabledMkldnn());
  facts["cudnn_deterministic"] = on_off(context.deterministicCuDNN());
  facts["cudnn_benchmark"] = on_off(context.benchmarkCuDNN());
  facts["tf32_cudnn"] = on_off(context.allowTF32CuDNN());
  at::Generator generator = at::detail::getDefaultCPUGenerator();
  const std::lock_guard lock(generator.mutex());
  facts["seed"] = std::to_string(generator.current_seed());
}

void add_environment(Facts& facts) {
  for (char** variable = environ; variable && *variable; ++variable) {
    const std::string_view entry = *variable;
    const std::string_view name = entry.substr(0, entry.find('='));
    const bool watched = std::any_of(watched_variables.begin(), watched_variables.end(),
                                     [&](std::string_view prefix) { return name.starts_with(prefix); });
    if (watched && name != set_by_ranks && name.size() < entry.size()) {
      facts[std::string(environment_prefix) + std::string(name)] = entry.substr(name.size() + 1);
    }
  }
}

/// Records size and checksum of files, because another file may have the same name.
void add_file(Facts& facts, const char* what, const std::string& path) {
  struct stat status {};
  if (::stat(path.c_str(), &status) != 0 || !S_ISREG(status.st_mode)) return;
  const MappedFile file(path);
  facts[what] = c10::str(file.bytes().size(), " bytes, crc32 ", io::crc32(file.bytes()));
}

YAML::Node recipe_values(const std::string& yaml, const char* which) {
  try {
    const YAML::Node values = YAML::Load(yaml);
    if (values.IsMap() || values.IsNull()) return values;
  } catch (const YAML::Exception&) {
  }
  TORCH_CHECK_VALUE(false, "differences: the recipe of the run ", which, " is not YAML of the form `key: value`.");
}

/// Looks up a key, also under its former name, which records of older versions use.
std::string value_or_default(const YAML::Node& values, const RecipeField& field) {
  for (const std::string& name : {field.name, field.former_name}) {
    if (name.empty() || !values.IsMap()) continue;
    const YAML::Node value = values[name];
    if (value && value.IsScalar()) return value.Scalar();
  }
  return YAML::Load(field.default_value).as<std::string>("");
}

/// Schedules that depend on the length of the run.
bool depends_on_the_end(const std::string& schedule) {
  return schedule != "constant" && schedule != "plateau";
}

void compare_recipes(const RunRecord& then, const RunRecord& now, std::vector<RunDifference>& result) {
  const YAML::Node before = recipe_values(then.recipe, "then"), after = recipe_values(now.recipe, "now");
  std::string schedule;
  for (const RecipeField& field : recipe_fields()) {
    if (field.name == "lr_schedule") schedule = value_or_default(after, field);
  }
  for (const RecipeField& field : recipe_fields()) {
    const std::string old_value = value_or_default(before, field), new_value = value_or_default(after, field);
    const bool changes_bits = field.changes_bits || (field.name == "epochs" && depends_on_the_end(schedule)) ||
                              (field.name == "eval_steps" && schedule == "plateau");
    if (old_value != new_value) result.push_back({"recipe." + field.name, old_value, new_value, changes_bits});
  }
}

void compare_facts(const Facts& then, const Facts& now, std::vector<RunDifference>& result) {
  Facts all = then;
  all.insert(now.begin(), now.end());
  for (const auto& [name, value] : all) {
    const auto before = then.find(name), after = now.find(name);
    const bool both = before != then.end() && after != now.end();
    if (both ? before->second == after->second : !name.starts_with(environment_prefix)) continue;
    if (name == "seed") continue;  // irrelevant, because the checkpoint contains the generator states
    result.push_back({name, before == then.end() ? "" : before->second, after == now.end() ? "" : after->second,
                      fact_changes_bits(name)});
  }
}

}  // namespace

std::string RunDifference::to_string() const {
  const auto shown = [](const std::string& value) { return value.empty() ? std::string("not set") : value; };
  return what + ": " + shown(then) + " before, " + shown(now) + " now";
}

DataPrints data_prints(const Job& job) {
  return {.train = data::fingerprint(job.train), .eval = job.eval ? data::fingerprint(*job.eval) : ""};
}

RunRecord this_run(const Recipe& recipe, const std::string& fingerprint) {
  const Machine machine = this_machine();
  RunRecord record;
  add_versions(record.facts, machine);
  add_machine(record.facts, machine);
  add_settings(record.facts);
  add_environment(record.facts);
  add_file(record.facts, "model_file", recipe.model);
  add_file(record.facts, "tokenizer_file", recipe.tokenizer);
  add_file(record.facts, "teacher_weights_file", recipe.teacher_weights);
  record.recipe = recipe.to_yaml();
  record.data = fingerprint;
  return record;
}

std::string to_json(const RunRecord& record) {
  const nlohmann::ordered_json json = {{"facts", record.facts}, {"data", record.data}, {"recipe", record.recipe}};
  return json.dump(1, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
}

RunRecord run_record_from_json(std::string_view json, const std::string& where) {
  try {
    const auto document = nlohmann::json::parse(json);
    return {document.at("facts").get<Facts>(), document.at("recipe").get<std::string>(),
            document.at("data").get<std::string>()};
  } catch (const nlohmann::json::exception& error) {
    TORCH_CHECK_VALUE(false, where, ": expected the record of a run (facts, data and recipe as JSON): ", error.what(),
                      ".");
  }
}

std::vector<RunDifference> differences(const RunRecord& then, const RunRecord& now) {
  std::vector<RunDifference> result;
  if (then.data != now.data) result.push_back({"data", then.data, now.data, true});
  compare_recipes(then, now, result);
  compare_facts(then.facts, now.facts, result);
  std::stable_partition(result.begin(), result.end(), [](const RunDifference& d) { return d.changes_bits; });
  return result;
}

}  // namespace bellows::train
