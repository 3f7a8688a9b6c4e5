#include "bellows/io/network/file_cache.h"

#include <c10/util/Exception.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <filesystem>
#include <optional>
#include <thread>

#include "bellows/core/error.h"
#include "bellows/core/log.h"
#include "bellows/core/progress.h"
#include "bellows/io/crc32.h"
#include "bellows/system/stop.h"

namespace bellows::io {

namespace {

using CacheClock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr size_t most_recent = 64;
constexpr uint64_t megabyte = 1'000'000;

/// Size of the file, 0 if there is none.
uint64_t bytes_in(const std::string& path) {
  struct stat status {};
  return ::stat(path.c_str(), &status) == 0 ? static_cast<uint64_t>(status.st_size) : 0;
}

void check_stop(const std::string& url, const std::stop_token& stop) {
  TORCH_CHECK(!stop.stop_requested(), "cache: ", public_url(url), ": stopped on request.");
  throw_if_stopped("downloading " + public_url(url));
}

/// Does not follow links, which could lead to any file of the user.
int open_part(const std::string& path) {
  return ::open(path.c_str(), O_WRONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
}

/// The maximum time that a fetch may take without receiving a byte.
milliseconds patience(const HttpOptions& http) {
  return milliseconds(http.attempts * (http.connect_timeout_ms + http.stall_timeout_ms + 2 * http.backoff_ms));
}

}  // namespace

std::string cache_folder(const FileCacheOptions& options) {
  const std::string folder = options.folder.empty() ? default_cache_folder() : options.folder;
  TORCH_CHECK_VALUE(!folder.empty(), "cache: there is no folder for downloaded files. Set BELLOWS_CACHE or HOME.");
  return folder;
}

/// One download into the folder. It holds the key's lock.
class FileCache::Download final : public HttpSink {
 public:
  /// Params: replace – the cached file must be replaced, even if it is the server's version
  Download(FileCache& cache, const std::string& url, IfFull if_full, bool replace, const std::stop_token& stop)
      : cache_(cache), url_(url), key_(CacheFolder::key_of(url)), if_full_(if_full), replace_(replace), stop_(stop) {}
  ~Download() override { close(); }
  Download(const Download&) = delete;
  Download& operator=(const Download&) = delete;

  bool begin(const HttpFile& file, uint64_t offset) override {
    close();
    const CacheFolder& folder = cache_.folder_;
    if (!replace_ && offset == 0 && file.size > 0 && folder.map(key_, file)) return false;
    const auto limit = static_cast<uint64_t>(folder.limit_bytes());
    TORCH_CHECK_VALUE(file.size <= limit, "cache: ", public_url(url_), " has ", file.size,
                      " bytes, but the limit of the cache in ", folder.path(), " is ", limit,
                      " bytes in total. Raise cache_bytes.");
    // The new note does not record why the file is replaced, so remove the file first.
    if (replace_) {
      if (!replaced_) replaced_ = folder.read_note(key_);
      ::unlink(folder.whole_path(key_, file).c_str());
    }
    if (offset == 0) folder.note(key_, url_, file);
    if (!cache_.reserve(url_, file, if_full_, stop_)) {
      full_ = true;
      return false;
    }
    path_ = folder.part_path(key_, file);
    fd_ = open_part(path_);
    TORCH_CHECK(fd_ >= 0 && ::ftruncate(fd_, static_cast<off_t>(offset)) == 0, "cache: cannot write ", path_, ": ",
                errno_message(errno), ".");
    if (offset == 0) {
      crc_ = 0;
    } else if (offset != position_) {
      crc_.reset();
    }
    position_ = offset;
    show_progress(file, offset);
    return true;
  }

