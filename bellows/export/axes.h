#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "bellows/export/recordings.h"

namespace bellows {

/// For each input, the axes whose size may differ between calls, and their names: {{"ids", {{0, "batch"}, {1, "tokens"}}}}.
/// Axes with the same name always have the same size.
using DynamicAxes = std::map<std::string, std::map<int64_t, std::string>>;

}  // namespace bellows

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
