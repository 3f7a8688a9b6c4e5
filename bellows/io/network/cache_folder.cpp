#include "bellows/io/network/cache_folder.h"

#include <c10/util/hash.h>
#include <dirent.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <future>
#include <map>
#include <nlohmann/json.hpp>
#include <tuple>

#include "bellows/core/error.h"
#include "bellows/core/log.h"
#include "bellows/core/mutex.h"
#include "bellows/io/crc32.h"
#include "bellows/system/trusted_folder.h"

namespace bellows::io {

namespace {

namespace fs = std::filesystem;

constexpr std::string_view part_suffix = ".part";
constexpr size_t key_digits = 40, version_digits = 16;
constexpr int64_t most_repeats = 2, seconds_before_next_doubt = 24 * 3600;

std::string hex_digest(const std::string& text) {
  return c10::sha1(text).str();
}

/// The mapping and the lock that protects the file from eviction.
struct HeldFile {
  explicit HeldFile(int handle) : fd(handle) {}
  ~HeldFile() { ::close(fd); }
  HeldFile(const HeldFile&) = delete;
  HeldFile& operator=(const HeldFile&) = delete;
  int fd;
  std::optional<MappedFile> file;
};

/// Changes at each boot: data written before a crash may not have reached the disk.
std::string boot_id() {
  try {
    return read_text_file("/proc/sys/kernel/random/boot_id");
  } catch (const c10::Error&) {
    return "";
  }
}

/// Returns the result of `check` for this file. A successful check is not repeated in this process; other threads wait
/// for a check in progress.
bool check_once(const std::string& path, ino_t inode, const std::function<bool()>& check) {
  struct Checked {
    ino_t inode = 0;
    std::shared_future<bool> result;
  };
  static Mutex mutex;
  static std::map<std::string, Checked> files BELLOWS_GUARDED_BY(mutex);
  std::shared_future<bool> result;
  {
    const MutexLock lock(mutex);
    Checked& known = files[path];
    if (known.inode != inode) known = {inode, std::async(std::launch::deferred, std::ref(check)).share()};
    result = known.result;
  }
  if (result.get()) return true;
  const MutexLock lock(mutex);
  files.erase(path);  // another file may reuse the inode
  return false;
}

bool same_file(int fd, const std::string& path) {
  struct stat open {
  }, named{};
  return ::fstat(fd, &open) == 0 && ::stat(path.c_str(), &named) == 0 && open.st_ino == named.st_ino &&
         open.st_dev == named.st_dev;
}

}  // namespace

std::string default_cache_folder() {
  const auto value = [](const char* name) -> std::string {
    const char* const text = std::getenv(name);
    return text ? text : "";
  };
  if (std::string chosen = value("BELLOWS_CACHE"); !chosen.empty()) return chosen;
  if (const std::string caches = value("XDG_CACHE_HOME"); !caches.empty()) return caches + "/bellows";
  const std::string home = value("HOME");
  return home.empty() ? "" : home + "/.cache/bellows";
}

void make_cache_folder(const std::string& folder) {
  const std::string usual = default_cache_folder();
  if (!usual.empty() && folder.starts_with(usual)) make_private_folder(usual);
  std::error_code error;
  fs::create_directories(folder, error);
  TORCH_CHECK(!error, "cannot create the folder ", folder, ": ", errno_message(error.value()),
              ". Set cache_folder or BELLOWS_CACHE to another folder.");
}

std::optional<FileLock> FileLock::try_lock(const std::string& path) {
  for (;;) {
    // Open without following links, which could lead to any file of the user, and without blocking on a pipe.
    const int fd = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0666);
    TORCH_CHECK(fd >= 0 || errno != ELOOP, "cannot lock ", path,
                ": expected a regular file, found a symbolic link. Remove it.");
    TORCH_CHECK(fd >= 0, "cannot write ", path, ": ", errno_message(errno), ". Choose another folder.");
    FileLock lock(path, fd);
    if (::flock(fd, LOCK_EX | LOCK_NB) != 0) {
      TORCH_CHECK(errno == EWOULDBLOCK, "cannot lock ", path, ": ", errno_message(errno),
                  ". Choose a folder on a file system that supports locks.");
      return std::nullopt;
    }
    if (same_file(fd, path)) return lock;  // otherwise, its last holder removed it
  }
}

FileLock::~FileLock() {
  if (fd_ >= 0) ::close(fd_);
}

void FileLock::remove_file() const {
  ::unlink(path_.c_str());
}

/// One complete or partial file.
struct CacheFolder::Entry {
  std::string name, key;
  uint64_t bytes = 0;  ///< current or future size
  bool partial = false;
  int64_t used_s = 0, used_ns = 0;

