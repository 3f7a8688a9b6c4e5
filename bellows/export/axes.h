#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "bellows/export/dynamic_axes.h"
#include "bellows/export/recordings.h"

namespace bellows::export_detail {

/// Which axes vary, see OnnxOptions.
struct AxisOptions {
  const std::optional<DynamicAxes>& dynamic_axes;
  const std::map<std::string, std::vector<int64_t>>& sizes;
  const char* caller;  ///< function of the user, for messages
};

/// Returns the axes that are recorded with several sizes.
/// Throws: c10::ValueError if an axis or input does not exist, or if axes of one name have different sizes
std::vector<VariedAxis> varied_axes(const std::vector<at::Tensor>& inputs, const std::vector<std::string>& names,
                                    const AxisOptions& options);

/// Returns "name", "name_1", …
std::vector<std::string> numbered_names(const std::string& name, size_t count);

/// Throws: c10::ValueError if there are not `count` different names
void check_names(const std::vector<std::string>& names, size_t count, const char* of, const char* caller);

}  // namespace bellows::export_detail
