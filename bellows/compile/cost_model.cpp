#include "bellows/compile/cost_model.h"

#include "bellows/graph/passes/pass.h"

namespace bellows::compile_detail {
namespace {

// Measured on programs of 8 to 2,000 small operators (bench/compile/bench_ordinary.cpp).
constexpr double per_call_us = 12, per_operator_us = 0.3, per_instruction_us = 1.5;
/// Small operands stay in the cache, where fusing operators saves less time.
constexpr size_t cached_bytes = 256 << 10;
constexpr double bytes_per_us = 10'000, cached_bytes_per_us = 40'000;

double time_us(size_t bytes) {
  return static_cast<double>(bytes) / (bytes > cached_bytes ? bytes_per_us : cached_bytes_per_us);
}

/// The bytes that libtorch's convolutions move to copy images into oneDNN's memory order and back. A compiled program
/// keeps images in this order.
size_t hidden_copies(const graph::Instruction& one) {
  const bool convolves =
      one.op && (one.op->name == "aten::convolution" || one.op->name == "aten::convolution_backward");
  return convolves ? graph::bytes_moved(one) : 0;
}

}  // namespace

ProgramWork ProgramWork::of(const graph::Program& program) {
  ProgramWork work{.instructions = program.instructions.size()};
  for (const graph::Instruction& one : program.instructions)
    work.traffic_us += time_us(graph::bytes_moved(one) + hidden_copies(one));
  return work;
}

double expected_gain_us(const ProgramWork& recorded, const ProgramWork& compiled) {
  return recorded.traffic_us - compiled.traffic_us - per_operator_us * static_cast<double>(recorded.instructions) -
         per_instruction_us * static_cast<double>(compiled.instructions) - per_call_us;
}

}  // namespace bellows::compile_detail
