#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <stop_token>
#include <string>
#include <unordered_map>
#include <vector>

#include "bellows/compile/jit/kernel_bundle.h"
#include "bellows/compile/jit/kernel_compiler.h"
#include "bellows/compile/jit/kernel_library.h"
#include "bellows/core/mutex.h"

namespace bellows::compile_detail {

struct KernelCacheOptions {
  /// Folder of the cache. If empty, it is $BELLOWS_CACHE/kernels if this variable is set, otherwise
  /// $XDG_CACHE_HOME/bellows/kernels, or else ~/.cache/bellows/kernels
  std::string folder = "";
  int64_t limit_bytes = 256 * 1024 * 1024;  ///< total size of all entries; the least recently used are evicted
};

/// A cache of compiled kernels, looked up by their source. A kernel is looked up in this process first, then on disk.
/// If it is not found, it is compiled.
///
/// An entry is a file that contains the library, followed by a digest of the compiler and the processor, and a digest of
/// all of this and of the entry's name. The name is a digest of the source, the compiler, its flags and the processor.
/// Processes may share a folder, because an entry receives its name only when it is complete. An entry is compiled again
/// instead of loaded if it is truncated or modified, has the wrong name, belongs to a different user, or is writable by
/// other users. A folder that other users can modify is not used. Copies of entries are moved to other machines in
/// signed bundles (kernel_transfer.h).
/// Threads: thread-safe
class KernelCache : public KernelProvider {
 public:
  explicit KernelCache(KernelCacheOptions options = {});

  /// Returns whether a compiler is available. If there is none, a warning is logged once.
  bool can_compile() const override { return compiler_.has_value(); }
  /// Throws: c10::Error if there is no compiler, or if KernelCompiler::compile() throws it
  std::shared_ptr<const Library> load(const std::string& source, const std::stop_token& stop = {}) override;

  struct Counts {
    int64_t compiled = 0, from_disk = 0, shared = 0;  ///< shared: already loaded in this process
    int64_t refused = 0;                              ///< existing entries that were invalid
    int64_t evicted = 0;
  };
  Counts counts() const;
  const std::string& folder() const { return folder_; }
  int64_t limit_bytes() const { return options_.limit_bytes; }

  /// A file in the folder.
  struct Entry {
    std::string key;        ///< name of the file without its suffix
    int64_t bytes = 0;      ///< size of the file
    int64_t used_s = 0;     ///< when the entry was last used, in seconds since 1970
    bool usable = false;    ///< whether it was compiled with this compiler for this processor
    std::string problem{};  ///< why the entry is refused; "" if it is valid
  };
  /// Reads and checks all entries.
  /// Throws: c10::Error if the folder exists, but other users can modify it
  std::vector<Entry> entries() const;
  /// Returns the library of an entry, or nothing if the entry is missing, refused or not usable.
  std::optional<std::string> library(const std::string& key) const;
  /// Adds the library of an entry that has this compiler and processor. Call make_room() after the last one.
  /// Throws: c10::Error if the folder cannot be used, or if the entry cannot be written
  void add(const std::string& key, const std::string& library);
  /// Deletes the least recently used entries if the folder exceeds its limit.
  void make_room();
  /// Deletes all entries. Libraries that processes have loaded stay usable.
  /// Returns: the number of deleted entries
  /// Throws:  c10::Error if other users can modify the folder, or if an entry cannot be deleted
  int64_t clear();
  /// Returns the machine for which this cache compiles kernels.
  /// Throws: c10::Error if there is no compiler
  KernelOrigin origin() const;

 private:
  std::shared_ptr<const Library> from_disk(const std::string& key);
  std::optional<std::string> read(const std::string& key);
  std::nullopt_t refuse(const std::string& why);
  void write(const std::string& key, const std::string& content);
  std::string path_of(const std::string& key) const;

  KernelCacheOptions options_;
  std::string folder_;
  std::optional<KernelCompiler> compiler_;
  mutable Mutex mutex_;
  std::unordered_map<std::string, std::weak_ptr<const Library>> loaded_ BELLOWS_GUARDED_BY(mutex_);
  Counts counts_ BELLOWS_GUARDED_BY(mutex_);
  std::atomic<bool> said_ = false;  ///< whether the 'kernels are not cached' warning has been logged
};

}  // namespace bellows::compile_detail
