#include "bellows/checkpoint/folder.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "bellows/core/error.h"
#include "bellows/core/log.h"
#include "bellows/system/file.h"

namespace bellows::checkpoint {

namespace {

namespace fs = std::filesystem;
constexpr std::string_view prefix = "step-", suffix = ".pt";
constexpr size_t digits = 12;
constexpr int64_t step_limit = 1'000'000'000'000;

/// Names of files and of folders of several ranks.
bool is_checkpoint_name(std::string_view name) {
  if (name.ends_with(suffix)) name.remove_suffix(suffix.size());
  return name.size() == prefix.size() + digits && name.starts_with(prefix) &&
         name.find_first_not_of("0123456789", prefix.size()) == name.npos;
}

std::string file_name(int64_t step) {
  return step_name(step) + std::string(suffix);
}

/// Leftovers of killed writes: temporary files of AtomicFile with names that a run writes, or incomplete folders of
/// several ranks.
bool is_leftover_name(std::string_view name) {
  if (name.starts_with(".step-") && name.find(".partial-") != name.npos) return true;
  constexpr std::string_view mark = ".tmp-";
  constexpr size_t random_letters = 6;
  constexpr std::array<std::string_view, 7> written = {prefix,   "recipe.yaml", "run.json", "log.",
                                                       "trace-", "scores.json", ".writable"};
  if (std::none_of(written.begin(), written.end(), [&](auto one) { return name.starts_with(one); })) return false;
  return name.size() > mark.size() + random_letters &&
         name.substr(name.size() - random_letters - mark.size(), mark.size()) == mark;
}

void remove_leftovers(const std::string& folder) {
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(folder, error)) {
    if (is_leftover_name(entry.path().filename().string())) fs::remove_all(entry.path(), error);
  }
}

/// Renames a folder to a leftover's name before deletion, so that an incomplete checkpoint never has a checkpoint's
/// name.
void remove_checkpoint(const fs::path& path) {
  std::error_code error;
  if (!fs::is_directory(path, error)) {
    fs::remove(path, error);
    return;
  }
  const fs::path aside = path.parent_path() / ("." + path.filename().string() + ".partial-removed");
  fs::remove_all(aside, error);
  fs::rename(path, aside, error);
  if (!error) fs::remove_all(aside, error);
}

void make_folder(const std::string& path) {
  std::error_code error;
  fs::create_directories(path, error);
  TORCH_CHECK(!error, "checkpoint: cannot create the folder ", path, ": ", error.message(), ". Choose another folder.");
}

bool ranks_before(const ScoredCheckpoint& a, const ScoredCheckpoint& b) {
  return a.score != b.score ? a.score > b.score : a.step < b.step;
}

}  // namespace

std::string step_name(int64_t step) {
  TORCH_CHECK_VALUE(step >= 0 && step < step_limit, "checkpoint::Folder: expected a step of 0 to ", step_limit - 1,
                    ", got ", step, ".");
  char name[32];
  std::snprintf(name, sizeof(name), "step-%012lld", static_cast<long long>(step));
  return name;
}

std::vector<std::string> list_checkpoints(const std::string& folder) {
  std::vector<std::string> result;
  for (const auto& entry : fs::directory_iterator(folder)) {
    if (is_checkpoint_name(entry.path().filename().string())) result.push_back(entry.path().string());
  }
  std::sort(result.begin(), result.end());
  return result;
}

Folder::Folder(std::string path, int64_t keep) : path_(std::move(path)), keep_(keep) {
  TORCH_CHECK_VALUE(keep >= 1, "checkpoint::Folder: expected to keep at least 1 checkpoint, got ", keep, ".");
  make_folder(path_);
  lock_.emplace(path_);
  const AtomicFile probe((fs::path(path_) / ".writable").string());  // to fail now rather than after the first epoch
  remove_leftovers(path_);
  remove_leftovers(best_folder());
}

std::string Folder::save(const State& state) {
  const std::string path = path_of(state.step);
  checkpoint::save(path, state);
  damaged_.erase(path);
  remove_oldest(path);
  return path;
}

