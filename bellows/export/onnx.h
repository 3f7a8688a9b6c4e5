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

namespace bellows {

/// A function of tensors.
using OnnxFunction = std::function<std::vector<at::Tensor>(const std::vector<at::Tensor>&)>;

/// A library that runs ONNX files, such as ONNX Runtime (runtime::onnx_checker()).
struct OnnxChecker {
  std::string name{};
  /// Loads a file. The result receives the inputs of the graph, and returns its outputs.
  std::function<OnnxFunction(const std::string& path)> load{};
};

struct OnnxOptions {
  /// Names of the inputs and outputs. Empty: the names of the model's inputs and outputs, or "input", "input_1", … and
  /// "output", "output_1", … for functions.
  std::vector<std::string> input_names{}, output_names{};
  /// The axes that may vary. Without a value, the first axis of all inputs that agree in its size, as "batch". An empty
  /// map fixes all sizes.
  std::optional<DynamicAxes> dynamic_axes{};
  /// For each named axis, three sizes of at least 2 with which the function is recorded. Without an entry, sizes near the
  /// size in the example inputs are tried. Example: {"height", {64, 96, 128}} for a model that needs multiples of 32.
  std::map<std::string, std::vector<int64_t>> sizes{};
  /// For functions: tensors that the file calls by these names, such as the weights that the function captures.
  NamedTensors weights{};
  std::string graph_name{};  ///< empty: the name of the model
  int64_t opset = 17;        ///< only 17 is supported
  /// If the weights have more bytes than this together, they are written to a second file, `PATH.data`.
  uint64_t external_data_above = uint64_t{1} << 31;
  /// Runs the written file and compares its results with the function's, before the file gets its name: for all recorded
  /// sizes, and for a size of 1 of each dynamic axis. The largest accepted difference is 1e-3 of the largest value, and
  /// 5 % for 16-bit dtypes and quantized models.
  std::optional<OnnxChecker> checker{};
};

/// The description of a written ONNX file.
struct OnnxReport {
  struct Tensor {
    std::string name{};
    std::string dtype{};               ///< such as "float32"
    std::vector<std::string> shape{};  ///< a number, a name, or an expression of names for each axis
  };
  /// An axis of an input that has a fixed size, because it was never varied.
  struct FixedAxis {
    std::string input{};
    int64_t axis = 0;
    int64_t size = 0;
  };

  std::string file{}, data_file{};  ///< data_file is empty if all weights are in `file`
  uint64_t bytes = 0, data_bytes = 0;
  int64_t opset = 17;
  std::vector<Tensor> inputs{}, outputs{};
  std::map<std::string, std::vector<int64_t>> dynamic_axes{};  ///< names, and the sizes that were recorded
  std::vector<FixedAxis> fixed_axes{};
  std::map<std::string, int64_t> operators{};  ///< number of nodes by operator of ONNX
  int64_t initializers = 0;
  std::string checked_by{};       ///< name of the checker; empty: the file was not run
  int64_t checked_calls = 0;      ///< number of compared calls
  double largest_difference = 0;  ///< relative to the largest value of a result

  /// Returns several lines for a terminal.
  std::string to_text() const;
};

/// Writes a model as an ONNX file. The model runs in evaluation mode and without gradients on the example inputs, and its
/// operators are recorded. It then runs with other sizes of the dynamic axes. Numbers that change become expressions of
/// these sizes, which a last run with further sizes verifies. The file is checked by the checker and the type inference
/// of ONNX.
///
/// The graph has the operators that ran. Code that branches on the values of tensors cannot be exported. Code that
/// branches on sizes can be, if all recorded sizes take the same branch.
/// Params:   inputs – example inputs, in the order of the model's inputs. Optional inputs may be undefined, or left out at
///                    the end; they are no inputs of the graph
///           path   – the file; an existing file is replaced
/// Numerics: the graph computes fp16 and fp32 in their dtype, and bf16 in fp32: bf16 weights are stored as bf16 and
///           converted. docs/export.md states tolerances (tests/export)
/// Cost:     one eager call for each dynamic axis and two more
/// Threads:  the model must not be used on other threads during the call
/// Throws:   c10::ValueError if an operator has no mapping. The message names the operator, the weights that it reads and
///           the place in your code. It is also thrown if values are read on the host, if operators differ between
///           sizes, or if a size is no expression of the inputs' sizes. Finally, it is thrown if an option is invalid.
///           c10::Error if the file cannot be written, or if Bellows was built without ONNX
/// Ref:      torch.onnx.export
OnnxReport export_onnx(const Model& model, const std::vector<at::Tensor>& inputs, const std::string& path,
                       const OnnxOptions& options = {});

/// Does the same for a function of tensors.
OnnxReport export_onnx(const OnnxFunction& function, const std::vector<at::Tensor>& inputs, const std::string& path,
                       const OnnxOptions& options = {});

/// An operator of libtorch and the operators of ONNX to which it is mapped.
struct OnnxMapping {
  std::string aten{}, onnx{};
};

/// Returns the table of mapped operators, sorted by name.
std::vector<OnnxMapping> onnx_mappings();

/// Returns whether this build can write ONNX files.
bool onnx_available();

}  // namespace bellows
