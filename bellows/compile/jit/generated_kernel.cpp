#include "bellows/compile/jit/generated_kernel.h"
#include "bellows/kernels/parallel.h"

#include <c10/util/SmallVector.h>

#include <algorithm>

namespace bellows::compile_detail {
namespace {

/// Minimum work per thread. For less, waking other threads takes longer.
constexpr int64_t grain_bytes = 128 * 1024;

double number_of(const c10::IValue& value) {
  if (value.isDouble()) return value.toDouble();
  if (value.isInt()) return static_cast<double>(value.toInt());
  return value.isBool() ? value.toBool() : value.toScalar().toDouble();
}

}  // namespace

GeneratedKernel::GeneratedKernel(std::string name, const KernelCode& code, const Libraries& libraries)
    : name_(std::move(name)), scratch_bytes_(code.scratch_bytes) {
  functions_.reserve(code.functions.size());
  for (const auto& function : code.functions) {
    const auto& library = libraries.at(function.symbol);
    functions_.push_back({.library = library,
                          .call = reinterpret_cast<Call>(library->symbol(function.symbol)),
                          .units = function.units,
                          .grain = std::max<int64_t>(1, grain_bytes / std::max<int64_t>(function.unit_bytes, 1)),
                          .sizes = function.sizes,
                          .constants = function.constants});
  }
}

void GeneratedKernel::run(std::span<void* const> operands, std::span<void* const> results,
                          std::span<const c10::IValue> numbers, void* scratch) const {
  c10::SmallVector<double, 8> values;
  for (const c10::IValue& number : numbers) values.push_back(number_of(number));
  auto* const* const from = reinterpret_cast<char* const*>(operands.data());
  auto* const* const to = reinterpret_cast<char* const*>(results.data());
  auto* const between = static_cast<char*>(scratch);
  for (const Function& function : functions_) {
    if (function.units <= function.grain) {
      function.run(from, to, values.data(), between, 0, function.units);
      continue;
    }
    kernels::parallel_ranges(function.units, function.grain, [&](int64_t begin, int64_t end) {
      function.run(from, to, values.data(), between, begin, end);
    });
  }
}

}  // namespace bellows::compile_detail
