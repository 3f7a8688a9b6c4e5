#include "bellows/compile/cost_model.h"

#include "bellows/graph/passes/pass.h"

namespace bellows::compile_detail {
namespace {

// Measured on programs of 8 to 2,000 small operators (bench/compile/bench_ordinary.cpp).
constexpr double per_call_us = 12, per_instruction_us = 1.5, bytes_per_us = 10'000;

/// The bytes that libtorch's convolutions move to copy images into oneDNN's memory order and back. A compiled program
/// keeps images in this order.
size_t hidden_copies(const graph::Instruction& one) {
  const bool convolves =
      one.op && (one.op->name == "aten::convolution" || one.op->name == "aten::convolution_backward");
  return convolves ? graph::bytes_moved(one) : 0;
}

}  // namespace

ProgramWork ProgramWork::of(const graph::Program& program) {
  ProgramWork work{program.instructions.size(), graph::bytes_moved(program)};
  for (const graph::Instruction& one : program.instructions) work.bytes += hidden_copies(one);
  return work;
}

double expected_gain_us(const ProgramWork& recorded, const ProgramWork& compiled) {
  const double fewer_bytes = static_cast<double>(recorded.bytes) - static_cast<double>(compiled.bytes);
  return fewer_bytes / bytes_per_us - per_instruction_us * static_cast<double>(compiled.instructions) - per_call_us;
}

}  // namespace bellows::compile_detail
