#include "bellows/parallel/zero/weights_source.h"

#include <c10/core/GradMode.h>
#include <c10/util/Exception.h>

#include <map>
#include <unordered_map>

#include "bellows/core/error.h"
#include "bellows/parallel/ddp/same_model.h"
#include "bellows/parallel/placement/weight_file.h"
#include "bellows/parallel/zero/shard_offload.h"

namespace bellows::parallel {

struct WeightsSource::State {
  const WeightFile file;
  std::map<std::string, const io::SafetensorsEntry*> entries = {};  ///< by the name in the model

  const io::SafetensorsEntry& entry(const std::string& name) const { return *entries.at(name); }
};

namespace {

std::vector<std::string> lines_of(const WeightFile& file) {
  std::vector<std::string> lines;
  for (const io::SafetensorsEntry& entry : file.entries())
    lines.push_back(c10::str(entry.name, " ", entry.dtype, " [", c10::Join(", ", entry.shape), "], bytes ", entry.begin,
                             " to ", entry.end));
  return lines;
}

/// The names of each tensor of the model; tied tensors have several.
std::unordered_map<const c10::TensorImpl*, std::vector<std::string>> names_of_tensors(const Model& model) {
  std::unordered_map<const c10::TensorImpl*, std::vector<std::string>> names;
  for (const auto& [name, tensor] : model.state_dict()) names[tensor.unsafeGetTensorImpl()].push_back(name);
  return names;
}

}  // namespace

WeightsSource::WeightsSource(const std::string& path, const Model& model, const comm::Group& ranks) {
  create_on_all_ranks(ranks, [&] { state_.reset(new State{.file = WeightFile(path)}); });
  check_same_lines("zero_optimizer: the ranks have different files " + path, "tensor", lines_of(state_->file), ranks);
  std::map<std::string, const io::SafetensorsEntry*> in_file;
  std::vector<std::string> known;
  for (const io::SafetensorsEntry& entry : state_->file.entries()) {
    in_file.emplace(entry.name, &entry);
    known.push_back(entry.name);
  }
  const auto names = names_of_tensors(model);
  std::string problems;
  for (const auto& [name, tensor] : model.state_dict()) {
    const io::SafetensorsEntry* found = nullptr;
    for (const std::string& alias : names.at(tensor.unsafeGetTensorImpl())) {
      if (const auto there = in_file.find(alias); there != in_file.end()) found = there->second;
    }
    if (!found) {
      problems += c10::str("\n  \"", name, "\" is missing.", did_you_mean(name, known));
    } else if (tensor.sizes() != found->shape) {
      problems += c10::str("\n  \"", name, "\" has sizes [", c10::Join(", ", found->shape), "], but the model has ",
                           tensor.sizes(), ".");
    }
    state_->entries[name] = found;
  }
  TORCH_CHECK_VALUE(problems.empty(), "zero_optimizer: ", path, " does not fit model \"", model.name(),
                    "\":", problems);
}

WeightsSource::~WeightsSource() = default;

void WeightsSource::read(const std::string& name, const comm::ShardSpec& spec, const at::Tensor& part) const {
  const c10::NoGradGuard no_grad;
  state_->file.read(state_->entry(name), spec, part);
}

void WeightsSource::read(const std::string& name, const at::Tensor& tensor) const {
  read(name, comm::ShardSpec::whole(tensor.sizes().vec()), tensor);
}

}  // namespace bellows::parallel