  bool operator<(const Entry& other) const {
    return std::tie(used_s, used_ns, name) < std::tie(other.used_s, other.used_ns, other.name);
  }
};

CacheFolder::CacheFolder(std::string folder, int64_t limit_bytes)
    : folder_(std::move(folder)), limit_bytes_(limit_bytes) {
  TORCH_CHECK_VALUE(limit_bytes_ > 0, "FileCache: expected a limit of at least 1 byte, got ", limit_bytes_, ".");
  make_cache_folder(folder_);
}

std::string CacheFolder::key_of(const std::string& url) {
  return hex_digest(unsigned_url(url));
}

std::string CacheFolder::whole_path(const std::string& key, const HttpFile& version) const {
  const std::string digest = hex_digest(version.etag + "\n" + version.last_modified).substr(0, version_digits);
  return c10::str(folder_, "/", key, "-", digest, "-", version.size);
}

std::string CacheFolder::part_path(const std::string& key, const HttpFile& version) const {
  return whole_path(key, version) + std::string(part_suffix);
}

std::optional<DownloadNote> CacheFolder::read_note(const std::string& key) const {
  const std::string path = folder_ + "/" + key + ".json";
  std::error_code ignored;
  if (!fs::exists(path, ignored)) return std::nullopt;
  try {
    const auto json = nlohmann::json::parse(read_text_file(path));
    DownloadNote note{{json.at("size"), json.at("etag"), json.at("last_modified")},
                      json.at("boot"),
                      {},
                      json.value("doubted", false),
                      json.value("repeats", int64_t{0})};
    if (json.contains("crc32c")) note.crc32c = json["crc32c"].get<uint32_t>();
    return note;
  } catch (const std::exception& error) {
    if (fs::exists(path, ignored)) log_info("cache: ", path, " is damaged, so the file is downloaded again.");
    return std::nullopt;
  }
}

std::optional<HttpFile> CacheFolder::noted(const std::string& key) const {
  const std::optional<DownloadNote> note = read_note(key);
  if (!note) return std::nullopt;
  std::error_code ignored;
  // A complete file was synced before it got its name.
  if (note->boot != boot_id() && !fs::exists(whole_path(key, note->version), ignored)) return std::nullopt;
  return note->version;
}

void CacheFolder::note(const std::string& key, const std::string& url, const HttpFile& version) const {
  write_note(key, url, {version, boot_id()});
}

void CacheFolder::note_whole(const std::string& key, const std::string& url, const HttpFile& version, uint32_t crc32c,
                             const std::optional<DownloadNote>& before) const {
  const bool same = before && before->version == version && before->crc32c == crc32c;
  write_note(key, url, {version, boot_id(), crc32c, false, same ? before->repeats + 1 : 0});
}

