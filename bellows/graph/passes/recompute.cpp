#include "bellows/graph/passes/recompute.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <memory>

#include "bellows/graph/execution/memory_plan.h"
#include "bellows/graph/passes/recompute_planner.h"

namespace bellows::graph {
namespace {

/// Represents a kernel that will be generated. It is never run.
class FutureKernel final : public Kernel {
 public:
  std::string name() const override { return "a generated kernel"; }
  void run(std::span<void* const>, std::span<void* const>, std::span<const c10::IValue>, void*) const override {
    TORCH_INTERNAL_ASSERT(false, "recompute: a program that was made to plan memory is run.");
  }
};

/// Runs the later passes on plans, to find out how much memory they need.
class PeakMeter {
 public:
  PeakMeter(const RecomputeOptions& recompute, const PassOptions& options)
      : passes_(recompute.after), options_(options) {
    const auto runs_later = [&](const std::string& name) {
      return std::any_of(passes_.begin(), passes_.end(), [&](const Pass& pass) { return pass.name == name; });
    };
    std::erase_if(options_.without, [&](const std::string& name) { return !runs_later(name); });
    options_.check = false;
    const auto& without = options.without;
    fuses_ = runs_later("loops") && std::find(without.begin(), without.end(), "loops") == without.end();
  }

  bool fuses() const { return fuses_; }

  size_t peak_of(Program program) const {
    run_passes(program, options_, passes_);
    return physical_peak(program, [&](const Instruction& one) {
      if (!fuses_) return false;
      if (one.group) return true;
      const auto expression = options_.can_generate ? expression_of(one) : std::nullopt;
      return expression && options_.can_generate(*expression);
    });
  }

 private:
  const std::vector<Pass>& passes_;
  PassOptions options_;
  bool fuses_ = false;
};

std::string megabytes(size_t bytes) {
  char text[32];
  std::snprintf(text, sizeof text, "%.1f MB", static_cast<double>(bytes) / 1e6);
  return text;
}

bool is_within(size_t peak, size_t original, double budget) {
  return static_cast<double>(peak) <= budget * static_cast<double>(original);
}

int64_t recompute_program(Program& program, const PassOptions& options, const RecomputeOptions& recompute) {
  const PeakMeter meter(recompute, options);
  RecomputeReport report{.budget = recompute.budget, .peak_before = meter.peak_of(program)};
  report.peak_after = report.peak_before;
  detail::RecomputePlanner planner(program, meter.fuses());
  while (!report.is_met()) {
    auto plan = planner.next();
    if (!plan) break;
    const size_t peak = meter.peak_of(plan->program);
    if (peak >= report.peak_after) continue;
    report.peak_after = peak;
    report.repeated = plan->repeated;
    report.work = plan->work / planner.original_work();
    program = std::move(plan->program);
  }
  if (recompute.report) recompute.report(report);
  return report.repeated;
}

}  // namespace

bool RecomputeReport::is_met() const {
  return is_within(peak_after, peak_before, budget);
}

std::string RecomputeReport::to_text() const {
  if (peak_before == 0) return "";
  char text[160];
  std::snprintf(text, sizeof text, "recomputation: %lld instructions run again (%.1f %% of the estimated work), peak ",
                static_cast<long long>(repeated), 100 * work);
  char share[64];
  std::snprintf(share, sizeof share, " (%.2f of the original, budget %.2f)\n",
                peak_before ? static_cast<double>(peak_after) / static_cast<double>(peak_before) : 1.0, budget);
  return text + megabytes(peak_before) + " -> " + megabytes(peak_after) + share;
}

Pass recompute_pass(RecomputeOptions options) {
  TORCH_CHECK_VALUE(options.budget > 0 && options.budget <= 1, "recompute_pass: expected a budget in (0, 1], got ",
                    options.budget, ". Use 1 for no recomputation.");
  return {.name = "recompute",
          .what = "computes values again instead of keeping them, to stay within a memory budget",
          .tolerance = 0,
          .run = [recompute = std::move(options)](Program& program, const PassOptions& given) {
            return recompute_program(program, given, recompute);
          }};
}

size_t physical_peak(const Program& program, const std::function<bool(const Instruction&)>& is_generated) {
  static const auto future = std::make_shared<const FutureKernel>();
  Program planned = program;
  for (Instruction& one : planned.instructions) {
    if (!one.kernel && is_generated && is_generated(one)) one.kernel = future;
  }
  const MemoryPlan plan = MemoryPlan::of(planned);
  std::vector<int64_t> change(planned.instructions.size() + 1, 0);
  for (const auto& block : plan.blocks) {
    if (block.home != MemoryPlan::Home::allocated || block.last == MemoryPlan::end) continue;
    change[block.first] += static_cast<int64_t>(block.nbytes);
    change[block.last + 1] -= static_cast<int64_t>(block.nbytes);
  }
  int64_t now = 0, most = 0;
  for (const int64_t by : change) most = std::max(most, now += by);
  return plan.arena_bytes + static_cast<size_t>(most);
}

}  // namespace bellows::graph
