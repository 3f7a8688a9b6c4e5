#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "bellows/core/model.h"

namespace bellows::inspect {

/// One argument or result of the operator that made the first bad value.
struct TensorSummary {
  std::string name;         ///< the schema's: "self", "weight"
  std::string description;  ///< "float [32, 64] cpu", "2.5" for a number
  bool has_nan = false;
  bool has_inf = false;
};

/// The first operator that made a NaN or an infinity from good inputs.
struct NanFinding {
  std::string op;  ///< "aten::log"
  bool nan = false;
  bool inf = false;
  bool backward = false;
  std::string node;    ///< the autograd node in backward: "LogBackward0"
  std::string module;  ///< "layer1.0.conv1", "after layer1.0.bn1" for an operator without parameters, "" when unknown
  std::string site;    ///< call_site(), or "" where none is known
  int64_t step = 0;    ///< set_step()
  std::vector<TensorSummary> inputs, outputs;
  std::string to_string() const;
};

/// Watches for the first operator, forward or backward, whose result holds a NaN although no input does, or an
/// infinity although no input holds an infinity or a NaN. Numbers count as inputs: a mask filled with -inf on purpose
/// is not a finding, the softmax that makes NaN of a row of them is. After the first finding it stops looking, until
/// reset().
///
/// Results are read as memory (CPU) and nothing that it does is seen by other taps; on an accelerator each operator
/// waits for the device. Not looked at: sparse and quantized tensors, uninitialised allocations, integers.
/// Cost:    one pass over each result, and over what in-place operators overwrite
/// Threads: sees the thread that makes it and autograd's workers for it; make and destroy it on one thread
/// Ref:     torch.autograd.detect_anomaly, which sees backward only
class FirstNan {
 public:
  struct Options {
    bool infinities = true;  ///< false: NaN only
    /// True: the operator call after the one at fault throws c10::Error with the finding. The operator at fault has
    /// run by then: a result cannot be refused. Costs more: each operator passes through the dispatcher's top.
    bool throw_error = false;
  };
  explicit FirstNan(const Options& options);
  FirstNan() : FirstNan(Options{}) {}
  /// Names modules, too.
  explicit FirstNan(const Model& model, const Options& options);
  explicit FirstNan(const Model& model) : FirstNan(model, Options{}) {}
  ~FirstNan();
  FirstNan(const FirstNan&) = delete;
  FirstNan& operator=(const FirstNan&) = delete;

  std::optional<NanFinding> finding() const;
  /// Throws: c10::Error – with the finding, if there is one
  void check() const;
  /// The number that a finding will carry.
  void set_step(int64_t step);
  void reset();

 private:
  struct State;
  std::shared_ptr<State> state_;
  struct Guards;
  std::unique_ptr<Guards> guards_;
};

}  // namespace bellows::inspect