void CacheFolder::write_note(const std::string& key, const std::string& url, const DownloadNote& note) const {
  nlohmann::json json{{"url", public_url(url)},
                      {"etag", note.version.etag},
                      {"last_modified", note.version.last_modified},
                      {"size", note.version.size},
                      {"boot", note.boot}};
  if (note.crc32c) json["crc32c"] = *note.crc32c;
  if (note.doubted) json["doubted"] = true;
  if (note.repeats > 0) json["repeats"] = note.repeats;
  write_text_file(folder_ + "/" + key + ".json",
                  json.dump(1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n");
}

bool CacheFolder::is_doubted(const std::string& key, const HttpFile& version) const {
  const std::optional<DownloadNote> note = read_note(key);
  return note && note->doubted && note->version == version;
}

bool CacheFolder::doubt(const std::string& key, const std::string& url, const HttpFile& version) const {
  std::optional<DownloadNote> note = read_note(key);
  if (!note || note->version != version || note->doubted) return true;
  // Datasets with a few damaged images are common; not every run may fetch their files again.
  struct stat status {};
  const bool recent = ::stat((folder_ + "/" + key + ".json").c_str(), &status) == 0 &&
                      ::time(nullptr) - status.st_mtim.tv_sec < seconds_before_next_doubt;
  if (note->repeats >= most_repeats && recent) return false;
  note->doubted = true;
  write_note(key, url, *note);
  return true;
}

std::shared_ptr<const MappedFile> CacheFolder::map(const std::string& key, const HttpFile& version) const {
  const std::string path = whole_path(key, version);
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
  if (fd < 0) return nullptr;
  const auto held = std::make_shared<HeldFile>(fd);
  struct stat status {};
  // Locked for eviction, or already evicted.
  if (::flock(fd, LOCK_SH | LOCK_NB) != 0 || ::fstat(fd, &status) != 0 || status.st_nlink == 0) return nullptr;
  if (static_cast<uint64_t>(status.st_size) != version.size) {
    // The holder of the key's lock replaces it: another file may have this name by now.
    log_warn("cache: ", path, " has ", status.st_size, " bytes instead of ", version.size,
             ", so it is downloaded again.");
    return nullptr;
  }
  ::futimens(fd, nullptr);
  held->file.emplace(path);
  if (!check_once(path, status.st_ino, [&] { return is_intact(key, version, held->file->bytes()); })) return nullptr;
  return {held, &*held->file};
}

bool CacheFolder::is_intact(const std::string& key, const HttpFile& version, ByteSpan content) const {
  const std::optional<DownloadNote> note = read_note(key);
  return !note || note->version != version || !note->crc32c || *note->crc32c == crc32c(content);
}

std::vector<CacheFolder::Entry> CacheFolder::list() const {
  std::vector<Entry> entries;
  const std::unique_ptr<DIR, int (*)(DIR*)> folder(::opendir(folder_.c_str()), &::closedir);
  TORCH_CHECK(folder, "FileCache: cannot list ", folder_, ": ", errno_message(errno), ".");
  while (const dirent* item = ::readdir(folder.get())) {
    Entry entry{.name = item->d_name};
    std::string_view name = entry.name;
    entry.partial = name.ends_with(part_suffix);
    if (entry.partial) name.remove_suffix(part_suffix.size());
    const size_t size_at = key_digits + version_digits + 2;
    if (name.size() <= size_at || name[key_digits] != '-' || name[size_at - 1] != '-') continue;
    const auto [end, error] = std::from_chars(name.data() + size_at, name.data() + name.size(), entry.bytes);
    struct stat status {};
    if (error != std::errc() || ::stat((folder_ + "/" + entry.name).c_str(), &status) != 0) continue;
    entry.key = name.substr(0, key_digits);
    entry.used_s = status.st_mtim.tv_sec;
    entry.used_ns = status.st_mtim.tv_nsec;
    entries.push_back(std::move(entry));
  }
  std::sort(entries.begin(), entries.end());
  return entries;
}

bool CacheFolder::evict(const Entry& entry, const std::string& own_key, bool last_of_key) const {
  const bool own = entry.key == own_key;  // the caller holds its lock
  const std::optional<FileLock> fetching = own ? std::nullopt : FileLock::try_lock(lock_path(entry.key));
  if (!own && !fetching) return false;
  const std::string path = folder_ + "/" + entry.name;
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
  if (fd < 0) return true;
  const HeldFile file(fd);
  if (::flock(fd, LOCK_EX | LOCK_NB) != 0) return false;  // mapped by a process
  ::unlink(path.c_str());
  log_debug("cache: removed ", path, " (", entry.bytes, " bytes).");
  if (fetching && last_of_key) {
    ::unlink((folder_ + "/" + entry.key + ".json").c_str());
    fetching->remove_file();
  }
  return true;
}

bool CacheFolder::reserve(const std::string& key, const HttpFile& version) const {
  const auto limit = static_cast<uint64_t>(limit_bytes_);
  if (version.size > limit) return false;
  const std::optional<FileLock> lock = FileLock::try_lock(folder_lock_path());
  if (!lock) return false;
  const std::string own = fs::path(part_path(key, version)).filename();
  std::vector<Entry> entries = list();
  std::erase_if(entries, [&](const Entry& entry) { return entry.name == own; });
  uint64_t total = version.size;
  for (const Entry& entry : entries) total += entry.bytes;
  for (const Entry& entry : entries) {
    if (total <= limit && entry.key != key) continue;  // other versions of this file are always removed
    const auto of_key =
        std::count_if(entries.begin(), entries.end(), [&](const Entry& e) { return e.key == entry.key; });
    if (evict(entry, key, of_key == 1)) total -= entry.bytes;
  }
  if (total > limit) return false;
  const int fd = ::open((folder_ + "/" + own).c_str(), O_WRONLY | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0666);
  TORCH_CHECK(fd >= 0, "cannot write ", folder_, "/", own, ": ", errno_message(errno), ".");
  ::close(fd);
  return true;
}

bool CacheFolder::make_whole(const std::string& key, const HttpFile& version) const {
  // A list created while a file is renamed may lack the file.
  const std::optional<FileLock> lock = FileLock::try_lock(folder_lock_path());
  if (!lock) return false;
  const std::string whole = whole_path(key, version);
  TORCH_CHECK(::rename(part_path(key, version).c_str(), whole.c_str()) == 0, "cache: cannot write ", whole, ": ",
              errno_message(errno), ".");
  return true;
}

}  // namespace bellows::io
