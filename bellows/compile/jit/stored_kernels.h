#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "bellows/compile/jit/kernel_cache.h"
#include "bellows/compile/jit/kernel_library.h"
#include "bellows/core/mutex.h"

namespace bellows::compile_detail {

/// Returns the name under which the libraries of a source are stored.
std::string source_name(const std::string& source);

/// Gets libraries from another provider, and remembers their sources.
class RememberedKernels : public KernelProvider {
 public:
  explicit RememberedKernels(std::shared_ptr<KernelProvider> provider) : provider_(std::move(provider)) {}
  bool can_compile() const override { return provider_->can_compile(); }
  std::shared_ptr<const Library> load(const std::string& source, const std::stop_token& stop) override;
  /// The libraries so far, by their sources.
  std::map<std::string, std::shared_ptr<const Library>> libraries() const;

 private:
  std::shared_ptr<KernelProvider> provider_;
  mutable Mutex mutex_;
  std::map<std::string, std::shared_ptr<const Library>> libraries_ BELLOWS_GUARDED_BY(mutex_);
};

/// Provides stored libraries. Other sources are compiled, if there is a compiler.
class StoredKernels : public KernelProvider {
 public:
  /// Params: libraries – content of the libraries, by source_name(). The memory must outlive this object
  explicit StoredKernels(std::map<std::string, std::string_view> libraries) : libraries_(std::move(libraries)) {}
  bool can_compile() const override { return true; }
  std::shared_ptr<const Library> load(const std::string& source, const std::stop_token& stop) override;

 private:
  std::map<std::string, std::string_view> libraries_;
  Mutex mutex_;
  std::optional<KernelCache> cache_ BELLOWS_GUARDED_BY(mutex_);  ///< created when a source is not stored
};

}  // namespace bellows::compile_detail