  void write(ByteSpan bytes) override {
    while (!bytes.empty()) {
      const ssize_t written = ::pwrite(fd_, bytes.data(), bytes.size(), static_cast<off_t>(position_));
      if (written < 0 && errno == EINTR) continue;
      TORCH_CHECK(written >= 0, "cache: cannot write ", path_, " at byte ", position_, ": ", errno_message(errno),
                  ". Free some space, lower cache_bytes, or choose another cache folder.");
      const auto count = static_cast<size_t>(written);
      if (crc_) crc_ = crc32c(bytes.first(count), *crc_);
      advance(count);
      bytes = bytes.subspan(count);
      position_ += count;
    }
  }

  /// Gives the complete file its name.
  void finish(const HttpFile& file) {
    close();
    if (progress_) progress_->finish();
    const std::string part = cache_.folder_.part_path(key_, file), whole = cache_.folder_.whole_path(key_, file);
    fd_ = open_part(part);
    if (fd_ < 0 && errno == ENOENT) return;  // it was already complete
    TORCH_CHECK(fd_ >= 0, "cache: cannot write ", part, ": ", errno_message(errno), ".");
    TORCH_CHECK(bytes_in(part) == file.size, "cache: ", part, " has ", bytes_in(part), " bytes instead of ", file.size,
                ".");
    TORCH_CHECK(::fsync(fd_) == 0, "cache: cannot write ", part, ": ", errno_message(errno), ".");
    const auto end = CacheClock::now() + milliseconds(cache_.options_.http.stall_timeout_ms);
    while (!cache_.folder_.make_whole(key_, file)) {
      check_stop(url_, stop_);
      TORCH_CHECK(CacheClock::now() < end, "cache: another process has made no progress while evicting files in ",
                  cache_.folder_.path(), " (", cache_.folder_.folder_lock_path(), "). End that process.");
      std::this_thread::sleep_for(milliseconds(1));
    }
    cache_.folder_.note_whole(key_, url_, file, crc_ ? *crc_ : crc32c(MappedFile(whole).bytes()), replaced_);
  }

  bool full() const { return full_; }

 private:
  void close() {
    if (fd_ >= 0) ::close(std::exchange(fd_, -1));
  }
  void show_progress(const HttpFile& file, uint64_t offset) {
    if (!cache_.options_.show_progress || file.size < megabyte) return;
    progress_.emplace("downloading " + public_url(url_), static_cast<int64_t>(file.size / megabyte), "MB");
    shown_bytes_ = 0;
    advance(offset);
  }
  void advance(uint64_t bytes) {
    if (!progress_) return;
    const uint64_t before = shown_bytes_ / megabyte;
    shown_bytes_ += bytes;
    progress_->advance(static_cast<int64_t>(shown_bytes_ / megabyte - before));
  }

