#include "bellows/compile/jit/generated_kernel.h"
#include "bellows/kernels/parallel.h"

#include <c10/util/SmallVector.h>

#include <algorithm>

namespace bellows::compile_detail {
namespace {

/// Minimum work per thread. For less, waking other threads takes longer.
constexpr int64_t grain_bytes = 128 * 1024;

using Pointers = c10::SmallVector<char*, 32>;

/// Adds the offsets to the pointers. Returns the pointers themselves if there are no offsets.
char* const* moved(std::span<void* const> pointers, const std::vector<int64_t>& offsets, Pointers& buffer) {
  if (offsets.empty()) return reinterpret_cast<char* const*>(pointers.data());
  for (void* const pointer : pointers) buffer.push_back(static_cast<char*>(pointer));
  for (size_t i = 0; i < offsets.size(); ++i) buffer[i] += offsets[i];
  return buffer.data();
}

double number_of(const c10::IValue& value) {
  if (value.isDouble()) return value.toDouble();
  if (value.isInt()) return static_cast<double>(value.toInt());
  return value.isBool() ? value.toBool() : value.toScalar().toDouble();
}

}  // namespace

GeneratedKernel::GeneratedKernel(std::string name, const KernelCode& code, const Libraries& libraries)
    : name_(std::move(name)),
      operand_offsets_(code.operand_offsets),
      result_offsets_(code.result_offsets),
      scratch_bytes_(code.scratch_bytes) {
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
  Pointers operand_buffer, result_buffer;
  char* const* const from = moved(operands, operand_offsets_, operand_buffer);
  char* const* const to = moved(results, result_offsets_, result_buffer);
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
