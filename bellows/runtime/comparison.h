#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "bellows/core/stats.h"
#include "bellows/runtime/backend.h"

namespace bellows::runtime {

/// The largest difference between the results of two models.
struct Difference {
  /// Largest absolute difference, divided by the largest magnitude of the expected output. Infinity if sizes differ or if
  /// only one of two values is a number.
  double relative = 0;
  int64_t output = -1;           ///< position of the output with this difference; -1 if all outputs are equal
  std::vector<int64_t> place{};  ///< position of the element; empty if the sizes differ
  double expected = 0, actual = 0;
  std::string text{};  ///< one sentence; "" if all outputs are equal
};

/// Compares outputs. Dtypes may differ.
Difference difference_of(const std::vector<at::Tensor>& expected, const std::vector<at::Tensor>& actual);

/// A model in a back end.
struct ComparedModel {
  std::string file{}, backend{}, version{};
  /// The reason why the model was not measured: a missing library, or an error of the back end.
  std::string problem{};
  bool absent = false;  ///< the library is missing
  double load_s = 0;    ///< time of load()
  double first_s = 0;   ///< time of the first call, which may compile or prepare kernels

  // Times of a call in seconds, after the warm-up.
  std::vector<double> calls{};    ///< of each call
  std::vector<double> windows{};  ///< mean times of alternating windows of calls
  double median_s = 0, p90_s = 0;
  double spread = 0;        ///< half the distance between the quartiles, divided by the median
  double throughput = 0;    ///< samples per second
  RatioInterval speedup{};  ///< over the first model that was measured

  bool reference = false;  ///< the other models are compared with the results of this one
  std::optional<Difference> difference{};
  bool agrees = true;  ///< false: the difference is larger than the tolerance
};

struct ComparisonOptions {
  std::vector<std::string> backends{};  ///< names; empty: all
  LoadOptions load{};            ///< each back end gets those options that it supports; `providers` is for ONNX Runtime
  double seconds = 3;            ///< measured time of each model
  double tolerance = 1e-3;       ///< see Difference::relative
  std::function<bool()> stop{};  ///< the measurement ends early if this returns true
  std::function<void(const std::string& text)> progress{};  ///< called with the current step
  /// Creates the inputs, after all models are loaded.
  /// Params: described – the inputs of the first model that states dtypes and sizes; or the names of the first model
  std::function<std::vector<at::Tensor>(const std::vector<TensorInfo>& described)> inputs{};
};

/// Loads each file in each back end that reads it, checks that the results agree, and measures the times of calls. The
/// models run in turns, so that changes of the machine's speed affect all models equally. The results of the back end
/// "libtorch" are the expected ones, or those of the first model without it.
/// Returns: one element for each file and each back end that reads it
/// Throws:  c10::ValueError if a name of a back end is unknown, if no back end reads a file, or if a file is missing or
///          damaged in all back ends
std::vector<ComparedModel> compare_models(const std::vector<std::string>& files, const ComparisonOptions& options);

}  // namespace bellows::runtime
