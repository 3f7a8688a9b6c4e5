#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "bellows/io/network/http.h"
#include "bellows/system/file.h"

namespace bellows::io {

/// Returns the folder for cached data, that is, for data that can be created or downloaded again. The folder is
/// $BELLOWS_CACHE, or else $XDG_CACHE_HOME/bellows, or else $HOME/.cache/bellows. If none of these variables is set,
/// the result is "".
std::string default_cache_folder();

/// Creates `folder` and its missing parents. The folder default_cache_folder() gets the mode 0700, because it also
/// contains compiled kernels. Kernels are used only if no other user can write to the folder.
/// Throws: c10::Error if the system cannot create the folder
void make_cache_folder(const std::string& folder);

/// A lock (flock) on a file that is created only for this purpose. The operating system releases the lock even if the
/// process is killed.
class FileLock {
 public:
  /// Returns nothing if another process, or another FileLock of this process, holds the lock.
  static std::optional<FileLock> try_lock(const std::string& path);
  FileLock(FileLock&& other) noexcept : path_(std::move(other.path_)), fd_(std::exchange(other.fd_, -1)) {}
  FileLock& operator=(FileLock&&) = delete;
  ~FileLock();
  /// Removes the file. The lock is still held.
  void remove_file() const;

 private:
  FileLock(std::string path, int fd) : path_(std::move(path)), fd_(fd) {}
  std::string path_;
  int fd_;
};

/// The content of KEY.json: metadata of a downloaded file.
struct DownloadNote {
  HttpFile version;
  std::string boot;                ///< identifies the machine's boot during which the note was written
  std::optional<uint32_t> crc32c;  ///< of the complete file
  bool doubted = false;            ///< true: a reader could not parse the file (see CacheFolder::doubt)
  int64_t repeats = 0;             ///< number of consecutive downloads that returned the same bytes after a doubt
};

/// Manages the files in the folder of a FileCache: their names, locks and eviction.
///
/// KEY-VERSION-SIZE is a complete file. With the suffix `.part`, it is an incomplete file. KEY.json contains the
/// server's information about the file. When the file is complete, KEY.json also contains its CRC-32C. A download holds
/// the lock KEY.lock. Eviction and the renaming of complete files hold the lock `.lock`. This lock ensures that every
/// file is visible exactly once, and that the total size never exceeds the limit.
/// Threads: thread-safe
class CacheFolder {
 public:
  /// Params: folder – created if it is missing
  /// Throws: c10::Error if the folder cannot be created
  CacheFolder(std::string folder, int64_t limit_bytes);

  static std::string key_of(const std::string& url);
  std::string whole_path(const std::string& key, const HttpFile& version) const;
  std::string part_path(const std::string& key, const HttpFile& version) const;
  std::string lock_path(const std::string& key) const { return folder_ + "/" + key + ".lock"; }
  std::string folder_lock_path() const { return folder_ + "/.lock"; }

  /// Returns the version in KEY.json. Returns nothing if KEY.json is missing or damaged. The result is also empty if
  /// the file is incomplete and KEY.json is older than the machine's last boot.
  std::optional<HttpFile> noted(const std::string& key) const;
  void note(const std::string& key, const std::string& url, const HttpFile& version) const;
  /// Records that the file is complete.
  /// Params: before – the result of read_note() for the doubted file that was replaced
  void note_whole(const std::string& key, const std::string& url, const HttpFile& version, uint32_t crc32c,
                  const std::optional<DownloadNote>& before) const;
  std::optional<DownloadNote> read_note(const std::string& key) const;

  /// Records that a reader could not parse the complete file of this version. The record is removed when the file is
  /// fetched again. The caller must hold the key's lock.
  /// Returns: false if the server sent the same bytes twice in a row after a doubt. The file is then fetched again one
  ///          day later at the earliest
  bool doubt(const std::string& key, const std::string& url, const HttpFile& version) const;
  bool is_doubted(const std::string& key, const HttpFile& version) const;

  /// Maps a complete file and protects it from eviction while the mapping exists. Returns null if the file is missing,
  /// or if its size or checksum is wrong. The checksum is verified once per process and file. Files that were
  /// downloaded before checksums were recorded have no checksum.
  std::shared_ptr<const MappedFile> map(const std::string& key, const HttpFile& version) const;

  /// Creates the partial file if there is space for all its bytes. If necessary, the least recently used files are
  /// evicted first. The caller must hold the key's lock. Returns false if the files in use leave too little space, or
  /// if another process is evicting files.
  bool reserve(const std::string& key, const HttpFile& version) const;
  /// Renames a partial file that has all its bytes to the name of a complete file. The caller must hold the key's lock.
  /// Returns false if another process is evicting files.
  bool make_whole(const std::string& key, const HttpFile& version) const;

  const std::string& path() const { return folder_; }
  int64_t limit_bytes() const { return limit_bytes_; }

 private:
  struct Entry;
  void write_note(const std::string& key, const std::string& url, const DownloadNote& note) const;
  bool is_intact(const std::string& key, const HttpFile& version, ByteSpan content) const;
  std::vector<Entry> list() const;
  bool evict(const Entry& entry, const std::string& own_key, bool last_of_key) const;

  std::string folder_;
  int64_t limit_bytes_;
};

}  // namespace bellows::io