  FileCache& cache_;
  const std::string& url_;
  const std::string key_;
  const IfFull if_full_;
  const bool replace_;
  const std::stop_token& stop_;
  std::string path_;
  int fd_ = -1;
  uint64_t position_ = 0;
  std::optional<DownloadNote> replaced_;  // of the replaced file
  std::optional<Progress> progress_;
  uint64_t shown_bytes_ = 0;
  std::optional<uint32_t> crc_;  // of all bytes before position_; nothing if another process wrote the start
  bool full_ = false;
};

FileCache::FileCache(FileCacheOptions options)
    : options_(std::move(options)), folder_(cache_folder(options_) + "/files", options_.limit_bytes) {}

CachedFile FileCache::open(const std::string& url, const std::stop_token& stop) {
  if (CachedFile file = find_whole(url); file.content) return file;
  return fetch(url, IfFull::wait, stop);
}

CachedFile FileCache::cached(const std::string& url) {
  const std::string key = CacheFolder::key_of(url);
  const std::optional<HttpFile> version = folder_.noted(key);
  if (!version || folder_.is_doubted(key, *version)) return {};
  CachedFile file{folder_.map(key, *version), *version};
  if (file.content) remember(url, *version);
  return keep(url, std::move(file));
}

void FileCache::prefetch(const std::string& url, const std::stop_token& stop) {
  if (!find_whole(url).content) fetch(url, IfFull::give_up, stop);
}

void FileCache::remember(const std::string& url, const HttpFile& version) {
  const MutexLock lock(mutex_);
  known_[url] = version;
}

void FileCache::settle(const std::string& url) {
  const MutexLock lock(mutex_);
  settled_.insert(url);
}

HttpFile FileCache::look(const std::string& url, const std::stop_token& stop) {
  {
    const MutexLock lock(mutex_);
    if (const auto known = known_.find(url); known != known_.end()) return known->second;
  }
  HttpFile version;
  try {
    version = http_look(url, options_.http, stop);
  } catch (const c10::ValueError&) {
    throw;
  } catch (const c10::Error& error) {
    const std::string key = CacheFolder::key_of(url);
    const auto noted = folder_.noted(key);
    if (stop.stop_requested() || !noted || bytes_in(folder_.whole_path(key, *noted)) != noted->size) throw;
    log_warn(user_message(error), " The cached copy is used.");
    version = *noted;
  }
  remember(url, version);
  return version;
}

HttpFile FileCache::read(const std::string& url, uint64_t offset, std::span<std::byte> out,
                         const std::stop_token& stop) {
  const HttpFile version = look(url, stop);
  CachedFile file = find_whole(url);
  const bool part = out.size() < version.size && offset <= version.size - out.size();
  if (!file.content && part && http_read(url, version, offset, out, options_.http, stop)) return version;
  if (!file.content) file = open(url, stop);
  const ByteSpan bytes = file.content->bytes();
  if (out.size() <= bytes.size() && offset <= bytes.size() - out.size())
    std::ranges::copy(bytes.subspan(offset, out.size()), out.begin());
  return file.version;
}

/// Returns the file if it is already mapped, or if the server confirmed the cached version; else null.
CachedFile FileCache::find_whole(const std::string& url) {
  HttpFile version;
  {
    const MutexLock lock(mutex_);
    const auto known = known_.find(url);
    if (known == known_.end()) return {};
    version = known->second;
    if (const auto open = open_.find(url); open != open_.end()) {
      if (auto content = open->second.lock()) {
        note_use(content);
        return {std::move(content), version};
      }
    }
    if (!settled_.contains(url) && folder_.is_doubted(CacheFolder::key_of(url), version)) return {};
    settled_.insert(url);
  }
  return keep(url, {folder_.map(CacheFolder::key_of(url), version), version});
}

CachedFile FileCache::keep(const std::string& url, CachedFile file) {
  if (!file.content) return file;
  const MutexLock lock(mutex_);
  open_[url] = file.content;
  note_use(file.content);
  return file;
}

DoubtedCopy FileCache::doubt(const std::string& url, const HttpFile& version) {
  const std::string key = CacheFolder::key_of(url), path = folder_.whole_path(key, version);
  if (version.size == 0 || bytes_in(path) != version.size) return {};
  settle(url);
  bool fetch_anew = true;
  try {
    // If another process holds the lock, it fetches the file again.
    if (const auto lock = FileLock::try_lock(folder_.lock_path(key))) fetch_anew = folder_.doubt(key, url, version);
  } catch (const c10::Error& error) {
    log_warn("cache: ", path, " cannot be marked as damaged: ", user_message(error), " Remove it.");
  }
  return {path, fetch_anew};
}

/// Keeps the most recently used files mapped, because mapping a file again costs its page tables. The caller holds the
/// mutex.
void FileCache::note_use(const std::shared_ptr<const MappedFile>& content) {
  if (!recent_.empty() && recent_.back() == content) return;
  if (const auto known = std::find(recent_.begin(), recent_.end(), content); known != recent_.end()) {
    std::rotate(known, known + 1, recent_.end());
    return;
  }
  recent_.push_back(content);
  recent_bytes_ += content->bytes().size();
  while (recent_.size() > most_recent || recent_bytes_ > static_cast<uint64_t>(options_.limit_bytes) / 4) {
    recent_bytes_ -= recent_.front()->bytes().size();
    recent_.pop_front();
  }
}

/// Returns false if there was nothing to drop.
bool FileCache::drop_idle() {
  const MutexLock lock(mutex_);
  const bool had = !recent_.empty();
  recent_.clear();
  recent_bytes_ = 0;
  return had;
}

FileLock FileCache::lock_key(const std::string& url, const std::stop_token& stop) const {
  const std::string key = CacheFolder::key_of(url);
  uint64_t seen = 0;
  LongWait wait(public_url(url) + ", which another process is downloading", "lock file: " + folder_.lock_path(key));
  for (auto changed = CacheClock::now();;) {
    if (auto lock = FileLock::try_lock(folder_.lock_path(key))) return std::move(*lock);
    check_stop(url, stop);
    const auto noted = folder_.noted(key);
    const uint64_t now = noted ? bytes_in(folder_.part_path(key, *noted)) : 0;
    if (now != seen) changed = CacheClock::now();
    seen = now;
    TORCH_CHECK(CacheClock::now() - changed < patience(options_.http), "cache: ", public_url(url),
                " is being downloaded by another process, which has made no progress since byte ", seen, " (",
                folder_.lock_path(key), "). End that process.");
    wait.sleep(milliseconds(20));
  }
}

bool FileCache::reserve(const std::string& url, const HttpFile& version, IfFull if_full, const std::stop_token& stop) {
  const std::string key = CacheFolder::key_of(url);
  const auto end = CacheClock::now() + milliseconds(options_.http.stall_timeout_ms);
  LongWait wait("free space in " + folder_.path());
  while (!folder_.reserve(key, version)) {
    const bool dropped = drop_idle();
    if (!dropped && if_full == IfFull::give_up) return false;
    check_stop(url, stop);
    TORCH_CHECK(CacheClock::now() < end, "cache: there is no space for ", public_url(url), " (", version.size,
                " bytes) in ", folder_.path(), ". Files in use occupy too much of its ", folder_.limit_bytes(),
                " bytes. Raise cache_bytes.");
    if (dropped) continue;
    wait.sleep(milliseconds(20));
  }
  return true;
}

CachedFile FileCache::fetch(const std::string& url, IfFull if_full, const std::stop_token& stop) {
  const FileLock lock = lock_key(url, stop);
  if (CachedFile file = find_whole(url); file.content) return file;  // another thread has fetched it
  const std::string key = CacheFolder::key_of(url);
  const std::optional<HttpFile> noted = folder_.noted(key);
  const HttpFile here = noted.value_or(HttpFile{});
  const bool intact = here.size > 0 && folder_.map(key, here), doubted = intact && folder_.is_doubted(key, here);
  const bool whole = intact && !doubted;
  if (doubted)
    log_warn("cache: the copy of ", public_url(url), " in ", folder_.whole_path(key, here),
             " could not be read when it was last used. The file is downloaded again.");
  if (!intact && here.size > 0 && bytes_in(folder_.whole_path(key, here)) == here.size)
    log_warn("cache: the copy of ", public_url(url), " in ", folder_.whole_path(key, here),
             " is damaged: it differs from the downloaded file. The file is downloaded again.");
  const uint64_t part = bytes_in(folder_.part_path(key, here));
  const uint64_t have = whole ? here.size : part <= here.size && !doubted ? part : 0;
  Download download(*this, url, if_full, doubted, stop);
  HttpFile version;
  try {
    version = http_get(url, here, have, download, options_.http, stop);
  } catch (const c10::ValueError&) {
    throw;
  } catch (const c10::Error& error) {
    if (stop.stop_requested() || !intact || !folder_.map(key, here)) throw;
    log_warn(user_message(error), " The cached copy is used.");
    version = here;
  }
  if (download.full()) return {};
  download.finish(version);
  remember(url, version);
  settle(url);
  CachedFile file{folder_.map(key, version), version};
  TORCH_CHECK(file.content, "cache: ", folder_.whole_path(key, version), " was removed by another process. Try again.");
  return keep(url, std::move(file));
}

}  // namespace bellows::io
