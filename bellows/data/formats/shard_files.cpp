#include "bellows/data/formats/shard_files.h"

#include <c10/util/Exception.h>
#include <c10/util/StringUtil.h>
#include <sys/stat.h>

#include <algorithm>
#include <future>
#include <optional>
#include <utility>

#include "bellows/core/error.h"
#include "bellows/core/log.h"
#include "bellows/core/progress.h"
#include "bellows/system/thread.h"

namespace bellows::data {

namespace {

constexpr size_t most_mapped = 16'384;  // local files at a time; Linux allows 65,530 mappings per process

constexpr size_t opened_at_a_time = 8;  // remote files: opening one mostly waits for the server

}  // namespace

ShardFiles::CacheScope*& ShardFiles::CacheScope::current() {
  thread_local CacheScope* scope = nullptr;
  return scope;
}

ShardFiles::CacheScope::CacheScope(io::FileCacheOptions options)
    : options_(std::move(options)), before_(std::exchange(current(), this)) {}

ShardFiles::CacheScope::~CacheScope() {
  current() = before_;
}

ShardFiles::ShardFiles(std::vector<std::string> names)
    : names_(std::move(names)), mapped_(names_.size()), lasting_(names_.size()), versions_(names_.size()) {
  TORCH_CHECK_VALUE(!names_.empty(), "open: expected at least one file, got none.");
  for (const std::string& name : names_) shown_.push_back(io::public_url(name));
  const bool any_remote = std::any_of(names_.begin(), names_.end(), io::is_url);
  CacheScope* const scope = CacheScope::current();
  const io::FileCacheOptions options = scope ? scope->options_ : io::FileCacheOptions();
  if (any_remote) {
    cache_ = scope && scope->cache_ ? scope->cache_ : std::make_shared<io::FileCache>(options);
    if (scope) scope->cache_ = cache_;
  }
  try {
    cache_folder_ = io::cache_folder(options);
  } catch (const c10::Error&) {
    if (any_remote) throw;  // local files do not need it
  }
}

ShardFiles::~ShardFiles() = default;

std::shared_ptr<const MappedFile> ShardFiles::map(size_t file) const {
  return is_remote(file) ? map_remote(file) : map_local(file);
}

std::shared_ptr<const MappedFile> ShardFiles::map_local(size_t file) const {
  const MutexLock lock(mutex_);
  auto& mapped = mapped_[file];
  if (mapped) return mapped;
  if (mapped_count_ == most_mapped) {
    std::fill(mapped_.begin(), mapped_.end(), nullptr);
    mapped_count_ = 0;
  }
  mapped = std::make_shared<const MappedFile>(names_[file]);
  ++mapped_count_;
  if (size() <= most_mapped) lasting_[file].store(mapped.get(), std::memory_order_release);
  return mapped;
}

io::ByteSpan ShardFiles::content(size_t file, std::shared_ptr<const void>& owner) const {
  if (const MappedFile* lasting = lasting_[file].load(std::memory_order_acquire)) {
    lasting->check_size();
    return lasting->bytes();
  }
  auto mapped = map(file);
  mapped->check_size();
  const io::ByteSpan bytes = mapped->bytes();
  owner = std::move(mapped);
  return bytes;
}

io::PartialFile ShardFiles::open_part(size_t file) const {
  if (!is_remote(file)) return io::PartialFile(map_local(file));
  const io::HttpFile version = cache_->look(names_[file]);
  check_version(file, version);
  return {version.size, [this, file](uint64_t offset, std::span<std::byte> out) {
            check_version(file, cache_->read(names_[file], offset, out));
          }};
}

std::vector<io::PartialFile> ShardFiles::open_parts(const std::function<void(io::PartialFile&)>& need) const {
  std::vector<io::PartialFile> parts;
  parts.reserve(size());
  std::optional<Progress> progress;
  if (cache_) progress.emplace("examining files", static_cast<int64_t>(size()), "files");
  const auto open_one = [&](size_t file) {
    io::PartialFile part = open_part(file);
    need(part);
    return part;
  };
  while (parts.size() < size()) {
    const size_t first = parts.size(), count = is_remote(first) ? std::min(opened_at_a_time, size() - first) : 1;
    std::vector<std::future<io::PartialFile>> others;
    others.reserve(count - 1);
    for (size_t i = 1; i < count; ++i)
      others.push_back(start_async_or_run([&, file = first + i] { return open_one(file); }));
    parts.push_back(open_one(first));
    for (auto& other : others) parts.push_back(other.get());
    if (progress) progress->advance(static_cast<int64_t>(count));
  }
  return parts;
}

std::shared_ptr<const MappedFile> ShardFiles::map_remote(size_t file) const {
  io::CachedFile cached = cache_->open(names_[file]);
  check_version(file, cached.version);
  read_ahead(file);
  return std::move(cached.content);
}

/// Cached sizes and offsets of a file are valid for one version only.
void ShardFiles::check_version(size_t file, const io::HttpFile& version) const {
  const MutexLock lock(mutex_);
  io::HttpFile& first = versions_[file];
  if (first == io::HttpFile{}) first = version;
  TORCH_CHECK_VALUE(first == version, "open: ", name(file), " has changed on the server since it was opened. It had ",
                    first.size, " bytes, and it now has ", version.size, " (ETag ", io::printable(version.etag),
                    "). Open the dataset again.");
}

std::string ShardFiles::doubt(size_t file) const {
  if (!is_remote(file)) return "";
  io::HttpFile version;
  {
    const MutexLock lock(mutex_);
    version = versions_[file];
  }
  const io::DoubtedCopy copy = cache_->doubt(names_[file], version);
  if (copy.path.empty()) return "";
  return c10::str(" (The file is the cached copy ", copy.path,
                  copy.fetch_anew ? ". When you open the dataset again, the file is downloaded again.)"
                                  : ". The server sends the same bytes each time.)");
}

std::string ShardFiles::version(size_t file) const {
  if (is_remote(file)) {
    const io::HttpFile version = cache_->look(names_[file]);
    check_version(file, version);
    return c10::str(io::unsigned_url(names_[file]), " ", version.size, " bytes ", version.etag, " ",
                    version.last_modified);
  }
  struct stat status {};
  TORCH_CHECK_VALUE(::stat(names_[file].c_str(), &status) == 0, "cannot open ", names_[file], ": ",
                    errno_message(errno), ".");
  return c10::str(status.st_size, " bytes, changed at ", status.st_mtim.tv_sec, ".", status.st_mtim.tv_nsec);
}

/// Only for sequential reads: otherwise, the next file is not needed soon.
void ShardFiles::read_ahead(size_t file) const {
  const MutexLock lock(mutex_);
  if (file == last_) return;
  const bool in_order = file == 0 || (last_ != SIZE_MAX && file == last_ + 1);
  last_ = file;
  if (!in_order || file + 1 >= size() || !is_remote(file + 1)) return;
  try {
    if (!ahead_.joinable()) ahead_ = std::jthread([this](const std::stop_token& stop) { fetch_ahead(stop); });
  } catch (const std::system_error&) {
    return;  // no thread available: files are fetched when they are read
  }
  wanted_ = file + 1;
  work_.notify_one();
}

void ShardFiles::fetch_ahead(const std::stop_token& stop) const {
  UniqueLock lock(mutex_);
  while (work_.wait(lock, stop, [&]() BELLOWS_REQUIRES(mutex_) { return wanted_ != SIZE_MAX; })) {
    const size_t file = std::exchange(wanted_, SIZE_MAX);
    lock.unlock();
    try {
      cache_->prefetch(names_[file], stop);
    } catch (const std::exception& error) {
      log_debug("read ahead: ", user_message(error));  // reading the file reports the error
    }
    lock.lock();
  }
}

std::string ShardFiles::describe() const {
  const bool one = size() == 1;
  return c10::str(size(), one ? " shard (" : " shards (", name(0), one ? ")" : ", …)");
}

}  // namespace bellows::data
