#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "bellows/core/model.h"

namespace at {
struct RecordFunction;
}

namespace bellows::inspect {

/// The modules of a model as a tree, and the mapping from tensors to their modules. `torch::nn` has no module hooks in
/// C++, so operators are assigned to modules by the parameters and buffers that they read (docs/inspect.md describes
/// the complete rule).
///
/// A tensor belongs to the module whose parameter or buffer has the same storage; this includes views. If storages of
/// parameters are replaced (by a move to another device), create the map afterwards.
/// Threads: not thread-safe
class ModuleMap {
 public:
  static constexpr int root = 0;  ///< the model itself, and all tensors and operators without a known module
  static constexpr int nobody = -1;

  ModuleMap() : ModuleMap(NamedTensors{}) {}
  explicit ModuleMap(const Model& model);
  /// Params: tensors – "layer1.0.conv1.weight" belongs to module "layer1.0.conv1"
  explicit ModuleMap(const NamedTensors& tensors);

  /// The module with this path. Adds it if it is new. "" is the root.
  int module(std::string_view path);
  const std::string& path(int module) const { return nodes_[module].path; }
  int parent(int module) const { return nodes_[module].parent; }
  int size() const { return static_cast<int>(nodes_.size()); }

  /// The module to which the tensor's storage belongs, or `nobody`.
  int owner(const at::Tensor& tensor) const;
  /// Assigns the tensor's storage to `module` while the storage lives: for a cast or a copy of a weight.
  void adopt(const at::Tensor& tensor, int module);
  /// The innermost module that contains both. If one is `nobody`, returns the other.
  int common(int a, int b) const;
  /// True if `module` is `ancestor` or below it.
  bool inside(int module, int ancestor) const;

 private:
  struct Node {
    std::string path;
    int parent = nobody;
    int depth = 0;
  };
  struct Owned {
    c10::weak_intrusive_ptr<c10::StorageImpl> storage;  // prevents the address from being reused
    int module;
  };
  void drop_freed_storages();

  std::vector<Node> nodes_;
  std::unordered_map<std::string, int> by_path_;
  std::unordered_map<const void*, Owned> owners_;
  size_t sweep_at_ = 1024;
};

/// Assigns the operators of a code section to a named module. Put one at the start of a forward() whose operators
/// cannot be distinguished by their parameters. An operator that reads a parameter of a module inside `path` still
/// counts for that module.
/// Threads: affects the current thread
/// Cost:    a few ns without an observer
class ModuleScope {
 public:
  /// Params: path – relative to the model's root: "encoder.0.attention"
  explicit ModuleScope(std::string_view path);
  ~ModuleScope();
  ModuleScope(const ModuleScope&) = delete;
  ModuleScope& operator=(const ModuleScope&) = delete;

 private:
  std::unique_ptr<at::RecordFunction> scope_;
};

}  // namespace bellows::inspect
