#include "bellows/serve/protocol/shared_memory.h"

#include <c10/util/StringUtil.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <limits>
#include <nlohmann/json.hpp>
#include <utility>

#include "bellows/core/error.h"
#include "bellows/report/json_text.h"
#include "bellows/serve/request_error.h"

namespace bellows::serve {

namespace {

using nlohmann::ordered_json;

/// Only names of objects, so that clients cannot reach other files.
void check_key(const std::string& key) {
  constexpr size_t longest = 255;
  const std::string plain = key.substr(key.starts_with('/') ? 1 : 0);
  const bool valid = !plain.empty() && plain.size() <= longest && plain != "." && plain != ".." &&
                     plain.find('/') == std::string::npos && plain.find('\0') == std::string::npos;
  if (!valid)
    throw RequestError(
        status_bad_request,
        "shared memory: expected a key such as \"/my_region\", with one slash at most, got \"" + key + "\".");
}

/// Returns the size of an object, or -1 if it is not a regular file.
int64_t object_size(int file) {
  struct stat status {};
  return fstat(file, &status) == 0 && S_ISREG(status.st_mode) ? static_cast<int64_t>(status.st_size) : -1;
}

uint64_t count_in(const ordered_json& json, const char* key, bool required) {
  const auto found = json.find(key);
  if (found == json.end() && !required) return 0;
  if (found == json.end() || !found->is_number_unsigned())
    throw RequestError(status_bad_request,
                       std::string("shared memory: expected an integer of at least 0 for \"") + key + "\".");
  return found->get<uint64_t>();
}

void register_region(SharedMemory& memory, const std::string& name, const std::string& body) {
  const ordered_json json = ordered_json::parse(body, nullptr, /*allow_exceptions=*/false);
  const auto key = json.is_object() ? json.find("key") : json.end();
  if (!json.is_object() || key == json.end() || !key->is_string())
    throw RequestError(
        status_bad_request,
        R"(shared memory: expected a JSON object such as {"key": "/name", "offset": 0, "byte_size": 64}.)");
  memory.add(name, key->get<std::string>(), count_in(json, "offset", /*required=*/false),
             count_in(json, "byte_size", /*required=*/true));
}

}  // namespace

SharedRegion::SharedRegion(std::string name, std::string key, uint64_t offset, uint64_t bytes)
    : name_(std::move(name)), key_(std::move(key)), offset_(offset), bytes_(bytes) {
  check_key(key_);
  constexpr auto most = static_cast<uint64_t>(std::numeric_limits<off_t>::max());
  if (bytes_ == 0 || bytes_ > most || offset_ > most - bytes_)
    throw RequestError(status_bad_request, c10::str("shared memory region \"", name_,
                                                    "\": expected a byte_size from 1 to 2^63 - 1 after the "
                                                    "offset, got the byte_size ",
                                                    bytes_, " and the offset ", offset_, "."));
  file_ = shm_open(key_.c_str(), O_RDWR | O_CLOEXEC, 0);
  if (file_ < 0)
    throw RequestError(status_bad_request, "shared memory region \"" + name_ + "\": cannot open the object \"" + key_ +
                                               "\": " + errno_message(errno) + ". Create it before you register it.");
  const int64_t size = object_size(file_);
  if (size >= 0 && static_cast<uint64_t>(size) >= offset_ + bytes_) return;
  close(file_);
  throw RequestError(status_bad_request,
                     c10::str("shared memory region \"", name_, "\": the object \"", key_, "\" has ", size,
                              " bytes, but offset and byte_size need ", offset_ + bytes_, "."));
}

SharedRegion::~SharedRegion() {
  close(file_);
}

void SharedRegion::shrunk() const {
  throw RequestError(status_bad_request, "shared memory region \"" + name_ + "\": the object \"" + key_ +
                                             "\" is smaller now than when it was registered.");
}

void SharedRegion::check_size(uint64_t end) const {
  const int64_t size = object_size(file_);
  if (size < 0 || static_cast<uint64_t>(size) < offset_ + end) shrunk();
}

void SharedRegion::read(uint64_t from, void* to, uint64_t bytes) const {
  auto* next = static_cast<char*>(to);
  for (uint64_t done = 0; done < bytes;) {
    const ssize_t count = pread(file_, next + done, bytes - done, static_cast<off_t>(offset_ + from + done));
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) shrunk();
    done += static_cast<uint64_t>(count);
  }
}

