#include "bellows/compile/jit/kernel_cache.h"

#include <c10/util/Exception.h>
#include <c10/util/hash.h>
#include <fcntl.h>
#include <gnu/libc-version.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <filesystem>
#include <string_view>
#include <vector>

#include "bellows/core/error.h"
#include "bellows/core/log.h"
#include "bellows/core/version.h"
#include "bellows/io/network/cache_folder.h"
#include "bellows/system/file.h"
#include "bellows/system/trusted_folder.h"

namespace bellows::compile_detail {
namespace {

namespace fs = std::filesystem;

/// Increased when the meaning of an entry changes: the interface of generated code, or the layout of the file.
constexpr std::string_view format = "bellows kernel 2\n";
constexpr size_t digest_digits = 40;
constexpr std::string_view entry_suffix = ".so", temporary_mark = ".tmp-";

std::string digest(const std::string& text) {
  return c10::sha1(text).str();
}

std::string default_folder() {
  const std::string caches = io::default_cache_folder();
  return caches.empty() ? "" : caches + "/kernels";
}

/// The content of an entry's file.
struct Content {
  bool exists = false;
  std::string library, identity;  ///< the library, and the digest of the compiler and the processor
  std::string problem;            ///< why the entry is refused; "" if it is valid
  struct stat status {};
};

/// Params: touch – mark the entry as used now
Content read_entry(const std::string& path, const std::string& key, int64_t limit_bytes, bool touch) {
  Content content;
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
  content.exists = fd >= 0;
  if (!content.exists) return content;
  struct stat& status = content.status;
  const bool own =
      ::fstat(fd, &status) == 0 && S_ISREG(status.st_mode) && is_trusted(status) && status.st_size <= limit_bytes;
  std::string& bytes = content.library;
  if (own) {
    bytes.resize(static_cast<size_t>(status.st_size));
    const ssize_t got = ::pread(fd, bytes.data(), bytes.size(), 0);
    bytes.resize(got < 0 ? 0 : static_cast<size_t>(got));
    if (touch) ::futimens(fd, nullptr);
  }
  ::close(fd);
  const std::string said = bytes.size() > 2 * digest_digits ? bytes.substr(bytes.size() - digest_digits) : "";
  if (!said.empty()) bytes.resize(bytes.size() - digest_digits);
  if (said.empty() || said != digest(key + bytes)) {
    content.problem =
        own ? " is damaged" : " belongs to another user, or other users can write to it (expected mode 0600)";
    return content;
  }
  content.identity = bytes.substr(bytes.size() - digest_digits);
  bytes.resize(bytes.size() - digest_digits);
  return content;
}

bool is_entry(const fs::path& path) {
  return path.extension() == entry_suffix && path.stem().string().size() == digest_digits;
}

void say_once(std::atomic<bool>& said, const std::string& message) {
  if (!said.exchange(true)) log_warn(message);
}

}  // namespace

KernelCache::KernelCache(KernelCacheOptions options)
    : options_(std::move(options)), folder_(options_.folder.empty() ? default_folder() : options_.folder) {
  static std::atomic<bool> said = false;
  try {
    compiler_ = KernelCompiler::find();
    TORCH_CHECK(compiler_,
                "compile: no C++ compiler was found. Install g++ or clang++, or set BELLOWS_CXX to the path of one.");
  } catch (const std::exception& error) {
    say_once(said, user_message(error) + " No code is generated.");
  }
}

KernelCache::Counts KernelCache::counts() const {
  const MutexLock lock(mutex_);
  return counts_;
}

std::shared_ptr<const Library> KernelCache::load(const std::string& source, const std::stop_token& stop) {
  TORCH_CHECK(compiler_, "compile: no C++ compiler was found.");
  const std::string key = digest(std::string(format) + compiler_->identity + source);
  {
    const MutexLock lock(mutex_);
    if (auto library = loaded_[key].lock()) return ++counts_.shared, library;
  }
  std::shared_ptr<const Library> library = from_disk(key);
  if (!library) {
    const std::string compiled = compiler_->compile(source, stop);
    library = std::make_shared<const Library>(compiled);
    write(key, compiled);
    const MutexLock lock(mutex_);
    ++counts_.compiled;
  }
  const MutexLock lock(mutex_);
  loaded_[key] = library;
  return library;
}

/// Returns: the library, or null if it must be compiled, for example because it was linked with other system libraries
std::shared_ptr<const Library> KernelCache::from_disk(const std::string& key) {
  const auto content = read(key);
  if (!content) return nullptr;
  try {
    auto library = std::make_shared<const Library>(*content);
    const MutexLock lock(mutex_);
    ++counts_.from_disk;
    return library;
  } catch (const std::exception& error) {
    log_info(user_message(error), " The kernel is compiled again.");
    const MutexLock lock(mutex_);
    ++counts_.refused;
    return nullptr;
  }
}

std::string KernelCache::path_of(const std::string& key) const {
  return folder_ + "/" + key + std::string(entry_suffix);
}

std::optional<std::string> KernelCache::read(const std::string& key) {
  if (folder_.empty()) return std::nullopt;
  const std::string path = path_of(key);
  if (std::error_code none; !fs::exists(fs::symlink_status(path, none))) return std::nullopt;
  if (!distrust_of(folder_).empty()) return std::nullopt;  // write() reports or repairs this
  Content content = read_entry(path, key, options_.limit_bytes, true);
  if (!content.exists) return std::nullopt;
  if (content.problem.empty()) return std::move(content.library);
  return refuse("compile: " + path + content.problem + "; the kernel is compiled again.");
}

std::nullopt_t KernelCache::refuse(const std::string& why) {
  log_info(why);
  const MutexLock lock(mutex_);
  ++counts_.refused;
  return std::nullopt;
}

void KernelCache::write(const std::string& key, const std::string& content) {
  try {
    add(key, content);
    make_room();
  } catch (const std::exception& error) {
    say_once(said_, "compile: generated kernels are not cached: " + user_message(error));
  }
}

void KernelCache::add(const std::string& key, const std::string& library) {
  TORCH_CHECK(!folder_.empty(), "neither BELLOWS_CACHE nor HOME is set.");
  make_trusted_folder(folder_);
  std::error_code error;
  const std::string path = path_of(key);
  // Do not write to a pipe, or to a file that belongs to another user.
  struct stat status {};
  if (::lstat(path.c_str(), &status) == 0 && !(S_ISREG(status.st_mode) && status.st_uid == ::geteuid()))
    fs::remove(path, error);
  const std::string content = library + digest(compiler_ ? compiler_->identity : "");
  write_text_file(path, content + digest(key + content));
  fs::permissions(path, fs::perms::owner_read | fs::perms::owner_write, error);
}

std::optional<std::string> KernelCache::library(const std::string& key) const {
  if (!compiler_ || folder_.empty() || !distrust_of(folder_).empty()) return std::nullopt;
  Content content = read_entry(path_of(key), key, options_.limit_bytes, false);
  if (!content.exists || !content.problem.empty() || content.identity != digest(compiler_->identity))
    return std::nullopt;
  return std::move(content.library);
}

std::vector<KernelCache::Entry> KernelCache::entries() const {
  std::vector<Entry> result;
  std::error_code error;
  if (folder_.empty() || !fs::exists(folder_, error)) return result;
  const std::string why = distrust_of(folder_);
  TORCH_CHECK(why.empty(), "the kernel cache is not used: ", why);
  for (const auto& item : fs::directory_iterator(folder_, error)) {
    if (!is_entry(item.path())) continue;
    const std::string key = item.path().stem();
    const Content content = read_entry(item.path(), key, options_.limit_bytes, false);
    result.push_back({.key = key,
                      .bytes = content.status.st_size,
                      .used_s = content.status.st_mtim.tv_sec,
                      .usable = compiler_ && content.identity == digest(compiler_->identity),
                      .problem = content.exists ? content.problem : " cannot be opened"});
  }
  TORCH_CHECK(!error, "cannot read the folder ", folder_, ": ", error.message(), ".");
  std::sort(result.begin(), result.end(), [](const Entry& a, const Entry& b) { return a.key < b.key; });
  return result;
}

int64_t KernelCache::clear() {
  std::error_code error;
  if (folder_.empty() || !fs::exists(folder_, error)) return 0;
  const std::string why = distrust_of(folder_);
  TORCH_CHECK(why.empty(), "the kernel cache is not used: ", why);
  std::vector<fs::path> files;
  for (const auto& item : fs::directory_iterator(folder_, error)) {
    const bool temporary = item.path().filename().string().find(temporary_mark) != std::string::npos;
    if (is_entry(item.path()) || temporary) files.push_back(item.path());
  }
  TORCH_CHECK(!error, "cannot read the folder ", folder_, ": ", error.message(), ".");
  int64_t removed = 0;
  for (const fs::path& file : files) {
    const bool done = fs::remove(file, error);
    TORCH_CHECK(!error, "cannot delete ", file.string(), ": ", error.message(), ".");
    removed += done && is_entry(file);
  }
  return removed;
}

KernelOrigin KernelCache::origin() const {
  TORCH_CHECK(compiler_,
              "no C++ compiler was found, so this machine has no kernels. Install g++ or clang++, or set BELLOWS_CXX.");
  const std::string& identity = compiler_->identity;
  return {.bellows = BELLOWS_VERSION,
          .format = std::string(format.substr(0, format.size() - 1)),
          .compiler = identity.substr(0, identity.size() - compiler_->processor.size()),
          .processor = compiler_->processor,
          .c_library = ::gnu_get_libc_version()};
}

void KernelCache::make_room() {
  const auto lock = io::FileLock::try_lock(folder_ + "/.lock");
  if (!lock) return;  // another process is evicting entries
  struct Used {
    fs::file_time_type last;
    int64_t bytes;
    fs::path path;
  };
  std::vector<Used> used;
  int64_t total = 0;
  std::error_code error;
  for (const auto& item : fs::directory_iterator(folder_, error)) {
    const std::string name = item.path().filename();
    const auto last = item.last_write_time(error);
    if (error) continue;  // another process removed it
    const auto bytes = static_cast<int64_t>(item.file_size(error));
    if (error) continue;
    if (name.find(temporary_mark) != std::string::npos) {  // left by a process that was killed
      if (fs::file_time_type::clock::now() - last > std::chrono::hours(1)) fs::remove(item.path(), error);
    } else if (name.ends_with(entry_suffix)) {
      used.push_back({last, bytes, item.path()});
      total += bytes;
    }
  }
  std::sort(used.begin(), used.end(), [](const Used& a, const Used& b) { return a.last < b.last; });
  int64_t evicted = 0;
  for (const Used& entry : used) {
    if (total <= options_.limit_bytes) break;
    fs::remove(entry.path, error);
    total -= entry.bytes;
    ++evicted;
  }
  const MutexLock counting(mutex_);
  counts_.evicted += evicted;
}

}  // namespace bellows::compile_detail
