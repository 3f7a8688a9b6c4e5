#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "bellows/export/recordings.h"

namespace bellows::export_detail {

/// Returns the largest accepted difference of a result: 1e-3 of its largest value, 5 % in low precision, 0 for integers.
/// Params: scale         – the largest value
///         low_precision – accept the differences of 16-bit and 8-bit arithmetic also in fp32 results
double accepted_difference(c10::ScalarType dtype, double scale, bool low_precision);

/// Compares an exported model with eager code.
class Comparison {
 public:
  /// Runs the exported model.
  using Exported = std::function<std::vector<at::Tensor>(const std::vector<at::Tensor>&)>;

  /// Params: recordings, function – must outlive the object
  ///         caller             – function of the user, for messages
  ///         exported           – what is compared, such as "program", for messages
  ///         low_precision      – accept the differences of 16-bit and 8-bit arithmetic also in fp32 results
  Comparison(const Recordings& recordings, const Forward& function, std::string caller, std::string exported,
             bool low_precision)
      : recordings_(recordings),
        function_(function),
        caller_(std::move(caller)),
        exported_(std::move(exported)),
        low_precision_(low_precision) {}

  /// Compares the results for the inputs of one recording.
  /// Throws: c10::ValueError if a size or dtype differs, or if a value differs by more than 1e-3 of the result's largest
  ///         value (5 % in low precision, 0 for integers)
  void check_recorded(const Exported& run, size_t recording);
  /// Compares the results for a size of 1 of each dynamic axis, which is not recorded. Sizes that the function does not
  /// accept are skipped.
  /// Throws: like check_recorded()
  void check_small(const Exported& run);

  /// Compares the results for the inputs of all recordings and for sizes of 1, without inputs that are omitted.
  void check_all(const Exported& run);

  /// Returns the largest difference so far, relative to the largest value of the result.
  double difference() const { return difference_; }
  /// Returns the number of calls that were compared.
  int64_t calls() const { return calls_; }

 private:
  void check(const Exported& run, const std::vector<at::Tensor>& inputs, const std::vector<at::Tensor>& expected);
  void check_result(size_t index, const at::Tensor& expected, const at::Tensor& found,
                    const std::vector<at::Tensor>& inputs);

  const Recordings& recordings_;
  const Forward& function_;
  const std::string caller_, exported_;
  const bool low_precision_;
  double difference_ = 0;
  int64_t calls_ = 0;
};

/// Returns the inputs that a file has: those that are not omitted.
std::vector<at::Tensor> given_inputs(const std::vector<at::Tensor>& inputs);

/// Returns whether layers compute with integers.
bool is_quantized(const Recordings& recordings);

}  // namespace bellows::export_detail
