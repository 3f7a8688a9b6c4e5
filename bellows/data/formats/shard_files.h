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

/// The files of a data set, by position: paths, and `http(s)://` URLs, which are fetched whole into a cache when
/// somebody first asks for them, and may leave it as soon as nobody holds them. While one is read, a thread fetches the
/// next.
///
/// A local file that somebody cuts short while a sample of it is in use ends the program (SIGBUS): its size is looked at
/// before each sample, not while one is decoded. Replace files instead (AtomicFile does). Those in the cache are never
/// written to once they have their name.
/// Threads: safe.
class ShardFiles final : public SampleOrigin {
 public:
  /// Params: names – paths and URLs
  explicit ShardFiles(std::vector<std::string> names);
  ~ShardFiles() override;

  size_t size() const { return names_.size(); }
  /// As it may be shown: of a URL without what may be secret in it.
  const std::string& name(size_t file) const { return shown_[file]; }
  /// The file, mapped; it stays so while somebody holds it. One from the network is fetched if it is not here.
  /// Throws: c10::ValueError – it cannot be read, the server refuses it, or it is another file than before;
  ///         c10::Error – the network failed
  std::shared_ptr<const MappedFile> map(size_t file) const;
  /// The file's bytes for one sample, which the file has in full now; `owner` is set to what keeps them where this object
  /// does not. Throws: as map; c10::ValueError – the file was cut
  io::ByteSpan content(size_t file, std::shared_ptr<const void>& owner) const;
  /// All files, those from the network with no more of them than `need` fetches: what a source opens by.
  /// Params: need – called for each file, of remote ones by several threads
  /// Throws: as map; what `need` throws
  std::vector<io::PartialFile> open_parts(const std::function<void(io::PartialFile&)>& need) const;
  bool is_remote(size_t file) const { return io::is_url(names_[file]); }
  /// Which content a file has, in words that change with it: size, and ETag or time. Asks the server of a URL, once.
  /// Throws: as map does
  std::string version(size_t file) const;
  std::string doubt(size_t file) const override;
  /// Where things that are worth keeping may be kept: the cache's folder.
  const std::string& cache_folder() const { return cache_folder_; }
  /// In words, for messages: "4 shards (data/digits/train-000.tar, …)".
  std::string describe() const;

  /// The cache that all ShardFiles made by this thread share while the scope lasts, so that a server is asked once for
  /// each URL: how open() hands the user's choice down to every format. Others have one of their own.
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
    std::shared_ptr<io::FileCache> cache_;  // made by the first that needs it
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
  std::shared_ptr<io::FileCache> cache_;  // null where no file is remote
  mutable std::mutex mutex_;
  mutable std::vector<std::shared_ptr<const MappedFile>> mapped_;  // local ones
  mutable size_t mapped_count_ = 0;
  mutable std::vector<std::atomic<const MappedFile*>> lasting_;  // of mapped_, where all can stay
  mutable std::vector<io::HttpFile> versions_;                   // of remote ones, as first seen
  mutable size_t last_ = SIZE_MAX;                               // remote file that was asked for last
  mutable size_t wanted_ = SIZE_MAX;                             // to be fetched ahead
  mutable std::condition_variable_any work_;
  mutable std::jthread ahead_;  // last: it ends before what it uses
};

}  // namespace bellows::data
