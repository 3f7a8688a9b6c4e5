#include "bellows/serve/repository.h"

#include <c10/util/Exception.h>
#include <c10/util/StringUtil.h>

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <fstream>
#include <utility>

#include "bellows/core/error.h"
#include "bellows/core/log.h"
#include "bellows/serve/repository_files.h"
#include "bellows/serve/request_error.h"

namespace bellows::serve {

namespace {

const char *const ready = "READY", *const loading = "LOADING", *const unavailable = "UNAVAILABLE";

/// The protocol's version texts are the names of the folders.
std::optional<int64_t> version_number(const std::string& text) {
  int64_t number = 0;
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, number);
  if (error != std::errc() || stop != end || std::to_string(number) != text) return std::nullopt;
  return number;
}

}  // namespace

Repository::Repository(std::string folder, ModelLoader loader, LoadModelOptions options)
    : folder_(std::move(folder)), loader_(std::move(loader)), options_(std::move(options)) {
  std::error_code error;
  TORCH_CHECK_VALUE(std::filesystem::is_directory(folder_, error), "model repository ", folder_,
                    ": there is no such folder. Expected a folder with MODEL/VERSION/model.*.");
}

Repository::~Repository() {
  drain();
}

void Repository::check_name(const std::string& name) const {
  std::error_code error;
  const bool plain = !name.empty() && name.front() != '.' && name.find('/') == std::string::npos &&
                     name.find('\0') == std::string::npos;
  if (!plain || !std::filesystem::is_directory(folder_ + "/" + name, error))
    throw RequestError(status_not_found, "the model repository has no model \"" + name + "\".");
}

std::vector<std::string> Repository::names_in_folder() const {
  std::vector<std::string> names;
  std::error_code error, none;
  for (const auto& entry : std::filesystem::directory_iterator(folder_, error)) {
    const std::string name = entry.path().filename();
    if (entry.is_directory(none) && name.front() != '.') names.push_back(name);
  }
  std::ranges::sort(names);
  return names;
}

void Repository::load_all(const std::vector<std::string>& names) {
  const MutexLock control(control_mutex_);
  std::set<std::string> visited;  // members of ensembles are not loaded again under their own names
  for (const std::string& name : names.empty() ? names_in_folder() : names) {
    try {
      load_with_members(name, visited);
    } catch (const RequestError& error) {
      log_error("model \"", name, "\" was not loaded: ", error.what());
      const MutexLock lock(mutex_);
      models_[name].reason = error.what();
    }
  }
}

void Repository::load(const std::string& name) {
  const MutexLock control(control_mutex_);
  std::set<std::string> visited;
  load_with_members(name, visited);
}

void Repository::load_with_members(const std::string& name, std::set<std::string>& visited) {
  check_name(name);
  if (!visited.insert(name).second) return;
  for (const std::string& member : ensemble_members(folder_ + "/" + name)) {
    if (!ready_versions(member).empty()) continue;
    try {
      load_with_members(member, visited);
    } catch (const RequestError& error) {
      log_error("model \"", member, "\" of the ensemble \"", name, "\" was not loaded: ", error.what());
    }
  }
  load_checked(name);
}

void Repository::load_checked(const std::string& name) {
  const std::string folder = folder_ + "/" + name;
  const std::string print = files_fingerprint(folder);
  std::string failure;
  try {
    const std::string text = config_text(folder);
    const ModelConfig config = read_model_config(name, folder, text);
    set_members(config);
    load_selected(config, text, failure);
  } catch (const std::exception& error) {
    failure = user_message(error);
  }
  {
    const MutexLock lock(mutex_);
    models_[name].fingerprint = print;
    models_[name].reason = failure;
    models_[name].unloaded = false;
  }
  update_dependents(name);
  if (!failure.empty()) throw RequestError(status_bad_request, "failed to load \"" + name + "\": " + failure);
}

void Repository::load_selected(const ModelConfig& config, const std::string& config_text, std::string& failure) {
  const std::string folder = folder_ + "/" + config.name;
  std::vector<int64_t> found = versions_in(folder);
  if (found.empty() && !config.ensemble.empty()) found.push_back(1);  // an ensemble has no model file
  const std::vector<int64_t> selected = config.version_policy.select(found);
  TORCH_CHECK_VALUE(!selected.empty(), folder, ": expected folders 1, 2, … with a model file, found ",
                    found.empty() ? "none." : "none that version_policy selects.");
  for (const int64_t number : selected) {
    try {
      load_version(config, number, config_text);
    } catch (const std::exception& error) {
      failure += (failure.empty() ? "version " : " version ") + std::to_string(number) + ": " + user_message(error);
    }
  }
  remove_versions(config.name, selected);
}

