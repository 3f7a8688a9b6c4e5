#include "bellows/compile/jit/kernel_cache.h"

#include <c10/util/Exception.h>
#include <c10/util/hash.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <sys/mman.h>
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
#include "bellows/io/network/cache_folder.h"
#include "bellows/system/file.h"
#include "bellows/system/trusted_folder.h"

namespace bellows::compile_detail {
namespace {

namespace fs = std::filesystem;

/// Increased when the meaning of an entry changes: the interface of generated code, or the layout of the file.
constexpr std::string_view format = "bellows kernel 1\n";
constexpr size_t digest_digits = 40;
constexpr std::string_view entry_suffix = ".so", temporary_mark = ".tmp-";

std::string digest(const std::string& text) {
  return c10::sha1(text).str();
}

std::string default_folder() {
  const std::string caches = io::default_cache_folder();
  return caches.empty() ? "" : caches + "/kernels";
}

void say_once(std::atomic<bool>& said, const std::string& message) {
  if (!said.exchange(true)) log_warn(message);
}

}  // namespace

Library::Library(const std::string& content) {
  const int fd = ::memfd_create("bellows-kernel", MFD_CLOEXEC);
  TORCH_CHECK(fd >= 0, "compile: cannot allocate memory for a kernel: ", errno_message(errno), ".");
  for (size_t done = 0; done < content.size();) {
    const ssize_t written = ::write(fd, content.data() + done, content.size() - done);
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) break;  // the loader will report the truncated file
    done += static_cast<size_t>(written);
  }
  handle_ = ::dlopen(("/proc/self/fd/" + std::to_string(fd)).c_str(), RTLD_NOW | RTLD_LOCAL);
  const std::string why = handle_ ? "" : ::dlerror();
  if (!handle_) ::close(fd);
  TORCH_CHECK(handle_, "compile: cannot load a kernel: ", why);
  fd_ = fd;
}

Library::~Library() {
  ::dlclose(handle_);
  ::close(fd_);
}

void* Library::symbol(const std::string& name) const {
  void* const found = ::dlsym(handle_, name.c_str());
  TORCH_CHECK(found, "compile: a generated library has no symbol ", name, ".");
  return found;
}

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

std::optional<std::string> KernelCache::read(const std::string& key) {
  if (folder_.empty()) return std::nullopt;
  const std::string path = folder_ + "/" + key + std::string(entry_suffix);
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
  if (fd < 0) return std::nullopt;
  if (!distrust_of(folder_).empty()) {  // write() reports or repairs this
    ::close(fd);
    return std::nullopt;
  }
  struct stat status {};
  std::string content;
  const bool own = ::fstat(fd, &status) == 0 && S_ISREG(status.st_mode) && is_trusted(status) &&
                   status.st_size <= options_.limit_bytes;
  if (own) {
    content.resize(static_cast<size_t>(status.st_size));
    const ssize_t got = ::pread(fd, content.data(), content.size(), 0);
    content.resize(got < 0 ? 0 : static_cast<size_t>(got));
    ::futimens(fd, nullptr);  // marks it as used now
  }
  ::close(fd);
  const std::string said = content.size() > digest_digits ? content.substr(content.size() - digest_digits) : "";
  if (!said.empty()) content.resize(content.size() - digest_digits);
  if (!said.empty() && said == digest(key + content)) return content;
  return refuse(
      "compile: " + path +
      (own ? " is damaged" : " belongs to another user, or other users can write to it (expected mode 0600)") +
      "; the kernel is compiled again.");
}

std::nullopt_t KernelCache::refuse(const std::string& why) {
  log_info(why);
  const MutexLock lock(mutex_);
  ++counts_.refused;
  return std::nullopt;
}

void KernelCache::write(const std::string& key, const std::string& content) {
  try {
    TORCH_CHECK(!folder_.empty(), "neither BELLOWS_CACHE nor HOME is set.");
    make_trusted_folder(folder_);
    std::error_code error;
    const std::string path = folder_ + "/" + key + std::string(entry_suffix);
    // Do not write to a pipe, or to a file that belongs to another user.
    struct stat status {};
    if (::lstat(path.c_str(), &status) == 0 && !(S_ISREG(status.st_mode) && status.st_uid == ::geteuid()))
      fs::remove(path, error);
    write_text_file(path, content + digest(key + content));
    fs::permissions(path, fs::perms::owner_read | fs::perms::owner_write, error);
    make_room();
  } catch (const std::exception& error) {
    say_once(said_, "compile: generated kernels are not cached: " + user_message(error));
  }
}

void KernelCache::make_room() {
  const auto lock = io::FileLock::try_lock(folder_ + "/.lock");
  if (!lock) return;  // another process is evicting entries
  struct Entry {
    fs::file_time_type used;
    int64_t bytes;
    fs::path path;
  };
  std::vector<Entry> entries;
  int64_t total = 0;
  std::error_code error;
  for (const auto& item : fs::directory_iterator(folder_, error)) {
    const std::string name = item.path().filename();
    const auto used = item.last_write_time(error);
    if (error) continue;  // another process removed it
    const auto bytes = static_cast<int64_t>(item.file_size(error));
    if (error) continue;
    if (name.find(temporary_mark) != std::string::npos) {  // left by a process that was killed
      if (fs::file_time_type::clock::now() - used > std::chrono::hours(1)) fs::remove(item.path(), error);
    } else if (name.ends_with(entry_suffix)) {
      entries.push_back({used, bytes, item.path()});
      total += bytes;
    }
  }
  std::sort(entries.begin(), entries.end(), [](const Entry& a, const Entry& b) { return a.used < b.used; });
  int64_t evicted = 0;
  for (const Entry& entry : entries) {
    if (total <= options_.limit_bytes) break;
    fs::remove(entry.path, error);
    total -= entry.bytes;
    ++evicted;
  }
  const MutexLock counting(mutex_);
  counts_.evicted += evicted;
}

}  // namespace bellows::compile_detail
