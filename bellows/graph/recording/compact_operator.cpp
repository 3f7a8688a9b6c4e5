#include "bellows/graph/recording/compact_operator.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/util/hash.h>

#include <algorithm>
#include <bit>

namespace bellows::graph::detail {
namespace {

size_t hash_of(const Geometry& geometry) {
  size_t hash = geometry.keys.raw_repr();
  hash = c10::hash_combine(hash, static_cast<size_t>(geometry.offset));
  for (const int64_t size : geometry.sizes) hash = c10::hash_combine(hash, static_cast<size_t>(size));
  for (const int64_t stride : geometry.strides) hash = c10::hash_combine(hash, static_cast<size_t>(stride));
  return hash;
}

/// Equal constants have the same hash. Some kinds all have the same one.
size_t hash_of(const c10::IValue& constant) {
  if (constant.isInt()) return static_cast<size_t>(constant.toInt());
  if (constant.isDouble()) return std::bit_cast<uint64_t>(constant.toDouble());
  if (constant.isBool()) return constant.toBool() ? 2 : 1;
  if (!constant.isList()) return 0;
  size_t hash = 3;
  for (const c10::IValue& item : constant.toListRef()) hash = c10::hash_combine(hash, hash_of(item));
  return hash;
}

}  // namespace

const Geometry* ValuePool::geometry(const Geometry& geometry) {
  const size_t hash = hash_of(geometry);
  const auto [first, last] = known_geometries_.equal_range(hash);
  const auto found = std::find_if(first, last, [&](const auto& one) { return *one.second == geometry; });
  if (found != last) return found->second;
  const Geometry* const made = &geometries_.emplace_back(geometry);
  known_geometries_.emplace(hash, made);
  return made;
}

const c10::IValue* ValuePool::constant(const c10::IValue& constant) {
  const size_t hash = hash_of(constant);
  const auto [first, last] = known_constants_.equal_range(hash);
  const auto found = std::find_if(first, last, [&](const auto& one) { return same_constant(*one.second, constant); });
  if (found != last) return found->second;
  const c10::IValue* const made = &constants_.emplace_back(constant);
  known_constants_.emplace(hash, made);
  return made;
}

const Program::State* ValuePool::state(const Program::State& state) {
  const auto found = std::find(states_.begin(), states_.end(), state);
  return found != states_.end() ? &*found : &states_.emplace_back(state);
}

void ValuePool::clear() {
  known_geometries_.clear();
  known_constants_.clear();
  geometries_.clear();
  constants_.clear();
  states_.clear();
}

CompactOperator::CompactOperator(const RecordedOperator& recorded, ValuePool& pool)
    : op(&recorded.op()),
      when(recorded.when),
      view(recorded.view),
      buffers_after(recorded.buffers_after),
      state_(pool.state(recorded.state)) {
  for (const Instruction::Argument& argument : recorded.instruction.arguments) add_argument(argument, pool);
  items_.shrink_to_fit();
  add_results(recorded, pool);
}

void CompactOperator::add_argument(const Instruction::Argument& argument, ValuePool& pool) {
  const auto add_tensor = [&](const Operand& operand) {
    Item& item = items_.emplace_back();
    item.kind = Kind::tensor;
    item.buffer = operand.value;
    if (operand.value >= 0) item.geometry = pool.geometry(operand.geometry);
  };
  if (argument.kind == OperatorFacts::Kind::tensor) return add_tensor(argument.operands.at(0));
  Item& item = items_.emplace_back();
  if (argument.is_tensors()) {
    item.kind = Kind::list;
    item.buffer = static_cast<BufferId>(argument.operands.size());
    for (const Operand& operand : argument.operands) add_tensor(operand);
    return;
  }
  if (when != When::later) return;
  const bool is_number = argument.kind == OperatorFacts::Kind::number;
  const bool lifted = is_number && argument.number >= 0;
  lifts_numbers = lifts_numbers || lifted;
  item.kind = lifted ? Kind::lifted_number : is_number ? Kind::number : Kind::constant;
  item.constant = pool.constant(argument.constant);
}

void CompactOperator::add_results(const RecordedOperator& recorded, ValuePool& pool) {
  const RecordedOperator::Result* facts = recorded.results.data();
  for (const Instruction::Result& result : recorded.instruction.results) {
    for (const Operand& operand : result.operands) {
      results.push_back({.geometry = operand.value < 0 ? nullptr : pool.geometry(operand.geometry),
                         .nbytes = facts->nbytes,
                         .buffer = operand.value,
                         .argument = facts->argument,
                         .made = facts->made,
                         .counted = facts->counted,
                         .list = result.list});
      ++facts;
    }
  }
}

bool CompactOperator::matches(const Item& item, const c10::IValue& value) {
  switch (item.kind) {
    case Kind::constant:
    case Kind::number:
      return same_constant(*item.constant, value);
    case Kind::lifted_number:
      return same_number_kind(*item.constant, value);
    default:
      return !value.isTensor() && !value.isTensorList();
  }
}

bool CompactOperator::matches(const Arrival& arrival) const {
  if (!(*op->handle == arrival.op.handle()) || !(state_->dispatch_state == arrival.dispatch_state) ||
      (state_->float32_precision >= 0 && state_->float32_precision != float32_precision()))
    return false;
  const Item* item = items_.data();
  size_t at = 0;  // among the tensors
  for (const c10::IValue& value : arrival.arguments) {
    const Item& expected = *item++;
    if (expected.kind == Kind::tensor) {
      if (!value.isTensor() || !expected.is(arrival.buffers[at], *arrival.tensors[at])) return false;
      ++at;
    } else if (expected.kind == Kind::list) {
      if (!value.isList() || static_cast<size_t>(expected.buffer) != value.toListRef().size()) return false;
      for (BufferId i = 0; i < expected.buffer; ++i, ++at, ++item) {
        if (!item->is(arrival.buffers[at], *arrival.tensors[at])) return false;
      }
    } else if (!matches(expected, value)) {
      return false;
    }
  }
  return true;
}

}  // namespace bellows::graph::detail