std::shared_ptr<LoadedModel> Repository::make_model(const ModelConfig& config, int64_t number,
                                                    const std::string& version_folder) {
  const std::shared_ptr<ModelStatistics> statistics = statistics_of(config.name, number);
  if (config.ensemble.empty())
    return std::make_shared<LoadedModel>(config, model_file_in(version_folder, config.model_file),
                                         std::to_string(number), loader_, options_, statistics);
  const FindModel find_model = [this](const std::string& name, const std::string& version) {
    return find(name, version);
  };
  return std::make_shared<LoadedModel>(config, std::to_string(number), find_model, statistics);
}

/// Stores which models an ensemble uses.
/// Throws: c10::ValueError if the ensemble uses itself
void Repository::set_members(const ModelConfig& config) {
  const MutexLock lock(mutex_);
  std::vector<std::string>& members = models_[config.name].members;
  members.clear();
  for (const EnsembleStep& step : config.ensemble) members.push_back(step.model);
  std::set<std::string> reached;
  std::vector<std::string> open = members;
  while (!open.empty()) {
    const std::string name = std::move(open.back());
    open.pop_back();
    if (name == config.name) members.clear();
    TORCH_CHECK_VALUE(name != config.name,
                      "ensemble_scheduling: the ensemble uses itself in a step, or in an ensemble of "
                      "a step.");
    const auto found = models_.find(name);
    if (!reached.insert(name).second || found == models_.end()) continue;
    open.insert(open.end(), found->second.members.begin(), found->second.members.end());
  }
}

/// Returns a text that changes if a model of an ensemble is replaced.
std::string Repository::members_fingerprint(const ModelConfig& config) const {
  std::string text;
  const MutexLock lock(mutex_);
  for (const EnsembleStep& step : config.ensemble) {
    const auto found = models_.find(step.model);
    if (found == models_.end()) continue;
    for (const auto& [number, version] : found->second.versions) {
      if (version.model) text += step.model + " " + std::to_string(number) + " " + version.fingerprint + "\n";
    }
  }
  return text;
}

std::vector<std::string> Repository::dependents_of(const std::string& name) const {
  std::vector<std::string> dependents;
  const MutexLock lock(mutex_);
  for (const auto& [other, model] : models_) {
    if (!model.unloaded && std::ranges::find(model.members, name) != model.members.end()) dependents.push_back(other);
  }
  return dependents;
}

/// Checks the ensembles that use a model again after the model was loaded.
void Repository::update_dependents(const std::string& name) {
  for (const std::string& ensemble : dependents_of(name)) {
    try {
      load_checked(ensemble);
    } catch (const RequestError& error) {
      log_error(error.what());
      unload_dependents(ensemble);
      remove_versions(ensemble, {}, error.what());
    }
  }
}

void Repository::unload_dependents(const std::string& name) {
  for (const std::string& ensemble : dependents_of(name)) {
    unload_dependents(ensemble);
    const std::string reason = "the model \"" + name + "\" of a step was unloaded";
    remove_versions(ensemble, {}, reason);
    log_info("model \"", ensemble, "\": unloaded, because ", reason);
    const MutexLock lock(mutex_);
    models_[ensemble].reason = reason;
  }
}

void Repository::load_version(const ModelConfig& config, int64_t number, const std::string& config_text) {
  const std::string folder = folder_ + "/" + config.name, version_folder = folder + "/" + std::to_string(number);
  std::string print;
  std::shared_ptr<LoadedModel> fresh, old;
  try {
    print = config_text + "\n" + files_fingerprint(version_folder) + members_fingerprint(config);
    {
      const MutexLock lock(mutex_);
      const Version& version = models_[config.name].versions[number];
      if (version.model && version.fingerprint == print && version.reason.empty()) return;
    }
    set_state(config.name, number, loading, "");
    fresh = make_model(config, number, version_folder);
  } catch (const std::exception& error) {
    set_state(config.name, number, unavailable, user_message(error));
    throw;
  }
  {
    const MutexLock lock(mutex_);
    Version& version = models_[config.name].versions[number];
    old = std::exchange(version.model, fresh);
    version = {.state = ready, .fingerprint = print, .model = std::move(version.model)};
  }
  log_info("model \"", config.name, "\", version ", number, ": ready");
  if (old) old->drain();
}

/// A version that was ready before stays ready.
void Repository::set_state(const std::string& name, int64_t number, const std::string& state,
                           const std::string& reason) {
  const MutexLock lock(mutex_);
  Version& version = models_[name].versions[number];
  version.state = version.model ? ready : state;
  version.reason = reason;
}

void Repository::remove_versions(const std::string& name, const std::vector<int64_t>& selected,
                                 const std::string& reason) {
  std::vector<std::shared_ptr<LoadedModel>> removed;
  {
    const MutexLock lock(mutex_);
    for (auto& [number, version] : models_[name].versions) {
      if (std::ranges::find(selected, number) != selected.end()) continue;
      if (version.model) removed.push_back(std::move(version.model));
      version = {.state = unavailable, .reason = reason};
    }
  }
  for (const auto& model : removed) model->drain();
}

