#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "bellows/runtime/backend.h"

namespace bellows::runtime {

/// An input of a package of AOTInductor. Generated code reads the memory of its inputs without any check, so all values
/// must be checked before a call.
struct PackageInput {
  TensorInfo info{};
  std::vector<int64_t> least{}, most{};  ///< for each axis that may vary: its smallest and largest size
  std::vector<int64_t> strides{};        ///< -1 for strides that may vary
};

/// Reads the inputs from the source of the wrapper in a package, which contains (unused) code that checks them.
/// Params: source – the file NAME.wrapper.cpp
/// Returns: for each input, its description; the dtype is Undefined if the source does not check this input
std::vector<PackageInput> package_inputs(std::string_view source);

/// Returns the names of the outputs in the source of the wrapper.
std::vector<std::string> package_outputs(std::string_view source);

/// Returns the tensor with the strides for which the package was compiled. The tensor is copied if it has others.
/// Throws: c10::ValueError if a size is out of range, or if no memory format has these strides
at::Tensor with_strides_of(const PackageInput& input, const at::Tensor& tensor, const std::string& model);

}  // namespace bellows::runtime
