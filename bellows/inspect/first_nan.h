#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "bellows/core/model.h"

namespace bellows::inspect {

/// An argument or result of the operator that produced the first bad value.
struct TensorSummary {
  std::string name;         ///< name in the schema: "self", "weight"
  std::string description;  ///< "float [32, 64] cpu", or "2.5" for a number
  bool has_nan = false;
  bool has_inf = false;
};

/// The first operator that produced a NaN or an infinity from good inputs.
struct NanFinding {
  std::string op;  ///< "aten::log"
  bool nan = false;
  bool inf = false;
  bool backward = false;
  std::string node;    ///< the running autograd node in backward: "LogBackward0"
  std::string module;  ///< "layer1.0.conv1", "after layer1.0.bn1" for an operator without parameters, "" if unknown
  std::string site;    ///< call_site(), or "" if unknown
  int64_t step = 0;    ///< value of set_step()
  std::vector<TensorSummary> inputs, outputs;
  std::string to_string() const;
};

/// Finds the first operator, forward or backward, whose result contains a NaN although no input does, or an infinity
/// although no input contains an infinity or a NaN. Numbers count as inputs: an operator that fills a mask with -inf on
/// purpose is not reported, but the softmax that turns a row of them into NaN is. After the first finding it stops
/// checking until reset().
///
/// On the CPU, results are read as memory, and other taps do not see this. On an accelerator, each operator waits for
/// the device. Sparse and quantized tensors, uninitialized allocations and integers are not checked.
/// Cost:    one pass over each result, and over tensors that in-place operators overwrite
/// Threads: observes the thread that creates it, and autograd's workers for that thread; create and destroy it on the
///          same thread
/// Ref:     torch.autograd.detect_anomaly, which checks only backward
class FirstNan {
 public:
  struct Options {
    bool infinities = true;  ///< false: NaN only
    /// True: the next operator call after the faulty operator throws c10::Error with the finding. The faulty operator
    /// itself has already run, because a result cannot be rejected. This costs more, because each operator passes
    /// through an additional dispatcher layer.
    bool throw_error = false;
  };
  explicit FirstNan(const Options& options);
  FirstNan() : FirstNan(Options{}) {}
  /// Also reports modules.
  explicit FirstNan(const Model& model, const Options& options);
  explicit FirstNan(const Model& model) : FirstNan(model, Options{}) {}
  ~FirstNan();
  FirstNan(const FirstNan&) = delete;
  FirstNan& operator=(const FirstNan&) = delete;

  std::optional<NanFinding> finding() const;
  /// Throws: c10::Error with the finding if there is one
  void check() const;
  /// Sets the number that a finding reports as its step.
  void set_step(int64_t step);
  void reset();

 private:
  struct State;
  std::shared_ptr<State> state_;
  struct Guards;
  std::unique_ptr<Guards> guards_;
};

}  // namespace bellows::inspect
