#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <map>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "bellows/graph/recording/geometry.h"

namespace bellows::graph {

/// Constants that passes compute in advance, such as packed weights, so that they can be saved and need not be computed
/// again. Each one has a key: the texts of all computations that lead from named constants to it.
/// Threads: not thread-safe
class ConstantStore {
 public:
  /// Gives a constant, such as a weight of a model, a name. Only constants that are computed from named constants are
  /// stored.
  void name(const c10::Storage& constant, const std::string& name);
  /// Adds the bytes of a computed constant from a file.
  void add(const std::string& key, at::Tensor bytes) { known_[key] = std::move(bytes); }

  /// Returns stored results, or calls `compute` and stores its results.
  /// Params: identity – determines what is computed from the bytes of the operands (Kernel::identity()). If it is empty,
  ///                    nothing is stored
  ///         bytes    – the size of each result
  ///         compute  – returns one tensor for each result
  std::vector<at::Tensor> results_of(const std::string& identity, std::span<const c10::Storage> operands,
                                     std::span<const size_t> bytes,
                                     const std::function<std::vector<at::Tensor>()>& compute);

  /// The bytes of the computed constants that were used, by their keys.
  const std::map<std::string, at::Tensor>& used() const { return used_; }

 private:
  std::string key_of(const std::string& identity, std::span<const c10::Storage> operands) const;

  std::unordered_map<const void*, std::string> names_;  ///< by the address of the data
  std::map<std::string, at::Tensor> known_, used_;      ///< `used_` keeps the tensors, so that addresses stay unique
};

/// Passes on this thread use a store while this object exists.
class ConstantStoreScope {
 public:
  /// Params: store – may be null
  explicit ConstantStoreScope(ConstantStore* store);
  ~ConstantStoreScope();
  ConstantStoreScope(const ConstantStoreScope&) = delete;
  ConstantStoreScope& operator=(const ConstantStoreScope&) = delete;

 private:
  ConstantStore* before_;
};

/// ConstantStore::results_of() of this thread's store. Without a store, calls `compute`.
std::vector<at::Tensor> stored_or_computed(const std::string& identity, std::span<const c10::Storage> operands,
                                           std::span<const size_t> bytes,
                                           const std::function<std::vector<at::Tensor>()>& compute);

/// The same for tensors.
/// Params: what – determines what is computed from the values of `from`, together with their sizes
///         from – may contain undefined tensors
///         made – geometries of the results. Results of type uint8 are not stored
std::vector<at::Tensor> stored_or_computed(const std::string& what, std::span<const at::Tensor> from,
                                           std::span<const Geometry> made,
                                           const std::function<std::vector<at::Tensor>()>& compute);

}  // namespace bellows::graph
