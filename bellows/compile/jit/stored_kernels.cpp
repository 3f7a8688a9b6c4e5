#include "bellows/compile/jit/stored_kernels.h"

#include <c10/util/hash.h>

namespace bellows::compile_detail {

std::string source_name(const std::string& source) {
  return c10::sha1(source).str();
}

std::shared_ptr<const Library> RememberedKernels::load(const std::string& source, const std::stop_token& stop) {
  auto library = provider_->load(source, stop);
  const MutexLock lock(mutex_);
  return libraries_[source] = std::move(library);
}

std::map<std::string, std::shared_ptr<const Library>> RememberedKernels::libraries() const {
  const MutexLock lock(mutex_);
  return libraries_;
}

std::shared_ptr<const Library> StoredKernels::load(const std::string& source, const std::stop_token& stop) {
  const auto found = libraries_.find(source_name(source));
  if (found != libraries_.end()) return std::make_shared<const Library>(found->second);
  KernelCache* cache = nullptr;
  {
    const MutexLock lock(mutex_);
    if (!cache_) cache_.emplace();
    cache = &*cache_;
  }
  return cache->load(source, stop);
}

}  // namespace bellows::compile_detail
