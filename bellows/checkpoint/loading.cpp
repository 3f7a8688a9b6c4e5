#include "bellows/checkpoint/loading.h"

#include <c10/util/Exception.h>

#include <nlohmann/json.hpp>
#include <set>

#include "bellows/checkpoint/saving.h"
#include "bellows/io/tensors/safetensors.h"

namespace bellows::checkpoint {

namespace {

using nlohmann::json;

std::string section_of(const std::string& name) {
  return name.substr(0, name.find('/'));
}

std::string problem_of(const Part& part, const SavedTensor& saved) {
  const std::string_view dtype = io::safetensors_dtype_name(part.local.scalar_type());
  TORCH_CHECK_VALUE(part.spec.is_inside() && part.local.numel() == part.spec.numel(), "load_sharded: ", part.name,
                    ": expected a tensor of ", part.spec.numel(), " elements for a part inside [",
                    c10::Join(", ", part.spec.sizes), "], got ", part.local.sizes(), ".");
  if (part.spec.sizes == saved.sizes && dtype == saved.dtype) return "";
  return c10::str(part.name, ": file ", saved.dtype, " [", c10::Join(", ", saved.sizes), "], wanted ", dtype, " [",
                  c10::Join(", ", part.spec.sizes), "]");
}

/// Combines the ranks' comparisons (see Loading::compare).
LoadReport joined_report(const std::vector<std::string>& said, const ShardedIndex& index) {
  std::set<std::string> missing, mismatched, sections;
  std::vector<bool> taken(index.tensors.size());
  for (const std::string& one : said) {
    const json report = json::parse(one);
    for (const auto& [key, into] :
         {std::pair("missing", &missing), std::pair("mismatched", &mismatched), std::pair("sections", &sections)}) {
      for (const json& name : report[key]) into->insert(name.get<std::string>());
    }
    for (const json& number : report["taken"]) taken[number.get<size_t>()] = true;
  }
  LoadReport report{.missing = {missing.begin(), missing.end()}, .mismatched = {mismatched.begin(), mismatched.end()}};
  for (size_t i = 0; i < taken.size(); ++i) {
    if (!taken[i] && sections.contains(section_of(index.tensors[i].name)))
      report.unexpected.push_back(index.tensors[i].name);
  }
  return report;
}

}  // namespace

Outcomes Loading::open() {
  return on_all_ranks(group_, [&] {
    saved_ = std::make_unique<SavedCheckpoint>(path_);
    return std::string();
  });
}

/// Returns: as JSON, the tensors that this rank needs and finds
std::string Loading::compare() {
  json missing = json::array(), mismatched = json::array(), taken = json::array();
  std::set<std::string> sections;
  if (prepare_) prepare_(saved_->index(), state_);
  ShardedState wanted = state_;
  wanted.rng.clear();
  for (Part& part : named_parts(wanted, group_.rank())) {
    TORCH_CHECK_VALUE(part.local.defined(), "load_sharded: ", part.name, " is an undefined tensor.");
    sections.insert(section_of(part.name));
    const SavedTensor* saved = saved_->find(part.name);
    const std::string problem = saved ? problem_of(part, *saved) : "";
    if (!saved) missing.push_back(part.name);
    if (!problem.empty()) mismatched.push_back(problem);
    if (!saved) continue;
    taken.push_back(saved - saved_->index().tensors.data());
    wanted_.emplace_back(saved, std::move(part));
  }
  return json{{"missing", missing}, {"mismatched", mismatched}, {"sections", sections}, {"taken", taken}}.dump(
      -1, ' ', false, json::error_handler_t::replace);
}

void Loading::match() {
  const Outcomes compared = on_all_ranks(group_, [&] { return compare(); });
  compared.check("checkpoint: ");
  const LoadReport report = joined_report(compared.results, saved_->index());
  TORCH_CHECK_VALUE(report.complete(), "checkpoint: ", path_, " does not fit the state of this job:\n",
                    report.to_string(), "\nResume with the model and the optimizer of the saved run.");
  const std::string mine = c10::str("rng/", group_.rank(), "/");
  for (const SavedTensor& tensor : saved_->index().tensors) {
    if (tensor.name.starts_with(mine))
      wanted_.emplace_back(&tensor, Part{tensor.name, {}, comm::ShardSpec::whole(tensor.sizes)});
  }
}

Outcomes Loading::verify() {
  return on_all_ranks(group_, [&] {
    for (const auto& [saved, part] : wanted_) saved_->verify(*saved, part.spec);
    return std::string();
  });
}

void Loading::copy() {
  state_.rng.clear();
  on_all_ranks(group_, [&] {
    for (const auto& [saved, part] : wanted_) {
      if (part.local.defined()) {
        saved_->read(*saved, part.spec, part.local);
      } else {
        state_.rng.emplace_back(saved->name.substr(saved->name.rfind('/') + 1), saved_->read(*saved));
      }
    }
    return std::string();
  }).check("checkpoint: " + path_ + " was only partly read: ");
  const ShardedIndex& index = saved_->index();
  state_.step = index.step;
  state_.epoch = index.epoch;
  state_.batch = index.batch;
  state_.consumed = index.consumed;
  state_.recipe = index.recipe;
  state_.environment = index.environment;
}

}  // namespace bellows::checkpoint