void Repository::unload(const std::string& name) {
  const MutexLock control(control_mutex_);
  {
    const MutexLock lock(mutex_);
    if (!models_.contains(name)) throw RequestError(status_not_found, "there is no loaded model \"" + name + "\".");
  }
  unload_dependents(name);
  remove_versions(name, {});
  const std::string print = files_fingerprint(folder_ + "/" + name);
  const MutexLock lock(mutex_);
  models_[name].fingerprint = print;
  models_[name].reason = "unloaded";
  models_[name].unloaded = true;
  log_info("model \"", name, "\": unloaded");
}

void Repository::poll() {
  const MutexLock control(control_mutex_);
  const std::vector<std::string> names = names_in_folder();
  std::vector<std::string> gone;
  {
    const MutexLock lock(mutex_);
    for (const auto& [name, model] : models_) {
      if (!std::ranges::binary_search(names, name)) gone.push_back(name);
    }
  }
  for (const std::string& name : gone) {
    unload_dependents(name);
    remove_versions(name, {});
    const MutexLock lock(mutex_);
    models_.erase(name);
    log_info("model \"", name, "\": unloaded, because its folder was deleted");
  }
  for (const std::string& name : names) {
    const std::string print = files_fingerprint(folder_ + "/" + name);
    {
      const MutexLock lock(mutex_);
      if (models_[name].fingerprint == print) continue;
    }
    try {
      load_checked(name);
    } catch (const RequestError& error) {
      log_error(error.what());
    }
  }
}

void Repository::drain() {
  const MutexLock control(control_mutex_);
  std::vector<std::shared_ptr<LoadedModel>> all;
  {
    const MutexLock lock(mutex_);
    for (auto& [name, model] : models_) {
      for (auto& [number, version] : model.versions) {
        if (version.model) all.push_back(version.model);
      }
    }
  }
  for (const auto& model : all) model->drain();
}

std::shared_ptr<LoadedModel> Repository::find(const std::string& name, const std::string& version) const {
  const MutexLock lock(mutex_);
  const auto model = models_.find(name);
  if (model == models_.end()) throw RequestError(status_not_found, "unknown model \"" + name + "\".");
  const auto& versions = model->second.versions;
  if (version.empty()) {
    for (auto one = versions.rbegin(); one != versions.rend(); ++one) {
      if (one->second.model) return one->second.model;
    }
    throw RequestError(status_bad_request, "model \"" + name + "\" has no version that is ready" +
                                               (model->second.reason.empty() ? "." : ": " + model->second.reason));
  }
  const auto number = version_number(version);
  const auto found = number ? versions.find(*number) : versions.end();
  if (found == versions.end())
    throw RequestError(status_not_found, "model \"" + name + "\" has no version \"" + version + "\".");
  if (!found->second.model)
    throw RequestError(status_bad_request, "model \"" + name + "\", version " + version + " is not ready" +
                                               (found->second.reason.empty() ? "." : ": " + found->second.reason));
  return found->second.model;
}

std::vector<std::string> Repository::ready_versions(const std::string& name) const {
  const MutexLock lock(mutex_);
  std::vector<std::string> versions;
  const auto model = models_.find(name);
  if (model == models_.end()) return versions;
  for (const auto& [number, version] : model->second.versions) {
    if (version.model) versions.push_back(std::to_string(number));
  }
  return versions;
}

std::vector<IndexEntry> Repository::index() const {
  std::vector<IndexEntry> entries;
  const std::vector<std::string> names = names_in_folder();
  const MutexLock lock(mutex_);
  for (const auto& [name, model] : models_) {
    if (model.versions.empty()) entries.push_back({name, "", unavailable, model.reason});
    for (const auto& [number, version] : model.versions)
      entries.push_back({name, std::to_string(number), version.state, version.reason});
  }
  for (const std::string& name : names) {
    if (!models_.contains(name)) entries.push_back({name, "", unavailable, "not loaded"});
  }
  std::ranges::stable_sort(entries, {}, &IndexEntry::name);
  return entries;
}

std::shared_ptr<ModelStatistics> Repository::statistics_of(const std::string& name, int64_t number) {
  const MutexLock lock(mutex_);
  auto& statistics = statistics_[{name, number}];
  if (!statistics) statistics = std::make_shared<ModelStatistics>();
  return statistics;
}

AllStatistics Repository::statistics(const std::string& name, const std::string& version) const {
  AllStatistics all;
  const MutexLock lock(mutex_);
  for (const auto& [key, one] : statistics_) {
    const std::string number = std::to_string(key.second);
    if ((name.empty() || name == key.first) && (version.empty() || version == number))
      all.push_back({{key.first, number}, one});
  }
  if (!name.empty() && all.empty())
    throw RequestError(status_not_found,
                       "unknown model \"" + name + "\"" + (version.empty() ? "." : ", version \"" + version + "\"."));
  return all;
}

}  // namespace bellows::serve
