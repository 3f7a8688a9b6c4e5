#include "bellows/inspect/determinism.h"

#include <ATen/Context.h>

#include <cstdlib>
#include <optional>
#include <vector>

#include "bellows/core/device.h"
#include "bellows/core/log.h"
#include "bellows/report/trace_writer.h"

namespace bellows::inspect {

namespace {

void hint_at_cublas_once() {
  static const bool hinted = [] {
    if (!at::globalContext().hasCUDA() || std::getenv("CUBLAS_WORKSPACE_CONFIG")) return false;
    log_warn(
        "deterministic mode: CUBLAS_WORKSPACE_CONFIG is not set. cuBLAS needs CUBLAS_WORKSPACE_CONFIG=:4096:8 in the "
        "environment before its first use.");
    return true;
  }();
  (void)hinted;
}

/// Time of `steps` steps in milliseconds. Waits for the device at the start and the end.
double timed_window(const std::function<void()>& step, int steps) {
  const auto accelerator = at::getAccelerator();
  const c10::Device device = accelerator && at::accelerator::deviceCount() > 0
                                 ? c10::Device(*accelerator, at::accelerator::getDeviceIndex())
                                 : c10::Device(c10::kCPU);
  synchronize(device);
  const double start = trace_now_us();
  for (int i = 0; i < steps; ++i) step();
  synchronize(device);
  return (trace_now_us() - start) / 1000;
}

}  // namespace

DeterministicGuard::DeterministicGuard(const DeterminismOptions& options) {
  at::Context& context = at::globalContext();
  saved_ = {context.deterministicAlgorithms(), context.deterministicAlgorithmsWarnOnly(), context.deterministicCuDNN(),
            context.benchmarkCuDNN(), context.deterministicFillUninitializedMemory()};
  context.setDeterministicAlgorithms(true, options.warn_only);
  context.setDeterministicCuDNN(true);
  context.setBenchmarkCuDNN(false);
  context.setDeterministicFillUninitializedMemory(options.fill_uninitialized_memory);
  hint_at_cublas_once();
}

DeterministicGuard::~DeterministicGuard() {
  at::Context& context = at::globalContext();
  context.setDeterministicAlgorithms(saved_.algorithms, saved_.warn_only);
  context.setDeterministicCuDNN(saved_.cudnn);
  context.setBenchmarkCuDNN(saved_.benchmark_cudnn);
  context.setDeterministicFillUninitializedMemory(saved_.fill);
}

RatioInterval measure_determinism_cost(const std::function<void()>& step, const DeterminismCostOptions& options) {
  TORCH_CHECK_VALUE(options.pairs >= 2 && options.steps_per_window >= 1,
                    "measure_determinism_cost: expected at least 2 pairs and 1 step per window, got ", options.pairs,
                    " and ", options.steps_per_window, ".");
  const auto window = [&](bool deterministic, int steps) {
    std::optional<DeterministicGuard> guard;
    if (deterministic) guard.emplace(options.mode);
    return timed_window(step, steps);
  };
  window(false, 1);
  window(true, 1);
  std::vector<double> off, on;
  for (int pair = 0; pair < options.pairs; ++pair) {
    off.push_back(window(false, options.steps_per_window));
    on.push_back(window(true, options.steps_per_window));
  }
  return paired_ratio(on, off);
}

}  // namespace bellows::inspect
