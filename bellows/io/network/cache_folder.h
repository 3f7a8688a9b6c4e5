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

/// Where what can be made or fetched again is kept: $BELLOWS_CACHE, else $XDG_CACHE_HOME/bellows, else
/// $HOME/.cache/bellows; "" where none of them is set.
std::string default_cache_folder();

/// Makes `folder` with missing parents. default_cache_folder() gets the mode 0700: it holds compiled kernels, too, which are
/// used only where no other user can write. Throws: c10::Error – the system's refusal
void make_cache_folder(const std::string& folder);

/// A lock (flock) on a file that is made for it. The kernel releases it however the process ends.
class FileLock {
 public:
  /// Nothing where somebody holds it: another process, or another FileLock of this one.
  static std::optional<FileLock> try_lock(const std::string& path);
  FileLock(FileLock&& other) noexcept : path_(std::move(other.path_)), fd_(std::exchange(other.fd_, -1)) {}
  FileLock& operator=(FileLock&&) = delete;
  ~FileLock();
  /// Removes the file; the lock is held on.
  void remove_file() const;

 private:
  FileLock(std::string path, int fd) : path_(std::move(path)), fd_(fd) {}
  std::string path_;
  int fd_;
};

/// What is kept about a downloaded file beside it.
struct DownloadNote {
  HttpFile version;
  std::string boot;                ///< the machine's start during which it was written
  std::optional<uint32_t> crc32c;  ///< of the whole file
  bool doubted = false;            ///< somebody could not read it
  int64_t repeats = 0;             ///< how often in a row it was doubted, fetched anew, and came with the same bytes
};

/// The files of a FileCache's folder: their names, locks, and how they make room for each other.
///
/// KEY-VERSION-SIZE is a whole file, the same with `.part` one that is being fetched or was; KEY.json says what the
/// server said about it, and its CRC-32C once it is whole; KEY.lock is held by whoever fetches. `.lock` is held while
/// room is made and while a file gets its name: who holds it sees every file once, and never more than the limit.
/// Threads:  safe
class CacheFolder {
 public:
  /// Params: folder – made if missing
  /// Throws: c10::Error – it cannot be made
  CacheFolder(std::string folder, int64_t limit_bytes);

  static std::string key_of(const std::string& url);
  std::string whole_path(const std::string& key, const HttpFile& version) const;
  std::string part_path(const std::string& key, const HttpFile& version) const;
  std::string lock_path(const std::string& key) const { return folder_ + "/" + key + ".lock"; }
  std::string folder_lock_path() const { return folder_ + "/.lock"; }

  /// What was noted about the file, or nothing: no note, a damaged one, one from before the machine's last start.
  std::optional<HttpFile> noted(const std::string& key) const;
  void note(const std::string& key, const std::string& url, const HttpFile& version) const;
  /// Notes that the file is whole. Params: before – what read_note() had of the file that it replaces after a doubt
  void note_whole(const std::string& key, const std::string& url, const HttpFile& version, uint32_t crc32c,
                  const std::optional<DownloadNote>& before) const;
  std::optional<DownloadNote> read_note(const std::string& key) const;

  /// Notes that the whole file of this version is damaged, as far as somebody who read it can say. The note goes when
  /// the file is fetched anew. The caller holds the key's lock.
  /// Returns: false – the server has sent these bytes twice in a row after a doubt; it is asked again a day later
  bool doubt(const std::string& key, const std::string& url, const HttpFile& version) const;
  bool is_doubted(const std::string& key, const HttpFile& version) const;

  /// A whole file, mapped, and kept from being evicted while the mapping lives; null where it is not here
  /// with its size and its checksum. That is computed once a process and file; files that were fetched before
  /// checksums were noted have none.
  std::shared_ptr<const MappedFile> map(const std::string& key, const HttpFile& version) const;

  /// Makes the partial file if there is room for all its bytes, after removing what was not used for longest.
  /// The caller holds the key's lock. False: what is in use leaves too little room, or others are making room.
  bool reserve(const std::string& key, const HttpFile& version) const;
  /// Gives the partial file, which has all its bytes, the name of a whole one. False: others are making room.
  /// The caller holds the key's lock.
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
