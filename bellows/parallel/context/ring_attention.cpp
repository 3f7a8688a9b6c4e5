#include "bellows/parallel/context/ring_attention.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/custom_function.h>

#include <optional>
#include <utility>

#include "bellows/comm/point_to_point.h"
#include "bellows/parallel/context/attention_block.h"

namespace bellows::parallel {

namespace {

using RingContext = torch::autograd::AutogradContext;
using torch::autograd::variable_list;

constexpr int key_tag = 1, gradient_tag = 2;

/// A message to the next rank of the ring, and one of the same size from the previous rank.
class RingTransfer {
 public:
  RingTransfer(comm::Group group, int tag) : group_(std::move(group)), tag_(tag) {}

  void start(const at::Tensor& sent, const at::Tensor& received) {
    const int size = group_.size(), rank = group_.rank();
    received_.emplace(comm::receive_async(received, (rank + size - 1) % size, group_, tag_));
    sent_.emplace(comm::send_async(sent, (rank + 1) % size, group_, tag_));
  }
  void finish() {
    received_->wait();
    sent_->wait();
  }

 private:
  comm::Group group_;
  int tag_;
  std::optional<comm::Pending> sent_, received_;
};

/// Keys and values, or their gradients, in one buffer, so that they travel in one message.
class KeyValueBuffer {
 public:
  KeyValueBuffer(const RingInput& input, at::ScalarType dtype)
      : keys_(input.key.sizes().vec()),
        values_(input.value.sizes().vec()),
        flat_(at::empty({input.key.numel() + input.value.numel()}, input.key.options().dtype(dtype))) {}

  const at::Tensor& flat() const { return flat_; }
  at::Tensor key() const { return flat_.narrow(0, 0, c10::multiply_integers(keys_)).view(keys_); }
  at::Tensor value() const {
    const int64_t begin = c10::multiply_integers(keys_);
    return flat_.narrow(0, begin, flat_.numel() - begin).view(values_);
  }

 private:
  std::vector<int64_t> keys_, values_;
  at::Tensor flat_;
};

/// The keys and values that this rank holds on their way around the ring. The next ones arrive while this rank
/// computes.
class KeyValueRing {
 public:
  KeyValueRing(const RingInput& input, const RingOptions& options)
      : ranks_(options.layout.ranks),
        rank_(ranks_ == 1 ? 0 : options.group.rank()),
        transfer_(options.group, key_tag),
        key_(input.key),
        value_(input.value) {
    if (ranks_ == 1) return;
    held_.emplace(input, input.key.scalar_type());
    next_.emplace(input, input.key.scalar_type());
    held_->key().copy_(key_);
    held_->value().copy_(value_);
  }

  int rank() const { return rank_; }
  int source() const { return (rank_ - step_ + ranks_) % ranks_; }
  int step() const { return step_; }
  at::Tensor key() const { return held_ ? held_->key() : key_; }
  at::Tensor value() const { return held_ ? held_->value() : value_; }

  /// Calls `compute` with the keys of each rank, first with those of this rank.
  template <class Compute>
  void run(const Compute& compute) {
    for (step_ = 0; step_ < ranks_; ++step_) {
      const bool more = step_ + 1 < ranks_;
      if (more) transfer_.start(held_->flat(), next_->flat());
      compute();
      if (!more) break;
      transfer_.finish();
      std::swap(held_, next_);
    }
  }

 private:
  int ranks_, rank_, step_ = 0;
  RingTransfer transfer_;
  at::Tensor key_, value_;
  std::optional<KeyValueBuffer> held_, next_;  ///< empty if there is one rank
};

/// The part of the attention that this rank computes with the keys that it holds.
struct HeldBlock {
  VisibleBlock range;
  AttentionBlock block;
};

std::optional<HeldBlock> held_block(const RingInput& input, const RingOptions& options, const KeyValueRing& ring) {
  const int64_t queries = input.query.size(2), keys = input.key.size(2);
  const auto range = visible_block(options.layout, ring.rank(), ring.source(), options.causal, queries, keys);
  if (!range) return std::nullopt;
  const auto part = [&](const at::Tensor& x) {
    if (!x.defined()) return x;
    return part_of_rank(x, 3, ring.source(), options.layout).narrow(3, 0, range->keys);
  };
  const auto of_keys = [&](const at::Tensor& x) { return x.narrow(2, 0, range->keys); };
  const auto of_queries = [&](const at::Tensor& x) { return x.narrow(2, range->query_begin, range->queries); };
  return HeldBlock{*range,
                   {.query = of_queries(input.query),
                    .key = of_keys(ring.key()),
                    .value = of_keys(ring.value()),
                    .mask = part(input.mask),
                    .kept = input.kept.defined() ? of_queries(part(input.kept)) : at::Tensor(),
                    .dropout = options.dropout,
                    .scale = options.scale,
                    .causal = range->causal}};
}

AttentionOutput ring_forward(const RingInput& input, const RingOptions& options) {
  AttentionOutput all;
  KeyValueRing ring(input, options);
  ring.run([&] {
    const auto held = held_block(input, options, ring);
    if (!held) return;
    const AttentionOutput part = attend(held->block);
    if (ring.step() > 0) return merge(all, part, held->range.query_begin);
    // The block of this rank's own keys covers all of its queries.
    all = {part.out.to(merge_dtype(input.query)), part.log_weight};
  });
  return all;
}

/// The gradients of keys and values. Those of this rank's keys stay here. Those of the other ranks' keys travel with
/// the keys, and each rank adds its part.
class KeyValueGradients {
 public:
  KeyValueGradients(const RingInput& input, const RingOptions& options)
      : transfer_(options.group, gradient_tag), own_(input, merge_dtype(input.key)) {
    own_.flat().zero_();
    if (options.layout.ranks == 1) return;
    held_.emplace(input, merge_dtype(input.key));
    held_->flat().zero_();
    next_.emplace(input, merge_dtype(input.key));
  }

