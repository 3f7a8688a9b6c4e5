#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "bellows/core/model.h"
#include "bellows/export/dynamic_axes.h"
#include "bellows/export/program.h"
#include "bellows/export/recordings.h"

namespace bellows::export_detail {

/// Names of inputs and outputs, and the axes that vary, see OnnxOptions.
struct RecordingOptions {
  std::vector<std::string> input_names{}, output_names{};  ///< empty: default names
  const std::optional<DynamicAxes>& dynamic_axes;
  const std::map<std::string, std::vector<int64_t>>& sizes;
  const char* caller;  ///< function of the user, for messages
};

/// Records a function with several sizes of its inputs, and gives names to inputs and outputs.
/// Params: named – see record_sizes()
/// Throws: c10::ValueError like record_sizes(), if a name is empty or used twice, if an axis or input does not exist, or if
///         axes of one name have different sizes
Recordings record_named(const Forward& function, std::vector<at::Tensor> inputs, std::span<const Named> named,
                        RecordingOptions options);
/// Fills in the names that a model gives to its inputs and outputs.
/// Throws: c10::ValueError if the model does not have as many inputs
RecordingOptions with_names_of(const Model& model, size_t inputs, RecordingOptions options);

/// Describes a tensor by its sizes in all recordings.
/// Params: tensor_of – the tensor in a recording
ProgramTensor described(const std::string& name, const Recordings& recordings,
                        const std::function<at::Tensor(size_t recording)>& tensor_of);

/// Returns the different sizes of each dynamic axis that were recorded.
std::map<std::string, std::vector<int64_t>> recorded_sizes(const Recordings& recordings);

}  // namespace bellows::export_detail
