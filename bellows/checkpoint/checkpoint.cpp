#include "bellows/checkpoint/checkpoint.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty_strided.h>
#include <c10/core/GradMode.h>

#include <filesystem>
#include <unordered_set>

#include "bellows/checkpoint/format.h"
#include "bellows/checkpoint/saved_checkpoint.h"
#include "bellows/core/error.h"
#include "bellows/io/tensors/torch_file.h"

namespace bellows::checkpoint {

namespace {

/// Size of the tensors in a file, in which each storage is written once.
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

/// Describes the needed and free space: "It needs 123 bytes …, its disk has 45 free", or only the first half.
std::string space_text(const std::string& path, const State& state) {
  std::error_code error;
  const auto space = std::filesystem::space(std::filesystem::absolute(path, error).parent_path(), error);
  std::string text = c10::str("The tensors need ", data_bytes(state), " bytes");
  return error ? text + "." : text + c10::str(", and the disk has ", space.available, " bytes free.");
}

}  // namespace

void save(const std::string& path, const State& state) {
  try {
    io::torch_save(path, pickle_state(state));
  } catch (const c10::ValueError&) {
    throw;  // a tensor that the format does not support
  } catch (const c10::Error& error) {
    TORCH_CHECK(false, "checkpoint: the checkpoint was not saved: ", user_message(error), " ", space_text(path, state));
  }
}

State load(const std::string& path) {
  std::error_code unreadable;
  if (std::filesystem::is_directory(path, unreadable)) return SavedCheckpoint(path).state();
  return unpickle_state(io::torch_load(path), path);
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
