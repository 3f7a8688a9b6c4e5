#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "bellows/core/model.h"
#include "bellows/export/dynamic_axes.h"
#include "bellows/export/program.h"

namespace bellows {

struct PytorchOptions {
  /// Names of the inputs and outputs. Empty: the names of the model's inputs and outputs, or "input", "input_1", … and
  /// "output", "output_1", … for functions. In Python, the inputs are arguments with these names.
  std::vector<std::string> input_names{}, output_names{};
  std::optional<DynamicAxes> dynamic_axes{};            ///< see OnnxOptions
  std::map<std::string, std::vector<int64_t>> sizes{};  ///< see OnnxOptions
  NamedTensors weights{};  ///< for functions: tensors that the function captures, with their names
  /// Runs the written file and compares it with the model before it appears under its name.
  bool check = true;
};

/// The description of a written TorchScript or `.pt2` file.
struct PytorchReport {
  std::string file{};
  uint64_t bytes = 0;
  std::string format{};  ///< "TorchScript" or "pt2"
  std::vector<ProgramTensor> inputs{}, outputs{};
  std::map<std::string, std::vector<int64_t>> dynamic_axes{};  ///< names, and the sizes that were recorded
  std::map<std::string, int64_t> operators{};                  ///< number of calls by operator, such as "aten::relu"
  int64_t parameters = 0, buffers = 0, constants = 0;          ///< tensors in the file
  int64_t checked_calls = 0;      ///< calls of the written file with different sizes; 0 without a check
  double largest_difference = 0;  ///< from the model, relative to the largest value of the output

  /// Returns several lines for a terminal.
  std::string to_text() const;
};

/// Writes a model as a TorchScript file, which torch.jit.load() in Python and torch::jit::load() in C++ open without the
/// model's code. The model runs in evaluation mode and without gradients on the example inputs and with other sizes of the
/// dynamic axes, and its operators are recorded, as for export_onnx(). The file contains these operators, the weights under
/// their names, and all buffers. train() and eval() have no effect on the loaded module.
/// Params:   inputs – example inputs, in the order of the model's inputs. Optional inputs may be undefined, or left out at
///                    the end; they are no inputs of the file
///           path   – the file; an existing file is replaced atomically
/// Numerics: the file computes with libtorch's operators in the model's dtypes. Differences come from the operators of
///           Bellows, which become several operators of libtorch: below 1e-5 in fp32 (tests/export)
/// Cost:     one eager call for each dynamic axis and two more, and as many of the written file
/// Threads:  the model must not be used on other threads during the call
/// Throws:   c10::ValueError if an operator is random or does not belong to libtorch. The message names the operator, the
///           weights that it reads and the place in your code. It is also thrown if values are read on the host, if
///           operators differ between sizes, or if a size is no expression of the inputs' sizes. Finally, it is thrown if
///           an option is invalid, or if the file's results differ from the model's. c10::Error if the file cannot be
///           written
/// Ref:      torch.jit.save
PytorchReport export_torchscript(const Model& model, const std::vector<at::Tensor>& inputs, const std::string& path,
                                 const PytorchOptions& options = {});
/// Does the same for a function of tensors.
PytorchReport export_torchscript(const std::function<std::vector<at::Tensor>(const std::vector<at::Tensor>&)>& function,
                                 const std::vector<at::Tensor>& inputs, const std::string& path,
                                 const PytorchOptions& options = {});

/// Writes a model as a `.pt2` file, which torch.export.load() in Python 2.11 opens. Everything else is as for
/// export_torchscript(). torch.export.load(path).module() runs the model with all sizes of the dynamic axes from 1 on.
/// Ref: torch.export.save
PytorchReport export_pt2(const Model& model, const std::vector<at::Tensor>& inputs, const std::string& path,
                         const PytorchOptions& options = {});
/// Does the same for a function of tensors.
PytorchReport export_pt2(const std::function<std::vector<at::Tensor>(const std::vector<at::Tensor>&)>& function,
                         const std::vector<at::Tensor>& inputs, const std::string& path,
                         const PytorchOptions& options = {});

}  // namespace bellows
