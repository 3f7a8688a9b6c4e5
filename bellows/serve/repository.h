#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "bellows/core/mutex.h"
#include "bellows/serve/loaded_model.h"

namespace bellows::serve {

/// One row of the repository's index.
struct IndexEntry {
  std::string name{};
  std::string version{};  ///< "" if the model has no version that could be loaded
  std::string state{};    ///< "READY", "LOADING" or "UNAVAILABLE"
  std::string reason{};   ///< why the version is unavailable, or why its newest files were not loaded
};

/// A folder of models in Triton's layout: `MODEL/config.pbtxt` and `MODEL/VERSION/model.*`.
///
/// A version that is loaded again replaces the old one only when it is ready. The old one then finishes its requests.
///
/// The models of an ensemble are loaded before it. If one of them is unloaded or replaced, the ensemble is unloaded or
/// checked again. It is loaded again together with its models.
/// Threads: thread-safe. load(), unload() and the other changing functions run one after another; find() and index() do
///          not wait for them
class Repository {
 public:
  /// Throws: c10::ValueError if there is no such folder
  Repository(std::string folder, ModelLoader loader, LoadModelOptions options);
  ~Repository();
  Repository(const Repository&) = delete;
  Repository& operator=(const Repository&) = delete;

  /// Loads these models, or all models of the folder if the list is empty. Models that cannot be loaded are logged, and
  /// the index states the reason.
  void load_all(const std::vector<std::string>& names = {});
  /// Loads the model's versions that its policy selects. Versions whose files have not changed stay loaded, and loaded
  /// versions that are no longer selected are unloaded.
  /// If the model is an ensemble, its models that are not ready are loaded first.
  /// Throws: RequestError if there is no such model, or if a version cannot be loaded. Versions that were ready stay ready
  void load(const std::string& name);
  /// Unloads all versions of a model, and the ensembles that use it. Accepted requests are answered before the function returns.
  /// Throws: RequestError if no such model is loaded
  void unload(const std::string& name);
  /// Loads models whose files have changed, and unloads models whose folder was deleted. Models that were unloaded with
  /// unload() stay unloaded until their files change.
  void poll();
  /// Accepts no more requests, and waits until all accepted ones are answered.
  void drain();

  /// Returns a version that is ready.
  /// Params: version – "": the newest version that is ready
  /// Throws: RequestError with status 404 if there is no such model or version, and with status 400 if it is not ready
  std::shared_ptr<LoadedModel> find(const std::string& name, const std::string& version) const;
  std::vector<std::string> ready_versions(const std::string& name) const;
  /// Includes the models of the folder that are not loaded.
  std::vector<IndexEntry> index() const;
  /// Returns the statistics of all loaded models that match.
  /// Params: name, version – "": all
  /// Throws: RequestError with status 404 if nothing matches a given name
  AllStatistics statistics(const std::string& name = "", const std::string& version = "") const;

 private:
  struct Version {
    std::string state{}, reason{};
    std::string fingerprint{};  ///< of the configuration and the files that were loaded last
    std::shared_ptr<LoadedModel> model{};
  };
  struct Model {
    std::map<int64_t, Version> versions{};
    std::string reason{};                ///< why no version could be loaded
    std::string fingerprint{};           ///< of all files when the model was loaded or unloaded last
    std::vector<std::string> members{};  ///< models of the steps of an ensemble
    bool unloaded = false;               ///< by unload()
  };

  void check_name(const std::string& name) const;
  std::vector<std::string> names_in_folder() const;
  void load_with_members(const std::string& name, std::set<std::string>& visited) BELLOWS_REQUIRES(control_mutex_);
  void load_checked(const std::string& name) BELLOWS_REQUIRES(control_mutex_);
  void load_selected(const ModelConfig& config, const std::string& config_text, std::string& failure)
      BELLOWS_REQUIRES(control_mutex_);
  void load_version(const ModelConfig& config, int64_t number, const std::string& config_text)
      BELLOWS_REQUIRES(control_mutex_);
  std::shared_ptr<LoadedModel> make_model(const ModelConfig& config, int64_t number, const std::string& version_folder)
      BELLOWS_REQUIRES(control_mutex_);
  void remove_versions(const std::string& name, const std::vector<int64_t>& selected,
                       const std::string& reason = "unloaded") BELLOWS_REQUIRES(control_mutex_);
  std::vector<std::string> dependents_of(const std::string& name) const;
  void update_dependents(const std::string& name) BELLOWS_REQUIRES(control_mutex_);
  void unload_dependents(const std::string& name) BELLOWS_REQUIRES(control_mutex_);
  void set_members(const ModelConfig& config);
  std::string members_fingerprint(const ModelConfig& config) const;
  std::shared_ptr<ModelStatistics> statistics_of(const std::string& name, int64_t number);
  void set_state(const std::string& name, int64_t number, const std::string& state, const std::string& reason);

  const std::string folder_;
  const ModelLoader loader_;
  const LoadModelOptions options_;
  Mutex control_mutex_;  ///< held while models are loaded or unloaded; locked before mutex_
  mutable Mutex mutex_;
  std::map<std::string, Model> models_ BELLOWS_GUARDED_BY(mutex_){};
  std::map<std::pair<std::string, int64_t>, std::shared_ptr<ModelStatistics>> statistics_ BELLOWS_GUARDED_BY(mutex_){};
};

}  // namespace bellows::serve
