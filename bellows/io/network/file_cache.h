#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <span>
#include <stop_token>
#include <string>

#include "bellows/io/network/cache_folder.h"
#include "bellows/io/network/http.h"
#include "bellows/system/file.h"

namespace bellows::io {

/// Options of the cache for files from the network.
struct FileCacheOptions {
  std::string folder;                        ///< "": default_cache_folder()
  int64_t limit_bytes = int64_t{100} << 30;  ///< for all files in the folder, complete and partial
  HttpOptions http;
};

/// A mapped file of the cache. It is not evicted while it is in use.
struct CachedFile {
  std::shared_ptr<const MappedFile> content;
  HttpFile version;
};

/// The copy of a file that a reader found damaged.
struct DoubtedCopy {
  std::string path;        ///< "": there is no copy of that version
  bool fetch_anew = true;  ///< true: another FileCache fetches it again; false: the server always sent the same bytes
};

/// A local cache of whole files from the network, with a bounded size.
///
/// A file's name consists of its URL (without signature), its version (ETag, or time, and size) and its size. It
/// appears under that name only when it is complete. A partial file remains if the process ends, and the next fetch
/// resumes it by a range request that is valid for the same version only. Several processes may share a folder: a lock
/// (flock) per file prevents duplicate downloads.
///
/// To stay under the limit, the least recently used files are evicted, but never files that any process has mapped or
/// is downloading. If a file has changed since the download (CRC-32C, checked once per process), it is fetched again,
/// with a warning. If a reader found it damaged, another FileCache fetches it again when it opens it.
/// Threads: thread-safe
class FileCache {
 public:
  explicit FileCache(FileCacheOptions options = {});

  /// Returns the file and fetches it if it is not in the cache. The server is asked once whether the file is unchanged.
  /// If the server cannot be reached, the cached file is used, with a warning.
  /// Throws: as http_get; c10::Error if there is no space because the files in use fill the limit or the disk is full;
  ///         c10::ValueError if the file is larger than the limit
  CachedFile open(const std::string& url, const std::stop_token& stop = {});
  /// Fetches the file if it is not in the cache and there is space without waiting.
  /// Throws: as open
  void prefetch(const std::string& url, const std::stop_token& stop = {});
  /// Reads bytes [offset, offset + out.size()) of the file: from the cached file if there is one, else by a range
  /// request. If the server does not support ranges, or all bytes are requested, the whole file is fetched.
  /// Returns: the version of the file; if the file is too small, `out` is unchanged
  /// Throws:  as open
  HttpFile read(const std::string& url, uint64_t offset, std::span<std::byte> out, const std::stop_token& stop = {});
  /// Reports that the content of the cached file is invalid, because it may have been damaged during the download. This
  /// object continues to use it; the next FileCache fetches it again.
  DoubtedCopy doubt(const std::string& url, const HttpFile& version);
  /// Returns the server's version of the file; the server is asked once.
  /// Throws: as http_look
  HttpFile look(const std::string& url, const std::stop_token& stop = {});

 private:
  class Download;
  enum class IfFull { wait, give_up };

  CachedFile fetch(const std::string& url, IfFull if_full, const std::stop_token& stop);
  CachedFile find_whole(const std::string& url);
  CachedFile keep(const std::string& url, CachedFile file);
  void note_use(const std::shared_ptr<const MappedFile>& content);
  FileLock lock_key(const std::string& url, const std::stop_token& stop) const;
  bool reserve(const std::string& url, const HttpFile& version, IfFull if_full, const std::stop_token& stop);
  bool drop_idle();
  void remember(const std::string& url, const HttpFile& version);
  void settle(const std::string& url);

  const FileCacheOptions options_;
  const CacheFolder folder_;
  std::mutex mutex_;
  std::map<std::string, HttpFile> known_;                        // by URL: the server's response
  std::map<std::string, std::weak_ptr<const MappedFile>> open_;  // by URL
  std::deque<std::shared_ptr<const MappedFile>> recent_;         // the most recently used; up to 1/4 of the limit
  uint64_t recent_bytes_ = 0;
  std::set<std::string> settled_;  // URLs whose cached copy is used even if others doubt it
};

/// Returns the folder of the options, or default_cache_folder().
/// Throws: c10::ValueError if neither is set
std::string cache_folder(const FileCacheOptions& options);

}  // namespace bellows::io
