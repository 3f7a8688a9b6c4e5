#include "bellows/checkpoint/sharded_folder.h"

#include <ATen/core/Tensor.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "bellows/checkpoint/loading.h"
#include "bellows/checkpoint/saving.h"
#include "bellows/core/error.h"
#include "bellows/core/log.h"
#include "bellows/system/thread.h"

namespace bellows::checkpoint {

ShardedFolder::ShardedFolder(std::string path, const comm::Group& group, int64_t keep)
    : path_(std::move(path)), group_(comm::duplicate(group, "checkpoint")) {
  on_rank_zero(group_, [&] {
    folder_.emplace(path_, keep);
    return std::string();
  }).check("");
  on_all_ranks(group_, [&] {
    std::error_code error;
    TORCH_CHECK_VALUE(std::filesystem::is_directory(path_, error), "checkpoint: ", path_, ", which rank ",
                      group_.ranks()[0], " created, is not a folder on this machine (", error.message(),
                      "). Give all ranks the same folder, on a shared file system.");
    return std::string();
  }).check("");
}

ShardedFolder::~ShardedFolder() {
  try {
    wait();
  } catch (const std::exception& error) {
    log_error("checkpoint: the last save failed. ", user_message(error));
  }
}

void ShardedFolder::write(SavePlan& plan, const std::string& trouble) {
  const std::string path = path_of(plan.index.step);
  write_planned(path, plan, group_, trouble);
  if (!folder_) return;
  folder_->damaged_.erase(path);
  try {
    folder_->remove_oldest(path);
  } catch (const std::exception& error) {  // rank 0 must continue like the other ranks
    log_warn("checkpoint: cannot remove old checkpoints in ", path_, ": ", user_message(error));
  }
}

std::string ShardedFolder::save(const ShardedState& state) {
  wait();
  SavePlan plan = plan_save(state, group_);
  write(plan, "");
  return path_of(state.step);
}

void ShardedFolder::save_async(const ShardedState& state) {
  wait();  // before the copy, because the save in flight reads the same buffers
  auto plan = std::make_shared<SavePlan>(plan_save(state, group_));
  std::string trouble;  // reported to the other ranks when they wait for this one
  try {
    copy_own(*plan, buffers_);
  } catch (const std::exception& error) {
    trouble = user_message(error);
  }
  in_flight_ = start_async_or_run([this, plan, trouble] { write(*plan, trouble); });
}

void ShardedFolder::wait() {
  if (in_flight_.valid()) in_flight_.get();
}

std::optional<std::string> ShardedFolder::newest(ShardedState& state, const Prepare& prepare) {
  return first_without_damage([&](const std::string& path) {
    Loading loading(path, state, group_, prepare);
    std::string damage = loading.open().error;
    if (!damage.empty()) return damage;
    loading.match();
    damage = loading.verify().error;
    if (damage.empty()) loading.copy();
    return damage;
  });
}

std::optional<std::string> ShardedFolder::newest() {
  return first_without_damage([&](const std::string& path) {
    return on_all_ranks(group_,
                        [&] {
                          const SavedCheckpoint saved(path);
                          const std::vector<SavedTensor>& tensors = saved.index().tensors;
                          for (size_t i = static_cast<size_t>(group_.rank()); i < tensors.size();
                               i += static_cast<size_t>(group_.size()))
                            saved.verify(tensors[i], comm::ShardSpec::whole(tensors[i].sizes));
                          return std::string();
                        })
        .error;
  });
}

/// Params: damage_of – collective; returns the damage of a checkpoint, the same on all ranks, or ""
std::optional<std::string> ShardedFolder::first_without_damage(
    const std::function<std::string(const std::string& path)>& damage_of) {
  wait();
  // Only names, which are plain text. The folder's path may contain any bytes, which JSON does not support.
  const Outcomes listed = on_rank_zero(group_, [&] {
    auto names = nlohmann::json::array();
    for (const std::string& path : list()) names.push_back(std::filesystem::path(path).filename().string());
    return names.dump();
  });
  listed.check("checkpoint: ");
  std::vector<std::string> all;
  for (const std::string name : nlohmann::json::parse(listed.results[0]))
    all.push_back((std::filesystem::path(path_) / name).string());
  std::string of_newest;
  for (auto path = all.rbegin(); path != all.rend(); ++path) {
    const std::string damage = damage_of(*path);
    if (damage.empty()) return *path;
    if (of_newest.empty()) of_newest = damage;
    if (!folder_) continue;
    folder_->damaged_.insert(*path);
    log_warn("checkpoint: ", *path, " is damaged and skipped; trying the previous one. ", damage);
  }
  TORCH_CHECK_VALUE(all.empty(), "checkpoint: none of the ", all.size(), " checkpoints in ", path_,
                    " can be read. The newest one: ", of_newest, " Repair it, or remove them to start again.");
  return {};
}

std::string ShardedFolder::path_of(int64_t step) const {
  return (std::filesystem::path(path_) / step_name(step)).string();
}

std::vector<std::string> ShardedFolder::list() const {
  return list_checkpoints(path_);
}

}  // namespace bellows::checkpoint
