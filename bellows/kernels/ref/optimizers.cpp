#include "bellows/kernels/ref/optimizers.h"

#include <vector>

#include "bellows/kernels/dynamic_map.h"
#include "bellows/kernels/optimizer_formula.h"
#include "bellows/kernels/ref/element.h"

namespace bellows::kernels::ref {

namespace {

template <class T, class Rule>
void step_one(const StepTensor<Rule>& t, StepTypes types) {
  const Formula<T, Rule> formula(t.rule);
  const int states = t.rule.states();
  for (int64_t i = 0; i < t.size; ++i) {
    T p = t.master ? load<T>(t.master, Type::f32, i) : load<T>(t.param, types.param, i);
    T s[3] = {};
    for (int k = 0; k < states; ++k) s[k] = load<T>(t.state[k], types.state, i);
    formula(p, load<T>(t.grad, types.grad, i), s);
    for (int k = 0; k < states; ++k) store(t.state[k], types.state, i, s[k]);
    store_param(t, types, i, p);
  }
}

// --- low-bit state

/// Location of the code of element i of a block: one byte, or the lower or upper half of a byte.
struct CodePlace {
  uint8_t* byte;
  int shift, mask;
  int get() const { return *byte >> shift & mask; }
  void set(int code) const { *byte = static_cast<uint8_t>((*byte & ~(mask << shift)) | code << shift); }
};
CodePlace code_place(State8, void* codes, int64_t block, int64_t i) {
  return {static_cast<uint8_t*>(codes) + block * State8::block_bytes + i, 0, 255};
}
CodePlace code_place(State4, void* codes, int64_t block, int64_t i) {
  return {static_cast<uint8_t*>(codes) + block * State4::block_bytes + i % 64, i < 64 ? 0 : 4, 15};
}

template <class Width, class Rule>
void step_block(const StepTensor<Rule>& t, StepTypes types, int64_t block) {
  const Formula<float, Rule> formula(t.rule);
  const int states = t.rule.states();
  const int64_t first = block * Width::block, n = std::min(Width::block, t.size - first);
  std::vector<std::array<float, 2>> values(static_cast<size_t>(n));
  std::array<float, 2> largest = {};
  for (int64_t i = 0; i < n; ++i) {
    float s[3] = {Width::first.decode(code_place(Width(), t.state[0], block, i).get(), t.scale[0][block])};
    if (states == 2) s[1] = Width::second.decode(code_place(Width(), t.state[1], block, i).get(), t.scale[1][block]);
    auto& kept = values[static_cast<size_t>(i)] = {s[0], s[1]};
    float p = t.master ? load<float>(t.master, Type::f32, first + i) : load<float>(t.param, types.param, first + i);
    const float old = p;
    formula(p, load<float>(t.grad, types.grad, first + i), s);
    const bool finite = std::isfinite(s[0] + s[1]);
    if (finite) kept = {s[0], s[1]};
    store_param(t, types, first + i, finite ? p : old);
    for (size_t k = 0; k < 2; ++k) largest[k] = std::max(largest[k], std::abs(kept[k]));
  }
  for (int k = 0; k < states; ++k) {
    const float scale = t.scale[k][block] = usable_scale(largest[static_cast<size_t>(k)]);
    const float inverse = scale > 0 ? 1 / scale : 0;
    for (int64_t i = 0; i < n; ++i) {
      const float value = values[static_cast<size_t>(i)][static_cast<size_t>(k)] * inverse;
      code_place(Width(), t.state[k], block, i).set(k == 0 ? Width::first.encode(value) : Width::second.encode(value));
    }
  }
}

template <class Width, class Rule>
void step_blocks(const StepTensor<Rule>& t, StepTypes types) {
  for (int64_t block = 0; block * Width::block < t.size; ++block) step_block<Width>(t, types, block);
}

template <class Rule>
void step_all(std::span<const StepTensor<Rule>> tensors, StepTypes types) {
  for (const StepTensor<Rule>& t : tensors) {
    if (types.low_bit == LowBit::int8) {
      step_blocks<State8>(t, types);
    } else if (types.low_bit == LowBit::int4) {
      step_blocks<State4>(t, types);
    } else if (types.param == Type::f64) {
      step_one<double>(t, types);
    } else {
      step_one<float>(t, types);
    }
  }
}

}  // namespace

void step(std::span<const StepTensor<SgdRule>> tensors, StepTypes types) {
  step_all(tensors, types);
}
void step(std::span<const StepTensor<AdamRule>> tensors, StepTypes types) {
  step_all(tensors, types);
}
void step(std::span<const StepTensor<RmspropRule>> tensors, StepTypes types) {
  step_all(tensors, types);
}
void step(std::span<const StepTensor<AdagradRule>> tensors, StepTypes types) {
  step_all(tensors, types);
}
void step(std::span<const StepTensor<LionRule>> tensors, StepTypes types) {
  step_all(tensors, types);
}

}  // namespace bellows::kernels::ref