void Folder::remove_oldest(const std::string& just_saved) const {
  std::vector<std::string> all = list(), whole;
  std::copy_if(all.begin(), all.end(), std::back_inserter(whole), [&](const auto& p) { return !damaged_.contains(p); });
  if (whole.size() <= static_cast<size_t>(keep_)) return;
  const std::string& oldest_kept = whole[whole.size() - static_cast<size_t>(keep_)];
  for (const std::string& path : all) {
    if (path < oldest_kept && path != just_saved) remove_checkpoint(path);
  }
}

std::string Folder::path_of(int64_t step) const {
  return (fs::path(path_) / file_name(step)).string();
}

std::vector<std::string> Folder::list() const {
  return list_checkpoints(path_);
}

std::optional<State> Folder::newest() {
  const std::vector<std::string> all = list();
  std::string of_newest;
  for (auto path = all.rbegin(); path != all.rend(); ++path) {
    try {
      return load(*path);
    } catch (const c10::Error& error) {
      if (of_newest.empty()) of_newest = user_message(error);
      damaged_.insert(*path);
      log_warn("checkpoint: ", *path, " is damaged and skipped; trying the previous one. ", user_message(error));
    }
  }
  TORCH_CHECK_VALUE(all.empty(), "checkpoint: none of the ", all.size(), " checkpoints in ", path_,
                    " can be read. Error of the newest one: ", of_newest,
                    " Repair it, or remove all of them to start from the beginning.");
  return {};
}

std::optional<std::string> Folder::save_best(const State& state, double score, int64_t k) {
  if (!is_among_best(state.step, score, k)) return {};
  make_folder(best_folder());
  const std::string path = best_folder() + "/" + file_name(state.step);
  checkpoint::save(path, state);
  std::vector<ScoredCheckpoint> ranking = best();
  std::erase_if(ranking, [&](const ScoredCheckpoint& other) { return other.step == state.step; });
  const ScoredCheckpoint fresh{path, state.step, score};
  ranking.insert(std::upper_bound(ranking.begin(), ranking.end(), fresh, ranks_before), fresh);
  const auto kept = std::min(ranking.size(), static_cast<size_t>(k));
  write_scores({ranking.begin(), ranking.begin() + static_cast<std::ptrdiff_t>(kept)});
  for (size_t i = kept; i < ranking.size(); ++i) {
    std::error_code error;
    fs::remove(ranking[i].path, error);
  }
  return path;
}

bool Folder::is_among_best(int64_t step, double score, int64_t k) const {
  TORCH_CHECK_VALUE(k >= 1, "checkpoint::Folder: expected to keep at least 1 of the best, got ", k, ".");
  if (!std::isfinite(score)) return false;
  const std::vector<ScoredCheckpoint> ranking = best();
  const auto better = std::count_if(ranking.begin(), ranking.end(), [&](const ScoredCheckpoint& other) {
    return other.step != step && ranks_before(other, {"", step, score});
  });
  return better < k;
}

std::vector<ScoredCheckpoint> Folder::best() const {
  const std::string path = best_folder() + "/scores.json";
  std::vector<ScoredCheckpoint> ranking;
  if (!fs::exists(path)) return ranking;
  try {
    const auto scores = nlohmann::json::parse(read_text_file(path));
    for (const auto& [name, score] : scores.items()) {
      const std::string file = best_folder() + "/" + name;
      if (!is_checkpoint_name(name) || !fs::exists(file)) continue;  // the file was deleted by the user
      ranking.push_back({file, std::stoll(name.substr(prefix.size(), digits)), score.get<double>()});
    }
  } catch (const nlohmann::json::exception& error) {
    log_warn("checkpoint: ", path, " is damaged, so the checkpoints in ", best_folder(), " have no scores. ",
             error.what());
    ranking.clear();
  }
  std::sort(ranking.begin(), ranking.end(), ranks_before);
  return ranking;
}

void Folder::write_scores(const std::vector<ScoredCheckpoint>& ranking) const {
  nlohmann::ordered_json scores = nlohmann::ordered_json::object();
  for (const ScoredCheckpoint& one : ranking) scores[file_name(one.step)] = one.score;
  write_text_file(best_folder() + "/scores.json", scores.dump(2) + "\n");
}

}  // namespace bellows::checkpoint
