#pragma once

#include <atomic>
#include <condition_variable>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "bellows/core/mutex.h"
#include "bellows/data/sample.h"
#include "bellows/io/network/file_cache.h"
#include "bellows/io/network/partial_file.h"
#include "bellows/system/file.h"

namespace bellows::data {

/// Gives access to the files of a dataset by position. A file is a path or an `http(s)://` URL. A remote file is
/// downloaded into a cache on first use. The cache may evict the file as soon as no sample uses it. If files are read
/// in order, a separate thread downloads the next file in advance.
///
/// If another process truncates a local file while a sample of this file is in use, the program ends with SIGBUS. The
/// size of the file is checked before each sample, but not during decoding. Therefore, replace files instead of
/// truncating them (AtomicFile does this). Files in the cache are never modified after they are complete.
/// Threads: thread-safe
class ShardFiles final : public SampleOrigin {
 public:
  /// Params: names – paths and URLs
  explicit ShardFiles(std::vector<std::string> names);
  ~ShardFiles() override;

  size_t size() const { return names_.size(); }
  /// Returns the name of the file for messages. Secret parts of a URL are left out.
  const std::string& name(size_t file) const { return shown_[file]; }
  /// Maps a file. A remote file is downloaded if it is not in the cache. The file stays mapped while the caller holds
  /// the result.
  /// Throws: c10::ValueError if the file cannot be read, if the server rejects the request, or if the file changed
  ///         since it was opened; c10::Error if the network fails
  std::shared_ptr<const MappedFile> map(size_t file) const;
  /// Checks the size of the file and returns its bytes for reading one sample. If this object does not keep the bytes
  /// alive, sets `owner` to an object that does.
  /// Throws: exceptions of map(); c10::ValueError if the file was truncated
  io::ByteSpan content(size_t file, std::shared_ptr<const void>& owner) const;
  /// Opens all files when a source is created. Of remote files, downloads only the parts that `need` requests.
  /// Params: need – called once per file; for remote files, called from several threads
  /// Throws: exceptions of map() and of `need`
  std::vector<io::PartialFile> open_parts(const std::function<void(io::PartialFile&)>& need) const;
  bool is_remote(size_t file) const { return io::is_url(names_[file]); }
  /// Returns a text that identifies the version of a file. For a local file, the text contains the size and the
  /// modification time. For a URL, it contains the URL, the size, the ETag and the modification time. The server is
  /// asked once per URL.
  /// Throws: exceptions of map()
  std::string version(size_t file) const;
  std::string doubt(size_t file) const override;
  /// Returns the folder of the cache. Sources can also store other data there.
  const std::string& cache_folder() const { return cache_folder_; }
  /// Returns a short description for messages, such as "4 shards (data/digits/train-000.tar, …)".
  std::string describe() const;

  /// While a CacheScope exists, all ShardFiles that this thread creates share one cache, so that a server is asked only
  /// once per URL. open() creates a CacheScope to pass the user's cache options to every format. Without a CacheScope,
  /// each ShardFiles has its own cache.
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
  mutable Mutex mutex_;
  mutable std::vector<std::shared_ptr<const MappedFile>> mapped_ BELLOWS_GUARDED_BY(mutex_);  // local files only
  mutable size_t mapped_count_ BELLOWS_GUARDED_BY(mutex_) = 0;
  mutable std::vector<std::atomic<const MappedFile*>> lasting_;  // pointers from mapped_, if all files can stay mapped
  mutable std::vector<io::HttpFile> versions_
      BELLOWS_GUARDED_BY(mutex_);                                // remote files only: the version that was seen first
  mutable size_t last_ BELLOWS_GUARDED_BY(mutex_) = SIZE_MAX;    // the remote file that was requested last
  mutable size_t wanted_ BELLOWS_GUARDED_BY(mutex_) = SIZE_MAX;  // the file to download in advance
  mutable std::condition_variable_any work_;               // not ConditionVariable, because it waits with a stop token
  mutable std::jthread ahead_ BELLOWS_GUARDED_BY(mutex_);  // last member: it must end before the members that it uses
};

}  // namespace bellows::data
