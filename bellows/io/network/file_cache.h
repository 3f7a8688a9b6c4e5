#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <set>
#include <span>
#include <stop_token>
#include <string>

#include "bellows/core/mutex.h"
#include "bellows/io/network/cache_folder.h"
#include "bellows/io/network/http.h"
#include "bellows/system/file.h"

namespace bellows::io {

/// Options of the cache for files from the network.
struct FileCacheOptions {
  std::string folder;                        ///< "": default_cache_folder()
  int64_t limit_bytes = int64_t{100} << 30;  ///< limit for the total size of all complete and partial files
  HttpOptions http;
  bool show_progress = false;  ///< report the progress of downloads of at least 1 MB to the log sink
};

/// A cached file that is mapped into memory. It is not evicted while it is in use.
struct CachedFile {
  std::shared_ptr<const MappedFile> content;
  HttpFile version;
};

/// The cached copy of a file that a reader could not parse.
struct DoubtedCopy {
  std::string path;  ///< "" if there is no copy of that version
  /// True: the next FileCache fetches the file again; false: it does not, because the server repeatedly sent the same
  /// bytes.
  bool fetch_anew = true;
};

/// A local cache of complete files from the network, with a limited size.
///
/// The name of a cached file consists of a hash of its URL (without signature), a hash of its version (ETag and time),
/// and its size. A file gets this name only when it is complete. If the process ends earlier, a partial file remains.
/// The next fetch resumes it by a range request, which is valid only for the same version. Several processes can share
/// a folder. A lock (flock) per file prevents duplicate downloads.
///
/// If there is not enough space, the least recently used files are evicted. Files that a process has mapped or is
/// downloading are never evicted. If a cached file has changed since its download (CRC-32C, checked once per process),
/// it is fetched again, and a warning is logged. If a reader could not parse a file (see doubt()), the next FileCache
/// fetches the file again when it opens it.
/// Threads: thread-safe
class FileCache {
 public:
  explicit FileCache(FileCacheOptions options = {});

  /// Returns the file. If it is not in the cache, it is fetched. The server is asked once whether the file has changed.
  /// If the server cannot be reached, the cached file is used, and a warning is logged.
  /// Throws: the exceptions of http_get(); c10::Error if there is no space because the files in use fill the limit or
  ///         the disk is full;
  ///         c10::ValueError if the file is larger than the limit
  CachedFile open(const std::string& url, const std::stop_token& stop = {});
  /// Returns the complete cached copy without contacting the server, or null if there is none. A copy that a reader
  /// could not parse (see doubt()) does not count.
  CachedFile cached(const std::string& url);
  /// Fetches the file if it is not in the cache and if there is space for it. The function does not wait for space.
  /// Throws: like open()
  void prefetch(const std::string& url, const std::stop_token& stop = {});
  /// Reads the bytes [offset, offset + out.size()) of the file. They come from the cached file if there is one, and
  /// otherwise from a range request. If the server does not support ranges, or if `out` covers all bytes, the complete
  /// file is fetched.
  /// Returns: the version of the file. If the file does not contain the complete range, `out` is unchanged
  /// Throws:  like open()
  HttpFile read(const std::string& url, uint64_t offset, std::span<std::byte> out, const std::stop_token& stop = {});
  /// Reports that the content of the cached file is invalid, for example because it was damaged during the download.
  /// This object continues to use the file. The next FileCache fetches it again.
  DoubtedCopy doubt(const std::string& url, const HttpFile& version);
  /// Returns the version of the file on the server. The server is asked only once.
  /// Throws: like http_look()
  HttpFile look(const std::string& url, const std::stop_token& stop = {});
  /// Returns the folder of the cached files.
  const std::string& folder() const { return folder_.path(); }

 private:
  class Download;
  enum class IfFull { wait, give_up };

  CachedFile fetch(const std::string& url, IfFull if_full, const std::stop_token& stop);
  CachedFile find_whole(const std::string& url);
  CachedFile keep(const std::string& url, CachedFile file) BELLOWS_EXCLUDES(mutex_);
  void note_use(const std::shared_ptr<const MappedFile>& content) BELLOWS_REQUIRES(mutex_);
  FileLock lock_key(const std::string& url, const std::stop_token& stop) const;
  bool reserve(const std::string& url, const HttpFile& version, IfFull if_full, const std::stop_token& stop);
  bool drop_idle() BELLOWS_EXCLUDES(mutex_);
  void remember(const std::string& url, const HttpFile& version) BELLOWS_EXCLUDES(mutex_);
  void settle(const std::string& url) BELLOWS_EXCLUDES(mutex_);

  const FileCacheOptions options_;
  const CacheFolder folder_;
  Mutex mutex_;
  std::map<std::string, HttpFile> known_ BELLOWS_GUARDED_BY(mutex_);  // by URL: the server's response
  std::map<std::string, std::weak_ptr<const MappedFile>> open_ BELLOWS_GUARDED_BY(mutex_);  // by URL
  std::deque<std::shared_ptr<const MappedFile>> recent_
      BELLOWS_GUARDED_BY(mutex_);  // the most recently used files; up to 1/4 of the limit
  uint64_t recent_bytes_ BELLOWS_GUARDED_BY(mutex_) = 0;
  std::set<std::string> settled_ BELLOWS_GUARDED_BY(mutex_);  // URLs whose cached copy is used even if it is doubted
};

/// Returns options.folder, or default_cache_folder() if that is empty.
/// Throws: c10::ValueError if both are empty
std::string cache_folder(const FileCacheOptions& options);

}  // namespace bellows::io
