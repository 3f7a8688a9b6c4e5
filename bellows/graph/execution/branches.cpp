#include "bellows/graph/execution/branches.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <set>

#include "bellows/graph/execution/schedule.h"

namespace bellows::graph {
namespace {

// Costs in microseconds on one core, roughly measured. `least_gain` covers the cost of a parallel region and the
// slowdown of operators in it.
constexpr double dispatch = 0.8, bytes_per_us = 40e3, most_each = 60, least_gain = 18;
constexpr size_t longest_stretch = 256;

double cost_of(const Instruction& one) {
  return dispatch + static_cast<double>(bytes_moved(one)) / bytes_per_us;
}

/// Matrix multiplications use all threads themselves, except very small ones. Matrix-vector products use one.
bool is_product_of_matrices(const Instruction& one) {
  static const std::set<std::string_view> products{"aten::mm",     "aten::addmm",  "aten::bmm",   "aten::baddbmm",
                                                   "aten::linear", "aten::matmul", "aten::addbmm"};
  if (!products.contains(one.op->name)) return false;
  const auto& sizes = one.results[0].operands[0].geometry.sizes;
  return std::accumulate(sizes.begin(), sizes.end(), int64_t{1}, std::multiplies<>()) != sizes.back();
}

bool is_plain_type(const Operand& operand) {
  const auto type = operand.geometry.dtype.toScalarType();
  return operand.geometry.device.is_cpu() && type != c10::kBFloat16 && type != c10::kHalf;
}

/// Matrix multiplications in bf16 and half, convolutions and recurrent layers use oneDNN, which creates them for a
/// number of threads.
bool may_run_beside(const Instruction& one) {
  if (one.kernel) return one.kernel->may_run_beside();
  if (!one.op || !detail::is_pure(one) || one.op->name.rfind("aten::", 0) != 0) return false;
  bool plain = one.results.size() == 1 && !is_product_of_matrices(one);
  for (const char* const other : {"conv", "lstm", "gru", "rnn", "mkl"})
    plain = plain && one.op->name.find(other) == std::string::npos;
  detail::for_each_operand(one, [&](const Operand& operand) { plain = plain && is_plain_type(operand); });
  detail::for_each_result(one, [&](const Operand& operand) { plain = plain && is_plain_type(operand); });
  return plain;
}

/// The stretch from one instruction on: connected components of dependent instructions, and their costs.
class Stretch {
 public:
  Stretch(const detail::Schedule& schedule, int first) : schedule_(schedule), first_(first) {}

  void add(int at, double cost) {
    int root = at - first_;
    root_.push_back(root);
    cost_.push_back(cost);
    total_ += cost;
    for (const int need : schedule_.needs(at)) {
      if (need < first_) continue;
      const int other = root_of(need - first_);
      if (other == root) continue;
      root_[other] = root;
      cost_[root] += cost_[other];
      cost_[other] = 0;
    }
    most_ = std::max(most_, cost_[root]);
  }

  /// Returns: the microseconds that `threads` threads save
  double gain(int threads) const { return total_ - std::max(most_, total_ / threads); }
  size_t size() const { return root_.size(); }
  /// Returns: the branch of each instruction. The most expensive branch has number 0, so that it starts first.
  std::vector<int> branches() const {
    std::map<std::pair<double, int>, int> order;
    for (size_t i = 0; i < root_.size(); ++i) {
      if (root_[i] == static_cast<int>(i)) order[{-cost_[i], static_cast<int>(i)}] = 0;
    }
    int next = 0;
    std::vector<int> number(root_.size()), result;
    for (const auto& [key, unused] : order) number[key.second] = next++;
    result.reserve(root_.size());
    for (size_t i = 0; i < root_.size(); ++i) result.push_back(number[root_of(static_cast<int>(i))]);
    return result;
  }

 private:
  int root_of(int one) const {
    while (root_[one] != one) one = root_[one];
    return one;
  }

  const detail::Schedule& schedule_;
  const int first_;
  std::vector<int> root_;
  std::vector<double> cost_;  ///< for roots
  double total_ = 0, most_ = 0;
};

class Branching {
 public:
  Branching(Program& program, int threads) : program_(program), schedule_(program), threads_(threads) {
    costs_.reserve(program.instructions.size());
    for (const Instruction& one : program.instructions) {
      const double cost = may_run_beside(one) ? cost_of(one) : -1;
      costs_.push_back(cost <= most_each ? cost : -1);
    }
  }

  int64_t run() {
    const int count = static_cast<int>(program_.instructions.size());
    int64_t fired = 0;
    for (int first = 0; first < count; ++first) {
      const std::vector<int> branches = best_from(first);
      if (branches.empty()) continue;
      for (size_t i = 0; i < branches.size(); ++i) {
        program_.instructions[first + i].stretch = stretches_;
        program_.instructions[first + i].branch = branches[i];
      }
      fired += 1 + *std::max_element(branches.begin(), branches.end());
      ++stretches_;
      first += static_cast<int>(branches.size()) - 1;
    }
    return fired;
  }

 private:
  /// Operators of one stretch run in the same state.
  bool fits(int at, int& state) const {
    if (costs_[at] < 0) return false;
    const Instruction& one = program_.instructions[at];
    if (one.kernel) return true;
    if (state < 0) state = one.state;
    return one.state == state;
  }

  /// Returns: the branches of the stretch with the largest gain that begins here; empty if none is worthwhile
  std::vector<int> best_from(int first) const {
    Stretch stretch(schedule_, first);
    std::vector<int> best;
    double gain = least_gain;
    int state = -1;
    for (int at = first; at < static_cast<int>(costs_.size()) && stretch.size() < longest_stretch; ++at) {
      if (!fits(at, state)) break;
      stretch.add(at, costs_[at]);
      if (stretch.gain(threads_) < gain * 1.0001) continue;
      gain = stretch.gain(threads_);
      best = stretch.branches();
    }
    return best;
  }

  Program& program_;
  const detail::Schedule schedule_;
  const int threads_;
  std::vector<double> costs_;  ///< for each instruction; -1: runs alone
  int stretches_ = 0;
};

}  // namespace

Pass branches_pass() {
  return {.name = "branches",
          .what = "runs independent chains of small instructions at the same time",
          .tolerance = 1e-6,
          .run = [](Program& program, const PassOptions&) -> int64_t {
            const int threads = at::get_num_threads();
            return threads < 2 ? 0 : Branching(program, threads).run();
          }};
}

}  // namespace bellows::graph
