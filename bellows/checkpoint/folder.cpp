#include "bellows/checkpoint/folder.h"

#include <algorithm>
#include <cstdio>
#include <filesystem>

#include "bellows/core/error.h"
#include "bellows/core/file.h"
#include "bellows/core/log.h"

namespace bellows::checkpoint {

namespace {

namespace fs = std::filesystem;
constexpr std::string_view prefix = "step-", suffix = ".pt";
constexpr size_t digits = 12;

bool is_checkpoint_name(std::string_view name) {
  return name.size() == prefix.size() + digits + suffix.size() && name.starts_with(prefix) && name.ends_with(suffix) &&
         name.find_first_not_of("0123456789", prefix.size()) == prefix.size() + digits;
}

/// What a killed save leaves: a checkpoint's name with AtomicFile's random ending.
bool is_leftover_name(std::string_view name) {
  constexpr size_t whole = prefix.size() + digits + suffix.size();
  return name.size() > whole && name[whole] == '.' && is_checkpoint_name(name.substr(0, whole));
}

}  // namespace

Folder::Folder(std::string path, int64_t keep) : path_(std::move(path)), keep_(keep) {
  TORCH_CHECK_VALUE(keep >= 1, "checkpoint::Folder: expected to keep at least 1 checkpoint, got ", keep, ".");
  std::error_code error;
  fs::create_directories(path_, error);
  TORCH_CHECK(!error, "checkpoint: cannot make the folder ", path_, ": ", error.message(), ". Choose another folder.");
  const AtomicFile probe((fs::path(path_) / ".writable").string());  // fails now rather than after the first epoch
  for (const auto& entry : fs::directory_iterator(path_)) {
    if (is_leftover_name(entry.path().filename().string())) fs::remove(entry.path(), error);
  }
}

std::string Folder::save(const State& state) {
  const std::string path = path_of(state.step);
  checkpoint::save(path, state);
  std::vector<std::string> all = list();
  for (size_t i = 0; i + static_cast<size_t>(keep_) < all.size(); ++i) {
    std::error_code error;
    if (all[i] != path) fs::remove(all[i], error);
  }
  return path;
}

std::string Folder::path_of(int64_t step) const {
  char name[32];
  std::snprintf(name, sizeof(name), "step-%012lld.pt", static_cast<long long>(step));
  return (fs::path(path_) / name).string();
}

std::vector<std::string> Folder::list() const {
  std::vector<std::string> result;
  for (const auto& entry : fs::directory_iterator(path_)) {
    if (is_checkpoint_name(entry.path().filename().string())) result.push_back(entry.path().string());
  }
  std::sort(result.begin(), result.end());
  return result;
}

std::optional<State> Folder::newest() const {
  const std::vector<std::string> all = list();
  for (auto path = all.rbegin(); path != all.rend(); ++path) {
    try {
      return load(*path);
    } catch (const c10::Error& error) {
      log_warn("checkpoint: ", *path, " is damaged and passed over, the one before it is tried. ", user_message(error));
    }
  }
  TORCH_CHECK_VALUE(all.empty(), "checkpoint: none of the ", all.size(), " checkpoints in ", path_,
                    " can be read. Remove them to begin anew.");
  return {};
}

}  // namespace bellows::checkpoint
