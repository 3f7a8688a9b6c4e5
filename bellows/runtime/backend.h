#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <future>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace bellows::runtime {

/// A tensor that a loaded model receives or returns.
struct TensorInfo {
  std::string name{};
  /// Undefined if the file states neither dtype nor sizes, as for TorchScript. `sizes` is empty then.
  c10::ScalarType dtype = c10::kFloat;
  std::vector<int64_t> sizes{};  ///< -1 for an axis that may vary
  /// Names of the axes that may vary, such as "batch"; "" for other axes. Empty if the file has no names.
  std::vector<std::string> axes{};
};

struct LoadOptions {
  int64_t threads = 0;  ///< threads of one call; 0: the number of threads of libtorch
  /// Execution providers of ONNX Runtime in order of preference ("cpu", "openvino", "cuda", "tensorrt"), or the device of
  /// OpenVINO ("CPU"). Empty: the CPU.
  std::vector<std::string> providers{};
  /// If this is bf16 or half, matmuls and convolutions of an fp32 model run in this dtype. Supported by "libtorch",
  /// "compiled" and "openvino". If this is empty, a model computes in the dtypes of its file.
  std::optional<c10::ScalarType> autocast{};
  /// See LoadProgramOptions. Other back ends than "program" ignore it.
  bool batch_invariant = false;
};

/// A model that a back end loaded from a file.
class InferenceModel {
 public:
  virtual ~InferenceModel() = default;
  InferenceModel() = default;
  InferenceModel(const InferenceModel&) = delete;
  InferenceModel& operator=(const InferenceModel&) = delete;

  virtual const std::vector<TensorInfo>& inputs() const = 0;
  virtual const std::vector<TensorInfo>& outputs() const = 0;
  /// Runs the model without gradients.
  /// Params:  inputs – CPU tensors in the order of inputs()
  /// Returns: new tensors in the order of outputs()
  /// Threads: calls may be concurrent; a back end may run them one after another
  /// Throws:  c10::ValueError if the number, dtype or sizes of inputs differ from inputs()
  virtual std::vector<at::Tensor> run(std::span<const at::Tensor> inputs) = 0;
  /// Starts run() and returns at once. The inputs must not be written before the result is there. By default, run() is
  /// called on another thread; back ends with asynchronous calls of their own use them.
  virtual std::future<std::vector<at::Tensor>> run_async(std::vector<at::Tensor> inputs);
};

/// A library that runs models. There is one object for each library; backends() lists them.
class InferenceBackend {
 public:
  virtual ~InferenceBackend() = default;

  /// Such as "onnxruntime".
  virtual std::string name() const = 0;
  /// Returns an empty text if the back end can be used, and otherwise what is missing and what to install.
  virtual std::string missing() const = 0;
  /// The version of the library, or an empty text if it is missing.
  virtual std::string version() const = 0;
  /// Returns whether the back end reads this kind of file. The answer does not depend on missing(). False if there is no
  /// such file. Reads at most the beginning of the file and the directory of a zip archive.
  virtual bool accepts(const std::string& path) const = 0;
  /// Loads a model.
  /// Throws: c10::ValueError if the file is missing, damaged or of another kind, or if an option is invalid.
  ///         c10::NotImplementedError with missing() if the library is absent
  virtual std::unique_ptr<InferenceModel> load(const std::string& path, const LoadOptions& options = {}) const = 0;
};

/// All back ends, in the order in which they are tried.
const std::vector<const InferenceBackend*>& backends();

/// Returns the back end with this name.
/// Throws: c10::ValueError with the known names
const InferenceBackend& backend(const std::string& name);

}  // namespace bellows::runtime