  /// Params: step – the number of the step in the ring; part – undefined tensors if the block is empty
  void add(int step, const AttentionGradients& part, const VisibleBlock& range) {
    if (step > 1) receive();
    const KeyValueBuffer& sum = step == 0 ? own_ : *held_;
    if (part.key.defined()) {
      sum.key().narrow(2, 0, range.keys).add_(part.key);
      sum.value().narrow(2, 0, range.keys).add_(part.value);
    }
    if (step > 0) transfer_.start(held_->flat(), next_->flat());
  }

  const KeyValueBuffer& finish() {
    if (!held_) return own_;
    receive();
    own_.flat().add_(held_->flat());
    return own_;
  }

 private:
  void receive() {
    transfer_.finish();
    std::swap(held_, next_);
  }

  RingTransfer transfer_;
  KeyValueBuffer own_;
  std::optional<KeyValueBuffer> held_, next_;
};

AttentionGradients ring_backward(const RingInput& input, const RingOptions& options, const at::Tensor& gradient,
                                 const at::Tensor& out, const at::Tensor& log_weight) {
  at::Tensor query_sum = at::zeros(input.query.sizes(), input.query.options().dtype(merge_dtype(input.query)));
  KeyValueGradients sums(input, options);
  KeyValueRing ring(input, options);
  ring.run([&] {
    const auto held = held_block(input, options, ring);
    if (!held) return sums.add(ring.step(), {}, {});
    const VisibleBlock& range = held->range;
    const auto of_queries = [&](const at::Tensor& x) { return x.narrow(2, range.query_begin, range.queries); };
    const AttentionGradients part =
        attend_backward(held->block, of_queries(gradient), of_queries(out), of_queries(log_weight));
    of_queries(query_sum).add_(part.query);
    sums.add(ring.step(), part, range);
  });
  const KeyValueBuffer& key_sums = sums.finish();
  return {query_sum.to(input.query.scalar_type()), key_sums.key().to(input.key.scalar_type()),
          key_sums.value().to(input.value.scalar_type())};
}

struct SavedRingOptions final : torch::CustomClassHolder {
  explicit SavedRingOptions(RingOptions saved) : options(std::move(saved)) {}
  RingOptions options;
};

struct RingFunction : torch::autograd::Function<RingFunction> {
  /// Params: masks – its mask and kept elements are used. They may be undefined, which inputs of functions may not
  static at::Tensor forward(RingContext* context, const at::Tensor& query, const at::Tensor& key,
                            const at::Tensor& value, const RingInput& masks, const RingOptions& options) {
    const AttentionOutput all = ring_forward({query, key, value, masks.mask, masks.kept}, options);
    const at::Tensor out = all.out.to(query.scalar_type());
    context->saved_data["options"] = c10::IValue::make_capsule(c10::make_intrusive<SavedRingOptions>(options));
    context->save_for_backward({query, key, value, masks.mask, masks.kept, out, finite_log_weight(all.log_weight)});
    return out;
  }

  static variable_list backward(RingContext* context, const variable_list& gradients) {
    TORCH_CHECK(!c10::GradMode::is_enabled(), "context_attention does not support second derivatives.");
    const variable_list saved = context->get_saved_variables();
    const auto capsule = context->saved_data["options"].toCapsule();
    const RingInput input{saved[0], saved[1], saved[2], saved[3], saved[4]};
    const AttentionGradients sums = ring_backward(input, static_cast<const SavedRingOptions&>(*capsule).options,
                                                  with_dense_rows(gradients[0]), saved[5], saved[6]);
    return {sums.query, sums.key, sums.value, {}, {}};
  }
};

}  // namespace

at::Tensor ring_attention(const RingInput& input, const RingOptions& options) {
  return RingFunction::apply(input.query, input.key, input.value, input, options);
}

}  // namespace bellows::parallel
