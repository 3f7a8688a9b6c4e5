#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <stop_token>
#include <string>
#include <unordered_map>

#include "bellows/compile/jit/kernel_compiler.h"

namespace bellows::compile_detail {

/// A loaded shared library. It is unloaded with this object.
class Library {
 public:
  /// Params: content – of the file; exactly these bytes are loaded
  /// Throws: c10::Error if the system cannot load the library
  explicit Library(const std::string& content);
  ~Library();
  Library(const Library&) = delete;
  Library& operator=(const Library&) = delete;
  /// Throws: c10::Error if there is no symbol of this name
  void* symbol(const std::string& name) const;

 private:
  void* handle_ = nullptr;
  int fd_ = -1;  ///< open as long as the library is loaded, because the loader identifies libraries by name
};

struct KernelCacheOptions {
  /// "": $BELLOWS_CACHE/kernels, else $XDG_CACHE_HOME/bellows/kernels, else ~/.cache/bellows/kernels
  std::string folder = "";
  int64_t limit_bytes = 256 * 1024 * 1024;  ///< of all entries; the least recently used ones are evicted
};

/// Compiled kernels by the content of their source. Looked up in this process, then on disk; otherwise compiled.
///
/// An entry is a file. Its name is a digest of the source, the compiler, its flags and the processor. After the
/// library's bytes, it contains a digest of them and of the name. An entry is compiled again, and never loaded, if it
/// is truncated or modified, has another name, belongs to another user, or is writable by other users. A folder that
/// other users can change is not used. Processes may share a folder: an entry gets its name only when it is complete.
/// Threads: safe
class KernelCache {
 public:
  explicit KernelCache(KernelCacheOptions options = {});

  /// True if there is a compiler. If there is none, or the folder cannot be used, this is logged once.
  bool can_compile() const { return compiler_.has_value(); }
  /// Throws: c10::Error if there is no compiler, and as KernelCompiler::compile()
  std::shared_ptr<const Library> load(const std::string& source, const std::stop_token& stop = {});

  struct Counts {
    int64_t compiled = 0, from_disk = 0, shared = 0;  ///< shared: already loaded in this process
    int64_t refused = 0;                              ///< existing entries that were not valid
    int64_t evicted = 0;
  };
  Counts counts() const;
  const std::string& folder() const { return folder_; }

 private:
  std::shared_ptr<const Library> from_disk(const std::string& key);
  std::optional<std::string> read(const std::string& key);
  std::nullopt_t refuse(const std::string& why);
  void write(const std::string& key, const std::string& content);
  void make_room();

  KernelCacheOptions options_;
  std::string folder_;
  std::optional<KernelCompiler> compiler_;
  mutable std::mutex mutex_;
  std::unordered_map<std::string, std::weak_ptr<const Library>> loaded_;
  Counts counts_;
  std::atomic<bool> said_ = false;  ///< whether it was logged that kernels are not cached
};

}  // namespace bellows::compile_detail
