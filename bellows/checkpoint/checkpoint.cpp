#include "bellows/checkpoint/checkpoint.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty_strided.h>
#include <c10/core/GradMode.h>

#include <filesystem>
#include <unordered_set>

#include "bellows/checkpoint/saved_checkpoint.h"
#include "bellows/core/error.h"
#include "bellows/io/tensors/torch_file.h"

namespace bellows::checkpoint {

namespace {

constexpr const char* format_name = "bellows.checkpoint";
constexpr int64_t format_version = 2;  // 2: with "environment"

NamedTensors named_tensors(const io::PickleValue& dict) {
  NamedTensors result;
  for (const auto& [key, value] : dict.items()) result.emplace_back(key.as_string(), value.as_tensor());
  return result;
}

/// A parameter is saved as a tensor: without its place in a graph.
io::PickleValue to_dict(const NamedTensors& tensors) {
  NamedTensors plain;
  for (const auto& [name, tensor] : tensors) plain.emplace_back(name, tensor.detach());
  return plain;
}

io::PickleValue to_pickle(const State& state) {
  io::PickleValue position = io::PickleValue::dict();
  position.set("step", state.step);
  position.set("epoch", state.epoch);
  position.set("batch", state.batch);
  io::PickleValue file = io::PickleValue::dict();
  file.set("format", format_name);
  file.set("version", format_version);
  file.set("model", to_dict(state.model));
  file.set("optimizer", to_dict(state.optimizer));
  file.set("rng", to_dict(state.rng));
  file.set("extra", to_dict(state.extra));
  file.set("position", position);
  file.set("recipe", state.recipe);
  file.set("environment", state.environment);
  return file;
}

State from_pickle(const io::PickleValue& file) {
  State state;
  state.model = named_tensors(file.at("model"));
  state.optimizer = named_tensors(file.at("optimizer"));
  state.rng = named_tensors(file.at("rng"));
  state.extra = named_tensors(file.at("extra"));
  state.step = file.at("position").at("step").as_int();
  state.epoch = file.at("position").at("epoch").as_int();
  state.batch = file.at("position").at("batch").as_int();
  state.recipe = file.at("recipe").as_string();
  if (file.at("version").as_int() >= 2) state.environment = file.at("environment").as_string();
  return state;
}

/// What the tensors take in a file: each storage once.
uint64_t data_bytes(const State& state) {
  std::unordered_set<const c10::StorageImpl*> seen;
  uint64_t bytes = 0;
  for (const NamedTensors* tensors : {&state.model, &state.optimizer, &state.rng, &state.extra}) {
    for (const auto& [name, tensor] : *tensors) {
      if (seen.insert(tensor.storage().unsafeGetStorageImpl()).second) bytes += tensor.storage().nbytes();
    }
  }
  return bytes;
}

/// "it needs 123 bytes, 45 are free": without the path's own disk only the first half.
std::string space_text(const std::string& path, const State& state) {
  std::error_code error;
  const auto space = std::filesystem::space(std::filesystem::absolute(path, error).parent_path(), error);
  std::string text = c10::str("It needs ", data_bytes(state), " bytes for its tensors");
  return error ? text + "." : text + c10::str(", its disk has ", space.available, " free.");
}

}  // namespace

void save(const std::string& path, const State& state) {
  try {
    io::torch_save(path, to_pickle(state));
  } catch (const c10::ValueError&) {
    throw;  // a tensor that the format cannot hold
  } catch (const c10::Error& error) {
    TORCH_CHECK(false, "checkpoint: not saved: ", user_message(error), " ", space_text(path, state));
  }
}

State load(const std::string& path) {
  std::error_code unreadable;
  if (std::filesystem::is_directory(path, unreadable)) return SavedCheckpoint(path).state();
  const io::PickleValue file = io::torch_load(path);
  const io::PickleValue* format = file.is_dict() ? file.find("format") : nullptr;
  TORCH_CHECK_VALUE(
      format && format->is_string() && format->as_string() == format_name, "checkpoint: ", path,
      " is a torch.save file, but not a checkpoint of a training run. Weights alone are read with load_tensors.");
  const int64_t version = file.at("version").as_int();
  TORCH_CHECK_VALUE(version >= 1 && version <= format_version, "checkpoint: ", path, " has version ", version,
                    ", this program reads up to version ", format_version, ". Use a newer Bellows.");
  try {
    return from_pickle(file);
  } catch (const c10::Error& error) {
    TORCH_CHECK_VALUE(false, "checkpoint: ", path, " is incomplete: ", user_message(error));
  }
}

void restore_model(const Model& model, const NamedTensors& tensors) {
  const c10::NoGradGuard no_grad;
  load_state_dict(model, tensors, /*strict=*/true);
  NamedTensors own = model.state_dict();
  for (const auto& [name, saved] : tensors) {
    for (auto& [own_name, tensor] : own) {
      if (own_name != name || tensor.strides() == saved.strides()) continue;
      tensor.set_data(at::empty_strided(saved.sizes(), saved.strides(), tensor.options()).copy_(tensor));
    }
  }
}

}  // namespace bellows::checkpoint
