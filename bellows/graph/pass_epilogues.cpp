#include <algorithm>
#include <array>

#include "bellows/graph/passes_impl.h"
#include "bellows/graph/schedule_impl.h"

namespace bellows::graph::detail {
namespace {

constexpr std::array<std::string_view, 6> products = {"aten::addmm", "aten::mm",      "aten::linear",
                                                      "aten::bmm",   "aten::baddbmm", "aten::matmul"};
constexpr std::array<std::string_view, 5> convolutions = {"aten::convolution", "aten::conv1d", "aten::conv2d",
                                                          "aten::conv3d", "aten::_convolution"};
constexpr std::array<std::string_view, 8> activations = {"aten::relu",      "aten::gelu",      "aten::silu",
                                                         "aten::sigmoid",   "aten::tanh",      "aten::hardtanh",
                                                         "aten::hardswish", "aten::leaky_relu"};
/// The most operators behind a product: bias, sum, activation.
constexpr int longest_epilogue = 3;

template <size_t count>
bool is_among(const std::array<std::string_view, count>& names, const Instruction& one) {
  return one.op && !one.kernel && std::find(names.begin(), names.end(), one.op->name) != names.end();
}

bool is_norm(const Instruction& one) {
  return one.op &&
         (one.op->name.find("norm") != std::string::npos || one.op->name.find("softmax") != std::string::npos);
}

class EpilogueFuser {
 public:
  EpilogueFuser(const Program& program, const PassOptions& options)
      : program_(program), options_(options), schedule_(program), kinds_(program.instructions.size()) {}

  int64_t run(Program& result) {
    int64_t fired = 0;
    for (size_t i = 0; i < program_.instructions.size(); ++i) {
      const Instruction& one = program_.instructions[i];
      const bool product = is_among(products, one);
      if ((!product && !is_among(convolutions, one)) || one.results.size() != 1 || !one.updates.empty()) continue;
      const std::string kind = product ? "gemm_epilogue" : "conv_epilogue";
      if (!extend(static_cast<int>(i), kind)) continue;
      kinds_[schedule_.unit_of(static_cast<int>(i))] = kind;
      ++fired;
    }
    if (fired) result = schedule_.with_groups(program_, kinds_);
    return fired;
  }

 private:
  /// Takes in what reads the product, as long as it is one of the few that products end with.
  bool extend(int product, const std::string& kind) {
    int last = product;
    for (int length = 0; length < longest_epilogue; ++length) {
      const int next = follower(last);
      if (next < 0 || !schedule_.may_merge(schedule_.unit_of(product), next) || !can_end(product, next, kind)) break;
      schedule_.merge(schedule_.unit_of(product), next);
      last = next;
    }
    return last != product;
  }

  bool can_end(int product, int next, const std::string& kind) const {
    if (!options_.can_end) return true;
    std::vector<int> members = schedule_.members(schedule_.unit_of(product));
    members.insert(std::upper_bound(members.begin(), members.end(), next), next);
    return options_.can_end(group_of(program_, schedule_.uses(), members, kind));
  }

  int follower(int at) const {
    const Operand& made = program_.instructions[at].results[0].operands[0];
    const Uses& uses = schedule_.uses();
    if (made.value == no_value || !uses.is_free(made.value) || uses.readers[made.value].size() != 1) return -1;
    const int next = uses.readers[made.value][0];
    return follows(made, program_.instructions[next]) && schedule_.members(schedule_.unit_of(next)).size() == 1 ? next
                                                                                                                : -1;
  }

  /// Reads it whole and gives a result of the same places.
  bool follows(const Operand& made, const Instruction& next) const {
    if (!is_pure(next) || next.results.size() != 1 || next.results[0].list) return false;
    const Operand& result = next.results[0].operands[0];
    if (!same_numbers(made, result.geometry)) return false;
    if (is_among(activations, next)) return same_numbers(made, next.arguments[0].operands[0].geometry);
    return next.op->name == "aten::add.Tensor" && adds(made, next) && !feeds_norm(result.value);
  }

  /// A reshaped result has the same places in the same order.
  static bool same_numbers(const Operand& made, const Geometry& seen) {
    const Geometry& own = made.geometry;
    if (same_places(own, seen)) return true;
    return own.offset == seen.offset && own.dtype == seen.dtype && covers(own, own.reach()) &&
           covers(seen, own.reach()) && is_row_major(own) && is_row_major(seen);
  }

  static bool adds(const Operand& made, const Instruction& next) {
    const auto& alpha = next.arguments[2];
    const bool one =
        alpha.number < 0 && (alpha.constant.isInt() ? alpha.constant.toInt() == 1
                                                    : alpha.constant.isDouble() && alpha.constant.toDouble() == 1);
    const auto& a = next.arguments[0].operands[0];
    const auto& b = next.arguments[1].operands[0];
    return one && a.value != b.value && same_numbers(made, a.value == made.value ? a.geometry : b.geometry);
  }

  /// The loops of a normalization take the sum in: that saves more.
  bool feeds_norm(ValueId value) const {
    const auto& readers = schedule_.uses().readers[value];
    return std::any_of(readers.begin(), readers.end(),
                       [&](int reader) { return is_norm(program_.instructions[reader]); });
  }

  const Program& program_;
  const PassOptions& options_;
  Schedule schedule_;
  std::vector<std::string> kinds_;
};

}  // namespace

int64_t fuse_epilogues(Program& program, const PassOptions& options) {
  Program result;
  const int64_t fired = EpilogueFuser(program, options).run(result);
  if (fired) program = std::move(result);
  return fired;
}

}  // namespace bellows::graph::detail
