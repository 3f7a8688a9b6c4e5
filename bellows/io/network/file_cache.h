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

/// Where files from the network are kept.
struct FileCacheOptions {
  std::string folder;                        ///< "": default_cache_folder()
  int64_t limit_bytes = int64_t{100} << 30;  ///< for all files in the folder, whole and partial
  HttpOptions http;
};

/// A file of the cache, mapped. It is not evicted while somebody holds it.
struct CachedFile {
  std::shared_ptr<const MappedFile> content;
  HttpFile version;
};

/// The copy of a file that a reader could not make sense of.
struct DoubtedCopy {
  std::string path;        ///< "": no copy of that version is here
  bool fetch_anew = true;  ///< when another FileCache opens it; false: the server sent the same bytes every time
};

/// Whole files from the network in a local folder of bounded size.
///
/// A file is called after its URL (without signature), its version (ETag, or time, and size) and its size; it appears
/// under that name only when it is complete. A partial one stays when the process ends, however it does, and the next
/// fetch goes on where it stopped, by a range request that holds for the same version only. Several processes may use
/// one folder: a lock (flock) on each file sees to it that nothing is fetched twice. To stay under the limit, files
/// that were not used for longest are removed; never one that is mapped or being fetched, by any process. A file that is
/// no longer as it was fetched (CRC-32C, compared once a process) is fetched anew, with a warning; so is one that some
/// reader could not make sense of, when another FileCache opens it.
/// Threads:  safe
class FileCache {
 public:
  explicit FileCache(FileCacheOptions options = {});

  /// The file, fetched if it is not here. The server is asked once whether the file is as it was; where it cannot be
  /// reached, the file that is here is taken, with a warning.
  /// Throws: as http_get; c10::Error – no room: what is in use fills the limit, or the disk is full;
  ///         c10::ValueError – the file is larger than the limit
  CachedFile open(const std::string& url, const std::stop_token& stop = {});
  /// Fetches it if it is not here and there is room without waiting. Throws as open does.
  void prefetch(const std::string& url, const std::stop_token& stop = {});
  /// Bytes [offset, offset + out.size()) of the file: from the folder where it lies there, else by a range request; a
  /// server without ranges has the file fetched, and so has who wants all of it.
  /// Returns: the content that they are of; where it is smaller than that, `out` is as it was
  /// Throws:  as open does
  HttpFile read(const std::string& url, uint64_t offset, std::span<std::byte> out, const std::stop_token& stop = {});
  /// Says that the content of the whole file that is here makes no sense: it may have been damaged on its way. This
  /// object uses it on; the next one fetches it anew.
  DoubtedCopy doubt(const std::string& url, const HttpFile& version);
  /// What the server has, asked once. Throws as http_look.
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
  std::map<std::string, HttpFile> known_;                        // by URL: what the server said
  std::map<std::string, std::weak_ptr<const MappedFile>> open_;  // by URL
  std::deque<std::shared_ptr<const MappedFile>> recent_;         // those used last; up to a quarter of the limit
  uint64_t recent_bytes_ = 0;
  std::set<std::string> settled_;  // URLs whose copy here is used, whatever others doubt
};

/// The folder that the options mean: theirs, or default_cache_folder().
/// Throws: c10::ValueError – none of them, and no home
std::string cache_folder(const FileCacheOptions& options);

}  // namespace bellows::io
