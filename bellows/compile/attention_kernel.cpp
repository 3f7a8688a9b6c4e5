#include "bellows/compile/attention_kernel.h"

#include <string>

#include "bellows/kernels/attention.h"

namespace bellows::compile_detail {
namespace {

using graph::Geometry;
using graph::Operand;
using kernels::Matrices;

/// Describes a tensor of 0 to 4 dims that is broadcast to `logical` sizes: [batch, …] or [outer batch, inner batch, …].
template <class T>
Matrices<const T> matrices_of(const Geometry& seen, const Geometry::Numbers& logical) {
  std::vector<int64_t> strides(logical.size(), 0);
  const size_t missing = logical.size() - seen.sizes.size();
  for (size_t dim = 0; dim < seen.sizes.size(); ++dim)
    strides[missing + dim] = seen.sizes[dim] == 1 ? 0 : seen.strides[dim];
  const size_t last = logical.size() - 1;
  Matrices<const T> made{.outer = strides[0], .row = strides[last - 1], .column = strides[last]};
  if (logical.size() == 4) {
    made.inner = strides[1];
    made.inner_size = logical[1];
  }
  if (seen.sizes.size() > 0 && seen.sizes.back() == 1 && logical[last] == 1) made.column = 1;
  return made;
}

/// Sets the pointers of arguments to the operands of a call, in order.
class CallPointers {
 public:
  explicit CallPointers(std::span<void* const> memory) : memory_(memory) {}

  template <class T>
  void set(const Operand& operand, Matrices<const T>& matrices) {
    if (operand.value != graph::no_value) matrices.data = next<T>(operand);
  }
  template <class T>
  T* next(const Operand& operand) {
    return operand.value == graph::no_value ? nullptr : static_cast<T*>(memory_[index_++]) + operand.geometry.offset;
  }

 private:
  std::span<void* const> memory_;
  size_t index_ = 0;
};

class AttentionKernel final : public graph::Kernel {
 public:
  explicit AttentionKernel(const FusedAttention& of) : of_(of) {
    const auto like = [](const Operand& one) { return matrices_of<float>(one.geometry, one.geometry.sizes); };
    shape_ = {.batch = of.batch, .rows = of.rows, .columns = of.columns, .scale = static_cast<float>(of.scale)};
    shape_.value = like(of.value);
    shape_.value_width = of.value.geometry.sizes[2];
    if (of.query.value != graph::no_value) {
      shape_.query = like(of.query);
      shape_.width = of.query.geometry.sizes[2];
    }
    if (of.key.value != graph::no_value) {
      shape_.key = like(of.key);
      shape_.width = of.key.geometry.sizes[1];
    }
    if (of.dropout.value != graph::no_value) shape_.dropout = like(of.dropout);
    if (of.gradient.value != graph::no_value) gradient_ = like(of.gradient);
    for (const FusedAttention::Mask& mask : of.masks) {
      if (mask.adds)
        masks_.push_back({.added = matrices_of<float>(mask.mask.geometry, mask.logical)});
      else
        masks_.push_back({.replaced = matrices_of<bool>(mask.mask.geometry, mask.logical),
                          .inverted = mask.inverted,
                          .value = mask.value});
    }
  }

  std::string name() const override {
    std::string name = of_.backward ? "attention backward" : "attention";
    if (!of_.masks.empty()) name += " masked";
    if (of_.dropout.value != graph::no_value) name += " dropout";
    return name;
  }

  void run(std::span<void* const> operands, std::span<void* const> results, std::span<const c10::IValue>,
           void*) const override {
    CallPointers from(operands), to(results);
    kernels::Attention shape = shape_;
    from.set(of_.query, shape.query);
    from.set(of_.key, shape.key);
    from.set(of_.value, shape.value);
    from.set(of_.dropout, shape.dropout);
    const float* const weights = of_.backward ? from.next<const float>(of_.weights) : nullptr;
    Matrices<const float> gradient = gradient_;
    from.set(of_.gradient, gradient);
    std::vector<kernels::AttentionMask> masks = masks_;
    for (size_t i = 0; i < masks.size(); ++i) {
      if (of_.masks[i].adds)
        from.set(of_.masks[i].mask, masks[i].added);
      else
        from.set(of_.masks[i].mask, masks[i].replaced);
      if (const float* value = from.next<const float>(of_.masks[i].replacement)) masks[i].value = *value;
    }
    if (of_.backward) {
      kernels::attention_backward({.of = shape,
                                   .masks = std::move(masks),
                                   .weights = weights,
                                   .gradient = gradient,
                                   .query_gradient = to.next<float>(of_.query_gradient),
                                   .key_gradient = to.next<float>(of_.key_gradient),
                                   .value_gradient = to.next<float>(of_.value_gradient)});
    } else {
      float* const stored = of_.stores_weights ? to.next<float>(of_.weights) : nullptr;
      kernels::attention_forward({.of = shape,
                                  .masks = std::move(masks),
                                  .empty_rows_are_zero = of_.empty_rows_are_zero,
                                  .weights = stored,
                                  .dropped = to.next<float>(of_.dropped),
                                  .result = to.next<float>(of_.result)});
    }
  }

 private:
  FusedAttention of_;
  kernels::Attention shape_;
  Matrices<const float> gradient_;
  std::vector<kernels::AttentionMask> masks_;
};

void add_existing(const Operand& one, std::vector<Operand>& to) {
  if (one.value != graph::no_value) to.push_back(one);
}

}  // namespace

std::vector<Operand> FusedAttention::operands() const {
  std::vector<Operand> all;
  for (const Operand* one : {&query, &key, &value, &dropout}) add_existing(*one, all);
  if (backward) add_existing(weights, all);
  add_existing(gradient, all);
  for (const Mask& mask : masks) {
    all.push_back(mask.mask);
    add_existing(mask.replacement, all);
  }
  return all;
}

std::vector<Operand> FusedAttention::results() const {
  std::vector<Operand> all;
  if (!backward && stores_weights) all.push_back(weights);
  for (const Operand* one : {&dropped, &query_gradient, &key_gradient, &value_gradient}) add_existing(*one, all);
  if (!backward) all.push_back(result);
  return all;
}

std::shared_ptr<const graph::Kernel> attention_kernel(const FusedAttention& attention) {
  return std::make_shared<AttentionKernel>(attention);
}

}  // namespace bellows::compile_detail
