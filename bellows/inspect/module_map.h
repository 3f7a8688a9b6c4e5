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

/// The modules of a model as a tree, and which of them owns a tensor. `torch::nn` has no module hooks in C++, so
/// operators are assigned to modules by the parameters and buffers that they read (docs/inspect.md has the whole rule).
///
/// A tensor belongs to the module whose parameter or buffer has its storage: views do, too. Storages that replace a
/// parameter's (a move to another device) are unknown: make the map afterwards.
/// Threads: not thread-safe
class ModuleMap {
 public:
  static constexpr int root = 0;  ///< the model itself, and everything that no module can be found for
  static constexpr int nobody = -1;

  ModuleMap() : ModuleMap(NamedTensors{}) {}
  explicit ModuleMap(const Model& model);
  /// Params: tensors – "layer1.0.conv1.weight" belongs to module "layer1.0.conv1"
  explicit ModuleMap(const NamedTensors& tensors);

  /// The module with this path, added if it is new. "" is the root.
  int module(std::string_view path);
  const std::string& path(int module) const { return nodes_[module].path; }
  int parent(int module) const { return nodes_[module].parent; }
  int size() const { return static_cast<int>(nodes_.size()); }

  /// The module that owns the tensor's storage, or `nobody`.
  int owner(const at::Tensor& tensor) const;
  /// Makes `module` own the tensor's storage while that lives: a cast or a copy of a weight.
  void adopt(const at::Tensor& tensor, int module);
  /// The innermost module that holds both; `nobody` gives way to the other.
  int common(int a, int b) const;
  /// True when `module` is `ancestor` or lies below it.
  bool inside(int module, int ancestor) const;

 private:
  struct Node {
    std::string path;
    int parent = nobody;
    int depth = 0;
  };
  struct Owned {
    c10::weak_intrusive_ptr<c10::StorageImpl> storage;  // keeps the address from being given out again
    int module;
  };
  void drop_freed_storages();

  std::vector<Node> nodes_;
  std::unordered_map<std::string, int> by_path_;
  std::unordered_map<const void*, Owned> owners_;
  size_t sweep_at_ = 1024;
};

/// Names the module that the operators of a stretch of code belong to, exactly: put one at the top of a forward()
/// whose operators the parameters alone do not tell apart. An operator that reads a parameter of a module inside
/// `path` still counts for that one.
/// Threads:  the calling thread.
/// Cost:     a few ns while nothing observes.
class ModuleScope {
 public:
  /// Params: path – from the model's root: "encoder.0.attention"
  explicit ModuleScope(std::string_view path);
  ~ModuleScope();
  ModuleScope(const ModuleScope&) = delete;
  ModuleScope& operator=(const ModuleScope&) = delete;

 private:
  std::unique_ptr<at::RecordFunction> scope_;
};

}  // namespace bellows::inspect
