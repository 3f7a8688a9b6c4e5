// The steps of sharded optimizers, after and during backward.
#include <c10/core/GradMode.h>

#include <utility>

#include "bellows/comm/collectives.h"
#include "bellows/parallel/zero/zero_optimizer_impl.h"

namespace bellows::parallel {

at::Tensor ShardedOptimizer::step(LossClosure closure) {
  at::Tensor loss;
  if (closure) {
    const c10::AutoGradMode enable_grad(true);
    loss = closure();
  }
  const c10::NoGradGuard no_grad;
  // A step that fails must not leave its scale behind.
  const at::Tensor grad_scale = std::exchange(impl_->grad_scale, {}), found_inf = std::exchange(impl_->found_inf, {});
  if (impl_->updates) return loss;  // backward has updated the parameters
  copy_options_to_local();
  check_before_update();
  take_gradients();
  impl_->unfinished = true;
  if (impl_->sharded_parameters) impl_->sharded_parameters->release();
  if (impl_->bucket_steps) {
    impl_->bucket_steps->step(grad_scale, found_inf);
  } else {
    auto* const scaled = dynamic_cast<ScaledStep*>(impl_->local.get());
    if (scaled) scaled->set_grad_scale(grad_scale, found_inf);
    impl_->local->step();
  }
  drop_gradients();
  finish_update();
  bump_versions();
  return loss;
}

void ShardedOptimizer::check_before_update() const {
  TORCH_CHECK(!impl_->unfinished, "ShardedOptimizer: an earlier step ended with an error while the weights were ",
              "updated, so the ranks may hold different weights. End all ranks and resume from the last checkpoint.");
}

/// Gives all ranks the updated parameters.
void ShardedOptimizer::finish_update() {
  if (impl_->sharded_parameters) {
    impl_->sharded_parameters->exchange_parts();
    impl_->sharded_parameters->prefetch_first();
  } else {
    gather();
  }
  impl_->unfinished = false;
}

/// The shards of a bucket change during backward, but its parameters are complete again only at the end. No operator
/// reads them in between: all ranks have computed all gradients of the bucket.
class ShardedOptimizer::UpdatesInBackward final : public GradientShards::Updates {
 public:
  explicit UpdatesInBackward(ShardedOptimizer& optimizer) : optimizer_(optimizer), impl_(*optimizer.impl_) {}

  void begin() override {
    optimizer_.check_before_update();
    optimizer_.copy_options_to_local();
  }
  void update(size_t bucket) override {
    impl_.unfinished = true;
    impl_.bucket_steps->step_bucket(bucket);
    // Operators that saved the old values must throw, as they do after a change in place.
    for (const size_t place : impl_.layout.units[bucket].places)
      impl_.layout.places[place].parameter.unsafeGetTensorImpl()->bump_version();
  }
  void end() override {
    if (impl_.sharded_parameters) impl_.sharded_parameters->release();
    optimizer_.finish_update();
    optimizer_.check_owned_gradients();
  }

 private:
  ShardedOptimizer& optimizer_;
  Impl& impl_;
};

std::shared_ptr<void> ShardedOptimizer::step_in_backward() {
  TORCH_CHECK_VALUE(impl_->gradients, "step_in_backward: ZeRO-1 needs the gradients of DistributedDataParallel, which ",
                    "are complete only after backward. Set stage 2, which then stores the same on each rank and sends ",
                    "less, or stage 3.");
  if (!impl_->bucket_steps)
    impl_->bucket_steps = std::make_unique<BucketSteps>(*impl_->local, impl_->layout, nullptr, nullptr);
  auto updates = std::make_unique<UpdatesInBackward>(*this);
  impl_->gradients->start_updates(*updates);
  impl_->updates = std::move(updates);
  return {impl_.get(), [](void* impl) {
            Impl& own = *static_cast<Impl*>(impl);
            if (own.gradients) own.gradients->stop_updates();
            own.updates.reset();
          }};
}

std::shared_ptr<void> ShardedOptimizer::no_sync() const {
  GradientShards* const gradients = impl_->gradients.get();
  if (!gradients) return nullptr;
  gradients->start_keeping();
  return {gradients, [](void* kept) { static_cast<GradientShards*>(kept)->stop_keeping(); }};
}

/// Stages 2 and 3: only the gradients of sharded parameters are exchanged.
void ShardedOptimizer::check_owned_gradients() const {
  for (size_t i = 0; i < impl_->places.size(); ++i) {
    const at::Tensor& gradient = impl_->parameters[i].grad();
    TORCH_CHECK_VALUE(!gradient.defined() || impl_->places[i], "ShardedOptimizer::step: parameter ", i, " of shape ",
                      gradient.sizes(),
                      " has a gradient, but was frozen when the optimizer was sharded. Shard it again ",
                      "after unfreezing parameters.");
  }
}

void ShardedOptimizer::take_gradients() {
  if (impl_->gradients) {
    check_owned_gradients();
    // After the check, because it forgets the gradients, which a later step() may still use.
    const std::vector<bool> used = impl_->gradients->take_used();
    for (size_t i = 0; i < used.size(); ++i) {
      if (!used[i]) impl_->layout.places[i].piece.mutable_grad().reset();
    }
    return;
  }
  for (size_t i = 0; i < impl_->places.size(); ++i) {
    Place* const place = impl_->places[i];
    const at::Tensor& gradient = impl_->parameters[i].grad();
    if (!gradient.defined() || !place) continue;
    TORCH_CHECK_VALUE(gradient.layout() == at::kStrided, "ShardedOptimizer::step: parameter \"", place->name,
                      "\" has a sparse gradient, which cannot be sharded. Set sparse(false) in the embedding to get a "
                      "dense gradient, or use a separate optimizer for it.");
    if (place->count > 0) place->piece.mutable_grad() = place->run_of(gradient);
  }
}

void ShardedOptimizer::drop_gradients() {
  for (Place& place : impl_->layout.places) place.piece.mutable_grad().reset();
}

void ShardedOptimizer::gather() {
  const ShardGroups& groups = impl_->groups;
  std::vector<comm::Pending> pending;
  pending.reserve(impl_->layout.units.size());
  for (const Unit& unit : impl_->layout.units) {
    if (groups.divide_state) {
      comm::all_gather_in_place(unit.flat.narrow(0, unit.slice * groups.shard.rank(), unit.slice), *groups.replicas);
    }
    pending.push_back(comm::all_gather_in_place_async(unit.flat, groups.shard));
  }
  for (comm::Pending& one : pending) one.wait();
}

void ShardedOptimizer::bump_versions() {
  // Autograd and other users of version counters must notice the change.
  for (const Place& place : impl_->layout.places) place.parameter.unsafeGetTensorImpl()->bump_version();
}

}  // namespace bellows::parallel