void SharedRegion::write(uint64_t to, const void* from, uint64_t bytes) const {
  check_size(to + bytes);  // pwrite() would make the object larger
  const auto* next = static_cast<const char*>(from);
  for (uint64_t done = 0; done < bytes;) {
    const ssize_t count = pwrite(file_, next + done, bytes - done, static_cast<off_t>(offset_ + to + done));
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0)
      throw RequestError(status_internal, "shared memory region \"" + name_ +
                                              "\": cannot write: " + errno_message(count == 0 ? ENOSPC : errno) + ".");
    done += static_cast<uint64_t>(count);
  }
}

void SharedMemory::add(const std::string& name, const std::string& key, uint64_t offset, uint64_t bytes) {
  if (name.empty()) throw RequestError(status_bad_request, "shared memory: the name of the region is missing.");
  auto region = std::make_shared<const SharedRegion>(name, key, offset, bytes);
  const MutexLock lock(mutex_);
  if (regions_.contains(name))
    throw RequestError(status_conflict, "shared memory region \"" + name +
                                            "\" is already registered. Unregister it, or choose another name.");
  if (regions_.size() >= most_regions)
    throw RequestError(status_bad_request,
                       c10::str("shared memory: at most ", most_regions, " regions can be registered."));
  regions_[name] = std::move(region);
}

void SharedMemory::remove(const std::string& name) {
  const MutexLock lock(mutex_);
  regions_.erase(name);
}

void SharedMemory::remove_all() {
  const MutexLock lock(mutex_);
  regions_.clear();
}

std::vector<std::shared_ptr<const SharedRegion>> SharedMemory::regions(const std::string& name) const {
  std::vector<std::shared_ptr<const SharedRegion>> list;
  const MutexLock lock(mutex_);
  for (const auto& [key, region] : regions_) {
    if (name.empty() || name == key) list.push_back(region);
  }
  if (!name.empty() && list.empty())
    throw RequestError(status_not_found, "there is no shared memory region \"" + name + "\".");
  return list;
}

RegionPart SharedMemory::part(const std::string& what, const std::string& name, uint64_t offset, uint64_t bytes) const {
  RegionPart part{.offset = offset, .bytes = bytes};
  {
    const MutexLock lock(mutex_);
    const auto found = regions_.find(name);
    if (found != regions_.end()) part.region = found->second;
  }
  if (!part)
    throw RequestError(status_bad_request,
                       what + ": there is no shared memory region \"" + name + "\". Register it first.");
  const uint64_t size = part.region->bytes();
  if (offset > size || bytes > size - offset)
    throw RequestError(status_bad_request,
                       c10::str(what, ": the offset ", offset, " and the size ", bytes,
                                " do not fit into the shared memory region \"", name, "\" of ", size, " bytes."));
  if (bytes > max_part_bytes_)
    throw RequestError(status_bad_request, c10::str(what, ": ", bytes,
                                                    " bytes of shared memory are more than the limit "
                                                    "for the body of a request, ",
                                                    max_part_bytes_, " bytes."));
  return part;
}

std::string shared_memory_call(SharedMemory& memory, const std::string& region, const std::string& action,
                               const std::string& body) {
  if (action == "register") {
    register_region(memory, region, body);
    return "";
  }
  if (action == "unregister") {
    region.empty() ? memory.remove_all() : memory.remove(region);
    return "";
  }
  ordered_json list = ordered_json::array();
  for (const auto& one : memory.regions(region))
    list.push_back(
        {{"name", one->name()}, {"key", one->key()}, {"offset", one->offset()}, {"byte_size", one->bytes()}});
  return json_text(list);
}

}  // namespace bellows::serve
