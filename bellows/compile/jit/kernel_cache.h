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

/// A shared library that is loaded while this lives.
class Library {
 public:
  /// Params: content – of the file; what is loaded are these bytes and no others
  /// Throws: c10::Error – the system cannot load it
  explicit Library(const std::string& content);
  ~Library();
  Library(const Library&) = delete;
  Library& operator=(const Library&) = delete;
  /// Throws: c10::Error – it has none of this name
  void* symbol(const std::string& name) const;

 private:
  void* handle_ = nullptr;
  int fd_ = -1;  ///< open while the library is: the loader tells libraries by name
};

struct KernelCacheOptions {
  std::string folder = "";  ///< "": $BELLOWS_CACHE/kernels, else $XDG_CACHE_HOME or ~/.cache, bellows/kernels
  int64_t limit_bytes = 256 * 1024 * 1024;  ///< of all entries; those that were used longest ago make room
};

/// Compiled kernels by the content of their source: in this process, then on disk, then from the compiler.
///
/// An entry is a file whose name is the digest of the source, the compiler, its flags and the processor. Behind the library's bytes it
/// holds a digest of them and of the name. An entry that is cut short, altered, of another name, another user's, or that other users can write
/// to is compiled anew, never loaded. A folder that other users can change is not used. Processes may share a folder: an entry gets its name when it is whole.
/// Threads: safe
class KernelCache {
 public:
  explicit KernelCache(KernelCacheOptions options = {});

  /// Whether there is a compiler. That there is none, or that the folder cannot be used, is logged once.
  bool can_compile() const { return compiler_.has_value(); }
  /// Throws: c10::Error – there is no compiler; as KernelCompiler::compile
  std::shared_ptr<const Library> load(const std::string& source, const std::stop_token& stop = {});

  struct Counts {
    int64_t compiled = 0, from_disk = 0, shared = 0;  ///< shared: were loaded already
    int64_t refused = 0;                              ///< entries that were there and not right
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
  std::atomic<bool> said_ = false;  ///< that kernels are not cached
};

}  // namespace bellows::compile_detail
