#include "bellows/export/onnx/operators.h"

#include <map>

namespace bellows::onnx_export {

namespace {

using Table = std::map<std::string, OperatorMapping, std::less<>>;

const Table& table() {
  static const Table all = [] {
    Table result;
    for (const auto& part : {pointwise_mappings(), tensor_mappings(), reduction_mappings(), indexing_mappings(),
                             network_mappings(), quantized_mappings()}) {
      for (const OperatorMapping& one : part) result.emplace(one.aten, one);
    }
    return result;
  }();
  return all;
}

}  // namespace

const OperatorMapping* mapping_of(std::string_view aten) {
  const auto found = table().find(aten);
  if (found != table().end()) return &found->second;
  const size_t dot = aten.find('.');
  std::string name(aten.substr(0, dot));
  const std::string overload(dot == std::string_view::npos ? "" : aten.substr(dot));
  if (!name.ends_with('_')) return nullptr;
  name.pop_back();
  const auto pure = table().find(name + overload);
  return pure == table().end() ? nullptr : &pure->second;
}

std::vector<OperatorMapping> all_mappings() {
  std::vector<OperatorMapping> result;
  for (const auto& [name, mapping] : table()) result.push_back(mapping);
  return result;
}

}  // namespace bellows::onnx_export
