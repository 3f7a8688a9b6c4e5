#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "bellows/core/model.h"

namespace bellows::inspect {

/// An argument or result of the operator that produced the first NaN or infinity.
struct TensorSummary {
  std::string name;         ///< name in the operator's schema, such as "self" or "weight"
  std::string description;  ///< for example "float [32, 64] cpu", or "2.5" for a number
  bool has_nan = false;
  bool has_inf = false;
};

/// The first operator that produced a NaN or an infinity from inputs without such values.
struct NanFinding {
  std::string op;  ///< for example "aten::log"
  bool nan = false;
  bool inf = false;
  bool backward = false;
  std::string node;  ///< the running autograd node if the operator ran in backward, such as "LogBackward0"
  /// For example "layer1.0.conv1", or "after layer1.0.bn1" for an operator without parameters. Empty if unknown.
  std::string module;
  std::string site;  ///< call_site(); empty if unknown
  int64_t step = 0;  ///< the step number from set_step()
  std::vector<TensorSummary> inputs, outputs;
  std::string to_string() const;
};

/// Finds the first operator in forward or backward that produces a NaN or an infinity from good inputs. A NaN is
/// reported only if no input contains a NaN. An infinity is reported only if no input contains an infinity or a NaN.
/// Scalar arguments also count as inputs. An operator that deliberately fills a mask with -inf is therefore not
/// reported. A softmax that turns a row of -inf into NaN is reported. After the first finding, checking stops until
/// reset() is called.
///
/// On the CPU, results are read directly from memory, so other taps do not see any additional operators. On an
/// accelerator, each operator waits for the device. Sparse and quantized tensors, uninitialized allocations and
/// integers are not checked.
/// Cost:    one pass over each result, and over tensors that in-place operators overwrite
/// Threads: observes the thread that creates the object, and autograd's workers for that thread. Create and destroy the
///          object on the same thread
/// Ref:     torch.autograd.detect_anomaly, which checks only backward
class FirstNan {
 public:
  struct Options {
    bool infinities = true;  ///< if false, only NaN is searched for
    /// If true, the next operator call after the faulty operator throws c10::Error with the finding. At this point, the
    /// faulty operator has already run. This option costs more time, because each operator passes through an additional
    /// dispatcher layer.
    bool throw_error = false;
  };
  explicit FirstNan(const Options& options);
  FirstNan() : FirstNan(Options{}) {}
  /// With a model, the finding also names the module.
  explicit FirstNan(const Model& model, const Options& options);
  explicit FirstNan(const Model& model) : FirstNan(model, Options{}) {}
  ~FirstNan();
  FirstNan(const FirstNan&) = delete;
  FirstNan& operator=(const FirstNan&) = delete;

  std::optional<NanFinding> finding() const;
  /// Throws: c10::Error with the finding, if there is one
  void check() const;
  /// Sets the step number that a finding reports.
  void set_step(int64_t step);
  void reset();

 private:
  struct State;
  std::shared_ptr<State> state_;
  struct Guards;
  std::unique_ptr<Guards> guards_;
};

}  // namespace bellows::inspect
