#include "bellows/compile/cost_model.h"

#include "bellows/graph/passes/pass.h"

namespace bellows::compile_detail {
namespace {

// Measured on programs of 8 to 2,000 small operators (bench/compile/bench_ordinary.cpp).
constexpr double per_call_us = 12, per_instruction_us = 1.5, bytes_per_us = 10'000;

}  // namespace

ProgramWork ProgramWork::of(const graph::Program& program) {
  return {program.instructions.size(), graph::bytes_moved(program)};
}

double expected_gain_us(const ProgramWork& recorded, const ProgramWork& compiled) {
  const double fewer_bytes = static_cast<double>(recorded.bytes) - static_cast<double>(compiled.bytes);
  return fewer_bytes / bytes_per_us - per_instruction_us * static_cast<double>(compiled.instructions) - per_call_us;
}

}  // namespace bellows::compile_detail
