#include "bellows/train/inference/streamed_model.h"

#include <ATen/ops/from_blob.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <filesystem>
#include <unordered_set>
#include <utility>

#include "bellows/amp/policy.h"
#include "bellows/amp/weight_shapes.h"
#include "bellows/checkpoint/folder.h"
#include "bellows/core/error.h"
#include "bellows/core/log.h"
#include "bellows/core/stats.h"
#include "bellows/io/hash.h"
#include "bellows/io/network/hub.h"
#include "bellows/io/tensors/safetensors.h"
#include "bellows/models/registry.h"
#include "bellows/models/weights.h"
#include "bellows/quant/file.h"
#include "bellows/tap/skip_initialization.h"
#include "bellows/train/job.h"
#include "bellows/train/recipe/recipe_error.h"

namespace bellows::train {

namespace {

namespace fs = std::filesystem;

void check_streamable(const Recipe& recipe, const WeightMemory& memory) {
  TORCH_CHECK_VALUE(memory.bytes > 0, "streamed weights: expected a budget of at least 1 byte, got ", memory.bytes,
                    ".");
  const bool program = models::is_program_path(recipe.model);
  TORCH_CHECK_VALUE(!program, "streamed weights: the model ", recipe.model,
                    " is a file that contains its weights. Use a registered model or a config.json "
                    "together with a safetensors file.");
}

/// The model without values. Large weights have no memory.
StreamedModel model_without_values(Recipe recipe) {
  recipe.weights.clear();
  recipe.compile = "none";
  ResolvedJob job = recipe.data.empty() ? resolve_model(recipe) : resolve(recipe);
  const int64_t outputs = job.task.classifies_samples() ? job.num_classes() : job.task.outputs;
  TORCH_CHECK_VALUE(job.task.loss == LossKind::next_token || outputs > 0,
                    "the number of classes is unknown. Set num_classes, or `data` to a dataset with classes.");
  const tap::SkipInitialization no_values(/*fills=*/false);
  Model model = job.model.make(std::max<int64_t>(outputs, 1), job.input_width());
  Recipe on_cpu = job.recipe;
  on_cpu.device = "cpu";  // the weights move to the device one after the other
  place_model(on_cpu, model);
  const amp::Policy policy = precision_policy(job.recipe);
  if (policy.low_weights) model = amp::apply_without_values(model, policy);
  model.eval();
  return {.trained = {.job = std::move(job), .model = std::move(model), .weights = ""}, .weights = nullptr, .file = ""};
}

/// The tensors of a file as views of its mapping, which need no memory of the process.
NamedTensors mapped_tensors(const io::SafetensorsFile& file, const std::string& path) {
  NamedTensors tensors;
  for (const io::SafetensorsEntry& entry : file.entries()) {
    const c10::ScalarType dtype = io::safetensors_dtype(entry, path);
    const io::ByteSpan bytes = file.bytes(entry);
    const bool aligned = reinterpret_cast<uintptr_t>(bytes.data()) % c10::elementSize(dtype) == 0;
    tensors.emplace_back(
        entry.name, aligned ? at::from_blob(const_cast<std::byte*>(bytes.data()), entry.shape, at::TensorOptions(dtype))
                            : file.tensor(entry));
  }
  return tensors;
}

void log_placement(const parallel::DeviceMap& map, const std::string& path) {
  const auto text = [](int64_t bytes) { return format_bytes(static_cast<double>(bytes)); };
  if (map.all_on_device()) {
    log_info("streamed weights: all weights (", text(map.device_bytes), ") fit into memory.");
    return;
  }
  log_info("streamed weights: ", text(map.device_bytes), " of the weights stay in memory. Each batch reads the other ",
           text(map.disk_bytes), " from ", path, " into ", text(map.working_bytes), " of working memory.");
}

/// Throws: c10::ValueError if the budget is smaller than the largest module
parallel::DeviceMap map_within(const Model& model, const WeightMemory& memory) {
  try {
    return parallel::infer_device_map(model, {.device_bytes = memory.bytes});
  } catch (const c10::Error& error) {
    TORCH_CHECK_VALUE(false, "streamed weights: the memory for the weights is too small. ", user_message(error));
  }
}

StreamedModel streamed_from(const Recipe& recipe, const std::string& path, const std::string& source,
                            const WeightMemory& memory) {
  StreamedModel result = model_without_values(recipe);
  parallel::DeviceMap map = map_within(result.trained.model, memory);
  try {
    std::map<std::string, std::string> names;
    {
      const io::SafetensorsFile file(path);
      names = models::weight_names(result.trained.model, mapped_tensors(file, path));
    }
    result.weights = std::make_shared<parallel::StreamedWeights>(
        result.trained.model, parallel::StreamedWeightsOptions{.file = path,
                                                               .names = std::move(names),
                                                               .device_map = std::move(map),
                                                               .device = result.trained.job.device});
  } catch (const c10::ValueError& error) {  // of the file
    TORCH_CHECK_VALUE(false, "`weights`: ", path, ": ", user_message(error));
  }
  log_placement(result.weights->device_map(), path);
  result.trained.model = result.weights->model();
  result.trained.weights = source;
  result.file = path;
  return result;
}

/// Tensors of the model; tied ones once.
NamedTensors distinct_tensors(const Model& model) {
  NamedTensors tensors;
  std::unordered_set<const c10::TensorImpl*> seen;
  for (const auto& [name, tensor] : model.state_dict()) {
    if (seen.insert(tensor.unsafeGetTensorImpl()).second) tensors.emplace_back(name, tensor.detach());
  }
  return tensors;
}

/// The name of the converted file. It depends on the source, its size and time, and on the model.
std::string converted_name(const std::string& source, const Recipe& recipe) {
  std::error_code unreadable;
  std::string key = fs::weakly_canonical(source, unreadable).string();
  const auto add = [&](const fs::path& path) {
    key += c10::str("\n", path.filename().string(), " ", fs::file_size(path, unreadable), " ",
                    fs::last_write_time(path, unreadable).time_since_epoch().count());
  };
  if (fs::is_directory(source, unreadable)) {
    std::vector<fs::path> files;
    for (const auto& entry : fs::directory_iterator(source, unreadable)) files.push_back(entry.path());
    std::ranges::sort(files);
    for (const fs::path& file : files) add(file);
  } else {
    add(source);
  }
  key += c10::str("\n", recipe.model, " ", recipe.precision, " ", recipe.amp_level);
  return "weights-" + io::hash_hex("sha256", std::as_bytes(std::span(key))).substr(0, 16) + ".safetensors";
}

/// Writes the weights of a loaded model to the folder, unless an earlier call has done so.
template <class Load>
std::string converted(const std::string& source, const Recipe& recipe, const WeightMemory& memory, const Load& load) {
  TORCH_CHECK_VALUE(!memory.folder.empty(), source,
                    ": weights can be streamed only from a safetensors file. Set a folder, in which a safetensors file "
                    "with these weights is written once.");
  std::string path = memory.folder + "/" + converted_name(source, recipe);
  std::error_code unreadable;
  if (fs::exists(path, unreadable)) return path;
  std::error_code error;
  fs::create_directories(memory.folder, error);
  TORCH_CHECK(!error, "streamed weights: cannot create the folder ", memory.folder, ": ", error.message(), ".");
  const TrainedModel loaded = load();
  if (loaded.weights != source) {  // a run has a newer checkpoint by now, or the newest one cannot be read
    path = memory.folder + "/" + converted_name(loaded.weights, recipe);
    if (fs::exists(path, unreadable)) return path;
  }
  TORCH_CHECK_VALUE(loaded.trained_layers.empty() && !loaded.quantized, source,
                    ": the model was quantized. Quantized weights cannot be streamed; they are a quarter of the size.");
  const std::vector<std::pair<std::string, std::string>> metadata = {{"bellows.source", loaded.weights},
                                                                     {"bellows.step", std::to_string(loaded.step)},
                                                                     {"bellows.averaged", loaded.averaged ? "1" : "0"}};
  io::save_safetensors(path, distinct_tensors(loaded.model), {.metadata = metadata, .keep_memory_format = false});
  log_info("streamed weights: wrote the weights of ", loaded.weights, " to ", path, " (",
           format_bytes(static_cast<double>(fs::file_size(path, unreadable))), "), for this run and later ones.");
  return path;
}

/// Restores what the converted file states about its source.
void take_metadata(TrainedModel& trained, const std::string& path) {
  const io::SafetensorsFile file(path);
  for (const auto& [name, value] : file.metadata()) {
    if (name == "bellows.source") trained.weights = value;
    if (name == "bellows.step") trained.step = std::stoll(value);
    if (name == "bellows.averaged") trained.averaged = value == "1";
  }
}

}  // namespace

StreamedModel load_streamed_run(const std::string& run, const Recipe& recipe, const WeightMemory& memory) {
  check_streamable(recipe, memory);
  const std::vector<std::string> checkpoints = checkpoint::list_checkpoints(run);
  TORCH_CHECK_VALUE(!checkpoints.empty(), "`run`: ", run,
                    " contains no checkpoint. Wait until the first checkpoint was saved.");
  const std::string path = converted(checkpoints.back(), recipe, memory, [&] { return load_run(run, recipe); });
  StreamedModel result = streamed_from(recipe, path, checkpoints.back(), memory);
  take_metadata(result.trained, path);
  return result;
}

StreamedModel load_streamed(const Recipe& recipe, const std::string& weights, const WeightMemory& memory) {
  check_streamable(recipe, memory);
  const std::string source = weights.empty() ? recipe.weights : weights;
  check_recipe(!source.empty(), "the model \"", recipe.model,
               "\" would have random weights. Set `weights` to a safetensors file, a torch.save file or a checkpoint.");
  TORCH_CHECK_VALUE(!io::is_remote_address(source), "streamed weights: expected a local file, got ", source,
                    ". Download the file, and set `weights` to its path.");
  std::error_code unreadable;
  if (source.ends_with(".safetensors") && !fs::is_directory(source, unreadable)) {
    TORCH_CHECK_VALUE(!quant::is_quantized_file(source), source,
                      ": the file has quantized weights, which cannot be streamed. They are a quarter of the size.");
    return streamed_from(recipe, source, source, memory);
  }
  const std::string path = converted(source, recipe, memory, [&] { return load_trained(recipe, source); });
  StreamedModel result = streamed_from(recipe, path, source, memory);
  take_metadata(result.trained, path);
  return result;
}

}  // namespace bellows::train
