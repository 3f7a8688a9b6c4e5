#pragma once

#include <atomic>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "bellows/data/sample.h"
#include "bellows/io/network/file_cache.h"
#include "bellows/io/network/partial_file.h"
#include "bellows/system/file.h"

namespace bellows::data {

/// The files of a dataset, by position: paths and `http(s)://` URLs. URLs are downloaded into a cache on first use and
/// may be evicted as soon as they are unused. When files are read in order, a thread fetches the next one in advance.
///
/// If another process truncates a local file while a sample of it is in use, the program ends (SIGBUS). The size is
/// checked before each sample, but not during decoding. Replace files instead of truncating them (AtomicFile does).
/// Files in the cache are never modified once they have their name.
/// Threads: thread-safe
class ShardFiles final : public SampleOrigin {
 public:
  /// Params: names – paths and URLs
  explicit ShardFiles(std::vector<std::string> names);
  ~ShardFiles() override;

  size_t size() const { return names_.size(); }
  /// The name for messages: a URL without its secret parts.
  const std::string& name(size_t file) const { return shown_[file]; }
  /// Maps the file; it stays mapped while the result is held. A remote file is fetched if it is not in the cache.
  /// Throws: c10::ValueError if the file cannot be read, the server refuses it, or it changed since it was opened;
  ///         c10::Error if the network fails
  std::shared_ptr<const MappedFile> map(size_t file) const;
  /// Returns the file's bytes for reading one sample, after checking the size of the file. If this object does not keep
  /// the bytes alive, `owner` is set to an object that does.
  /// Throws: as map; c10::ValueError if the file was truncated
  io::ByteSpan content(size_t file, std::shared_ptr<const void>& owner) const;
  /// Opens all files; of remote files, fetches only the parts that `need` requests. For opening a source.
  /// Params: need – called for each file; for remote files, from several threads
  /// Throws: as map; exceptions of `need`
  std::vector<io::PartialFile> open_parts(const std::function<void(io::PartialFile&)>& need) const;
  bool is_remote(size_t file) const { return io::is_url(names_[file]); }
  /// A text that identifies the version of a file: size, and ETag or time. Asks the server of a URL once.
  /// Throws: as map
  std::string version(size_t file) const;
  std::string doubt(size_t file) const override;
  /// The cache's folder, for other cached data.
  const std::string& cache_folder() const { return cache_folder_; }
  /// A short description for messages: "4 shards (data/digits/train-000.tar, …)".
  std::string describe() const;

  /// While the scope exists, all ShardFiles that this thread creates share one cache, so that a server is asked once
  /// per URL. open() uses it to pass the user's cache options to every format. Outside a scope, each ShardFiles has its
  /// own cache.
  class CacheScope {
   public:
    explicit CacheScope(io::FileCacheOptions options);
    ~CacheScope();
    CacheScope(const CacheScope&) = delete;
    CacheScope& operator=(const CacheScope&) = delete;

   private:
    friend class ShardFiles;
    static CacheScope*& current();
    const io::FileCacheOptions options_;
    std::shared_ptr<io::FileCache> cache_;  // created by the first ShardFiles that needs it
    CacheScope* before_;
  };

 private:
  io::PartialFile open_part(size_t file) const;
  std::shared_ptr<const MappedFile> map_local(size_t file) const;
  std::shared_ptr<const MappedFile> map_remote(size_t file) const;
  void check_version(size_t file, const io::HttpFile& version) const;
  void read_ahead(size_t file) const;
  void fetch_ahead(const std::stop_token& stop) const;

  std::vector<std::string> names_, shown_;
  std::string cache_folder_;
  std::shared_ptr<io::FileCache> cache_;  // null if no file is remote
  mutable std::mutex mutex_;
  mutable std::vector<std::shared_ptr<const MappedFile>> mapped_;  // local files
  mutable size_t mapped_count_ = 0;
  mutable std::vector<std::atomic<const MappedFile*>> lasting_;  // pointers from mapped_, if all files can stay mapped
  mutable std::vector<io::HttpFile> versions_;                   // of remote files, as first seen
  mutable size_t last_ = SIZE_MAX;                               // the remote file requested last
  mutable size_t wanted_ = SIZE_MAX;                             // the file to fetch in advance
  mutable std::condition_variable_any work_;
  mutable std::jthread ahead_;  // last member: it must end before the members that it uses
};

}  // namespace bellows::data
