#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "bellows/core/model.h"
#include "bellows/export/dynamic_axes.h"

namespace bellows {

struct ProgramOptions {
  /// Names of the inputs and outputs. Empty: the names of the model's inputs and outputs, or "input", "input_1", … and
  /// "output", "output_1", … for functions.
  std::vector<std::string> input_names{}, output_names{};
  std::optional<DynamicAxes> dynamic_axes{};            ///< see OnnxOptions
  std::map<std::string, std::vector<int64_t>> sizes{};  ///< see OnnxOptions
  NamedTensors weights{};  ///< for functions: tensors that the function captures, with their names
  /// If this is bf16 or half, matmuls and convolutions run in this dtype (see CompileOptions::autocast).
  std::optional<c10::ScalarType> autocast{};
  /// Stores a second set of kernels, which runs on all processors with AVX2. Without it, a machine with another processor
  /// and without a compiler runs some operators with libtorch's kernels.
  bool portable = true;
};

/// A tensor that a program receives or returns.
struct ProgramTensor {
  std::string name{};
  c10::ScalarType dtype = c10::kFloat;
  std::vector<std::string> sizes{};  ///< a number, a name or an expression of names for each axis
};

/// The description of a written program.
struct ProgramReport {
  std::string file{};
  uint64_t bytes = 0;         ///< size of the file
  uint64_t weight_bytes = 0;  ///< of the model's tensors
  uint64_t packed_bytes = 0;  ///< of weights that are stored a second time, in the order in which kernels read them
  int64_t operators = 0, kernels = 0;
  std::vector<ProgramTensor> inputs{}, outputs{};
  std::map<std::string, std::vector<int64_t>> dynamic_axes{};  ///< names, and the sizes that were recorded

  /// Returns several lines for a terminal.
  std::string to_text() const;
};

/// Writes a model as a compiled program: one file with the recorded operators, the weights, packed weights and compiled
/// kernels. Another process, or another program in another language that uses libtorch, runs it without the model's code
/// and without a compiler (LoadedProgram). The model runs in evaluation mode on the example inputs and with other sizes
/// of the dynamic axes, as for export_onnx(). The written program is then loaded and compared with the model for these
/// sizes.
/// Params:   inputs – example inputs, in the order of the model's inputs
///           path   – the file; an existing file is replaced atomically
/// Numerics: as for compile() with frozen weights
/// Cost:     one eager call for each dynamic axis and two more; compiles kernels, twice with `portable`
/// Threads:  the model must not be used on other threads during the call
/// Throws:   c10::ValueError if values are read on the host, if operators differ between sizes, if a size is no expression
///           of the inputs' sizes, or if the program's results differ from the model's. c10::Error if the file cannot be
///           written
ProgramReport export_program(const Model& model, const std::vector<at::Tensor>& inputs, const std::string& path,
                             const ProgramOptions& options = {});
/// Does the same for a function of tensors.
ProgramReport export_program(const std::function<std::vector<at::Tensor>(const std::vector<at::Tensor>&)>& function,
                             const std::vector<at::Tensor>& inputs, const std::string& path,
                             const ProgramOptions& options = {});

struct LoadProgramOptions {
  /// Use matmuls whose results for a row do not depend on the number of rows. In fp32, linears with constant weights then
  /// run on kernels::packed_matmul(). Their weights are packed in the first call, not read from the file.
  /// Cost: bench/results/2026-11-28-serve.md
  bool batch_invariant = false;
};

/// A program of export_program(). Copies share the program.
///
/// The file contains machine code, which runs in this process: load only files that you trust. If the processor differs
/// from that of the exporting machine, kernels are compiled again (and cached). Without a compiler, the portable kernels
/// are used.
/// Threads: calls may be concurrent; they run one after another
class LoadedProgram {
 public:
  /// Cost:   maps the file, and checks the parts that it needs
  /// Throws: c10::ValueError if the file is missing, truncated, damaged or no program, or if another version of libtorch
  ///         wrote it
  explicit LoadedProgram(const std::string& path, const LoadProgramOptions& options = {});

  const std::vector<ProgramTensor>& inputs() const;
  const std::vector<ProgramTensor>& outputs() const;
  /// Runs the program without gradients. The first call with new sizes prepares a program for these sizes.
  /// Params:  inputs – CPU tensors in the order of inputs()
  /// Returns: new tensors in the order of outputs(). A result that is an input of the program shares its memory
  /// Cost:    about 1 µs in addition to the program's kernels
  /// Throws:  c10::ValueError if the number, dtype or sizes of inputs differ from inputs(), or if a part of the file is
  ///          damaged
  std::vector<at::Tensor> run(std::span<const at::Tensor> inputs) const;
  at::Tensor operator()(const at::Tensor& input) const { return run({&input, 1}).front(); }
  /// Returns the program as a model without parameters.
  Model model() const;
  /// Returns which program runs: operators, kernels and packed weights.
  std::string explain() const;

 private:
  class Impl;
  std::shared_ptr<Impl> impl_;
};

/// Loads a program that export_program() wrote.
inline LoadedProgram load_program(const std::string& path, const LoadProgramOptions& options = {}) {
  return LoadedProgram(path, options);
}

}  // namespace bellows
