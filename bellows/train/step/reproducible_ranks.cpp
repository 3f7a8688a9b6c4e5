#include "bellows/train/step/reproducible_ranks.h"

#include <ATen/Parallel.h>
#include <c10/core/GradMode.h>
#include <c10/util/Exception.h>
#include <c10/util/irange.h>

#include <bit>
#include <utility>

#include "bellows/core/device.h"
#include "bellows/core/seed.h"
#include "bellows/train/step/update.h"

namespace bellows::train {

namespace {

/// Adds `other` to `sum`, where undefined tensors count as zero.
void add(std::vector<at::Tensor>& sum, const std::vector<at::Tensor>& other) {
  for (const auto i : c10::irange(sum.size())) {
    if (!sum[i].defined()) {
      sum[i] = other[i];
    } else if (other[i].defined()) {
      sum[i].add_(other[i]);
    }
  }
}

}  // namespace

ReproducibleRanks::ReproducibleRanks(Job& job, const Ranks& ranks)
    : job_(job),
      parts_(job.recipe.reproducible_ranks),
      ranks_(ranks.size()),
      rank_(ranks.rank()),
      sums_batches_(parts_ * job.recipe.gradient_accumulation_steps > ranks_),
      gradients_stay_(ranks_ > 1 && (job.recipe.data_parallel == "ddp" || job.recipe.data_parallel == "zero1")),
      threads_before_(at::get_num_threads()) {
  if (!on()) return;
  TORCH_CHECK_VALUE(std::has_single_bit(static_cast<uint64_t>(ranks_)) && parts_ % ranks_ == 0,
                    "train: reproducible_ranks = ", parts_,
                    " needs a number of ranks that is a power of two and divides ", parts_, ", got ", ranks_,
                    " ranks.");
  const data::LoaderOptions& options = job.train.loader_options();
  TORCH_CHECK_VALUE(options.batch_size % parts_ == 0, "train: reproducible_ranks = ", parts_,
                    " must divide the batch size, got a batch of ", options.batch_size, ".");
  TORCH_CHECK_VALUE(options.remainder == data::Remainder::uneven,
                    "train: reproducible_ranks needs training data whose last batch of an epoch may be smaller. Do not "
                    "drop or pad samples.");
  TORCH_CHECK_VALUE(ranks_ == 1 || parse_device(job.recipe.device).is_cpu(),
                    "train: reproducible_ranks works on several ranks only on the CPU, where Gloo adds gradients in a "
                    "fixed order, got device = ",
                    job.recipe.device, ".");
  job.train = job.train.batch(options.batch_size / batches_per_batch(), options.remainder)
                  .distributed(rank_, ranks_, /*global_batch=*/true, /*fill_in_order=*/true);
  at::set_num_threads(1);
}

ReproducibleRanks::~ReproducibleRanks() {
  if (on()) at::set_num_threads(threads_before_);
}

void ReproducibleRanks::begin_batch(int64_t step, int64_t number) {
  if (!on()) return;
  if (number == 0) sums_.clear();  // left over from a step that threw
  const int64_t part = number * ranks_ + rank_;
  const auto seed = static_cast<uint64_t>(job_.recipe.seed);
  seed_everything(mix_seed(seed, static_cast<uint64_t>(step), static_cast<uint64_t>(part)));
  kept_buffers_.clear();
  if (part == 0) return;
  for (const at::Tensor& buffer : job_.model.buffers()) kept_buffers_.push_back(buffer.clone());
}

void ReproducibleRanks::end_batch() {
  if (!on()) return;
  const c10::NoGradGuard no_grad;
  const std::vector<at::Tensor> buffers = job_.model.buffers();
  for (const auto i : c10::irange(kept_buffers_.size())) buffers[i].copy_(kept_buffers_[i]);
  if (!sums_batches_) return;
  Sum sum{.level = 0, .gradients = {}};
  for (const at::Tensor& parameter : parameters_of(job_.optimizers)) {
    at::Tensor& gradient = parameter.mutable_grad();
    sum.gradients.push_back(gradients_stay_ && gradient.defined() ? gradient.clone() : gradient);
    gradient.reset();
  }
  while (!sums_.empty() && sums_.back().level == sum.level) {
    add(sums_.back().gradients, sum.gradients);
    sum = {sum.level + 1, std::move(sums_.back().gradients)};
    sums_.pop_back();
  }
  sums_.push_back(std::move(sum));
}

void ReproducibleRanks::end_step() {
  if (sums_.empty()) return;
  const c10::NoGradGuard no_grad;
  for (; sums_.size() > 1; sums_.pop_back()) add(sums_[sums_.size() - 2].gradients, sums_.back().gradients);
  const std::vector<at::Tensor> parameters = parameters_of(job_.optimizers);
  for (const auto i : c10::irange(parameters.size())) parameters[i].mutable_grad() = sums_[0].gradients[i];
  sums_.clear();
}

}  // namespace bellows::train
