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

/// The modules of a model as a tree, and a mapping from tensors to modules. `torch::nn` has no module hooks in C++.
/// Operators are therefore assigned to modules by the parameters and buffers that they read. docs/inspect.md describes
/// the complete rule.
///
/// A tensor belongs to the module whose parameter or buffer has the same storage. Views therefore belong to the same
/// module. If the storages of parameters are replaced, for example by a move to another device, create the map
/// afterwards.
/// Threads: not thread-safe
class ModuleMap {
 public:
  /// The model itself. Tensors and operators whose module is unknown also belong to it.
  static constexpr int root = 0;
  static constexpr int nobody = -1;

  ModuleMap() : ModuleMap(NamedTensors{}) {}
  explicit ModuleMap(const Model& model);
  /// Params: tensors – their names define the modules: "layer1.0.conv1.weight" belongs to module "layer1.0.conv1"
  explicit ModuleMap(const NamedTensors& tensors);

  /// Returns the module with this path, and adds it if it does not exist. An empty path is the root.
  int module(std::string_view path);
  const std::string& path(int module) const { return nodes_[module].path; }
  int parent(int module) const { return nodes_[module].parent; }
  int size() const { return static_cast<int>(nodes_.size()); }

  /// Returns the module to which the tensor's storage belongs, or `nobody`.
  int owner(const at::Tensor& tensor) const;
  /// Assigns the tensor's storage to `module` until the storage is freed. Use it for a cast or a copy of a weight.
  void adopt(const at::Tensor& tensor, int module);
  /// Returns the innermost module that contains both modules. If one of them is `nobody`, returns the other one.
  int common(int a, int b) const;
  /// Returns true if `module` is `ancestor` or below it.
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

/// Assigns the operators of a code section to a named module. Create a scope at the start of a forward() whose
/// operators cannot be distinguished by their parameters. If an operator reads a parameter of a module inside `path`,
/// it still belongs to that module.
/// Threads: affects the current thread
/// Cost:    a few ns if there is no observer
class ModuleScope {
 public:
  /// Params: path – path relative to the model's root, such as "encoder.0.attention"
  explicit ModuleScope(std::string_view path);
  ~ModuleScope();
  ModuleScope(const ModuleScope&) = delete;
  ModuleScope& operator=(const ModuleScope&) = delete;

 private:
  std::unique_ptr<at::RecordFunction> scope_;
};

}  // namespace bellows::inspect
