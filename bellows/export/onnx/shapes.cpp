#include "bellows/export/onnx/shapes.h"

#include <numeric>

namespace bellows::onnx_export {

std::string expanded(Call& call, const std::string& name, const VariedSizes& from, const VariedSizes& to) {
  return from == to ? name : call.node("Expand", {name, call.shape(to)});
}

Varied product_of(const VariedSizes& sizes, const std::vector<int64_t>& dims, size_t recordings) {
  Varied product = export_detail::fixed(1, recordings);
  for (const int64_t dim : dims) {
    for (size_t i = 0; i < recordings; ++i) product.values[i] *= sizes.at(dim).values[i];
  }
  return product;
}

std::vector<int64_t> all_dims(int64_t rank) {
  std::vector<int64_t> dims(rank);
  std::iota(dims.begin(), dims.end(), 0);
  return dims;
}

}  // namespace bellows::onnx_export
