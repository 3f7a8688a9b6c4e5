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

/// The folder for cached data that can be created or fetched again: $BELLOWS_CACHE, else $XDG_CACHE_HOME/bellows, else
/// $HOME/.cache/bellows; "" if none of them is set.
std::string default_cache_folder();

/// Creates `folder` with missing parents. default_cache_folder() gets the mode 0700, because it also holds compiled
/// kernels, which are used only if no other user can write there.
/// Throws: c10::Error if the system refuses
void make_cache_folder(const std::string& folder);

/// A lock (flock) on a file created for it. The kernel releases it even if the process is killed.
class FileLock {
 public:
  /// Returns nothing if another process, or another FileLock of this process, holds the lock.
  static std::optional<FileLock> try_lock(const std::string& path);
  FileLock(FileLock&& other) noexcept : path_(std::move(other.path_)), fd_(std::exchange(other.fd_, -1)) {}
  FileLock& operator=(FileLock&&) = delete;
  ~FileLock();
  /// Removes the file; the lock stays held.
  void remove_file() const;

 private:
  FileLock(std::string path, int fd) : path_(std::move(path)), fd_(fd) {}
  std::string path_;
  int fd_;
};

/// Metadata of a downloaded file, stored beside it.
struct DownloadNote {
  HttpFile version;
  std::string boot;                ///< identifies the boot of the machine during which it was written
  std::optional<uint32_t> crc32c;  ///< of the whole file
  bool doubted = false;            ///< a reader could not parse the file
  int64_t repeats = 0;             ///< number of consecutive new downloads with the same bytes after a doubt
};

/// The files of a FileCache's folder: their names, their locks and their eviction.
///
/// KEY-VERSION-SIZE is a complete file; with the suffix `.part`, it is incomplete. KEY.json holds the server's
/// information about it, and its CRC-32C once it is complete. A download holds KEY.lock. Eviction and the renaming of
/// complete files hold `.lock`; under this lock, every file is visible exactly once, and the total size never exceeds
/// the limit.
/// Threads: thread-safe
class CacheFolder {
 public:
  /// Params: folder – created if missing
  /// Throws: c10::Error if it cannot be created
  CacheFolder(std::string folder, int64_t limit_bytes);

  static std::string key_of(const std::string& url);
  std::string whole_path(const std::string& key, const HttpFile& version) const;
  std::string part_path(const std::string& key, const HttpFile& version) const;
  std::string lock_path(const std::string& key) const { return folder_ + "/" + key + ".lock"; }
  std::string folder_lock_path() const { return folder_ + "/.lock"; }

  /// Returns the stored version of the file. Returns nothing if the note is missing or damaged, or if the file is
  /// incomplete and the note is older than the machine's last boot.
  std::optional<HttpFile> noted(const std::string& key) const;
  void note(const std::string& key, const std::string& url, const HttpFile& version) const;
  /// Records that the file is complete.
  /// Params: before – the result of read_note() for the doubted file that it replaces
  void note_whole(const std::string& key, const std::string& url, const HttpFile& version, uint32_t crc32c,
                  const std::optional<DownloadNote>& before) const;
  std::optional<DownloadNote> read_note(const std::string& key) const;

  /// Records that a reader found the complete file of this version damaged. The record is removed when the file is
  /// fetched again. The caller holds the key's lock.
  /// Returns: false if the server sent the same bytes twice in a row after a doubt; the file is then fetched again one
  ///          day later at the earliest
  bool doubt(const std::string& key, const std::string& url, const HttpFile& version) const;
  bool is_doubted(const std::string& key, const HttpFile& version) const;

  /// Maps a complete file and protects it from eviction while the mapping exists. Returns null if it is missing or its
  /// size or checksum is wrong. The checksum is verified once per process and file; files that were downloaded before
  /// checksums were recorded have none.
  std::shared_ptr<const MappedFile> map(const std::string& key, const HttpFile& version) const;

  /// Creates the partial file if there is space for all its bytes, after evicting the least recently used files. The
  /// caller holds the key's lock. Returns false if the files in use leave too little space or another process is
  /// evicting files.
  bool reserve(const std::string& key, const HttpFile& version) const;
  /// Gives the partial file, which has all its bytes, the name of a complete one. The caller holds the key's lock.
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
