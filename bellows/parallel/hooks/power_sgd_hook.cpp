#include <ATen/CPUGeneratorImpl.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/bmm.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/linalg_qr.h>
#include <ATen/ops/norm.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/where.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <random>

#include "bellows/comm/collectives.h"
#include "bellows/parallel/flat_tensors.h"
#include "bellows/parallel/hooks/hook_state.h"
#include "bellows/parallel/hooks/hooks.h"

// M [b, n, m] are b gradients of one shape; M ≈ P Qᵀ with P [b, n, r] and Q [b, m, r].
namespace bellows::parallel {

namespace {

using Shapes = std::vector<std::vector<int64_t>>;

/// Gradients that are compressed in one matmul.
struct PowerBatch {
  std::vector<size_t> members;  ///< indices of the bucket's gradients
  at::Tensor m;                 ///< a view of a single gradient, or a copy
  int64_t rank = 0;
};

struct PowerSplit {
  std::vector<PowerBatch> compressed;
  std::vector<at::Tensor> exact;
};

bool shrinks_enough(const at::Tensor& gradient, const PowerSgdOptions& options) {
  if (gradient.dim() < 2 || gradient.numel() == 0) return false;
  const int64_t rows = gradient.size(0), columns = gradient.numel() / rows;
  const int64_t thin = (rows + columns) * std::min({rows, columns, options.rank});
  return static_cast<double>(thin) * options.min_compression_rate < static_cast<double>(gradient.numel());
}

/// Params: members – gradients with the same number of rows and of columns
PowerBatch power_batch(const GradientBucket& bucket, std::vector<size_t> members, int64_t rank) {
  const at::Tensor& first = bucket.gradients[members[0]];
  const int64_t rows = first.size(0), columns = first.numel() / rows;
  std::vector<at::Tensor> matrices;
  matrices.reserve(members.size());
  for (const size_t i : members) matrices.push_back(bucket.gradients[i].reshape({rows, columns}));
  at::Tensor m = matrices.size() == 1 ? matrices[0].unsqueeze(0) : at::stack(matrices);
  return {.members = std::move(members), .m = std::move(m), .rank = std::min({rows, columns, rank})};
}

PowerSplit split_gradients(const GradientBucket& bucket, const PowerSgdOptions& options) {
  PowerSplit split;
  // In order of first occurrence, like PyTorch, because projections are drawn in it
  std::vector<std::vector<size_t>> by_shape;
  for (size_t i = 0; i < bucket.gradients.size(); ++i) {
    const at::Tensor& gradient = bucket.gradients[i];
    if (!shrinks_enough(gradient, options)) {
      split.exact.push_back(gradient);
      continue;
    }
    const auto same = std::find_if(by_shape.begin(), by_shape.end(), [&](const auto& members) {
      const at::Tensor& first = bucket.gradients[members[0]];
      return first.size(0) == gradient.size(0) && first.numel() == gradient.numel();
    });
    (same == by_shape.end() ? by_shape.emplace_back() : *same).push_back(i);
  }
  for (const auto& members : by_shape) {
    if (options.batch_same_shapes) {
      split.compressed.push_back(power_batch(bucket, members, options.rank));
    } else {
      for (const size_t i : members) split.compressed.push_back(power_batch(bucket, {i}, options.rank));
    }
  }
  return split;
}

Shapes q_shapes(const std::vector<PowerBatch>& batches) {
  Shapes shapes;
  shapes.reserve(batches.size());
  for (const PowerBatch& batch : batches) shapes.push_back({batch.m.size(0), batch.m.size(2), batch.rank});
  return shapes;
}

/// Concatenates `count` tensors made by `make` into one row, to exchange them together.
template <class Make>
at::Tensor one_row(size_t count, Make make) {
  std::vector<at::Tensor> parts;
  parts.reserve(count);
  for (size_t i = 0; i < count; ++i) parts.push_back(make(i).flatten());
  return at::cat(parts);
}

/// The inverse of one_row(): views of the row.
std::vector<at::Tensor> views_of(const at::Tensor& row, const Shapes& shapes) {
  std::vector<at::Tensor> views;
  views.reserve(shapes.size());
  int64_t begin = 0;
  for (const auto& shape : shapes) {
    const int64_t numel = c10::multiply_integers(shape);
    views.push_back(row.narrow(0, begin, numel).view(shape));
    begin += numel;
  }
  return views;
}

at::Tensor column_norms(const at::Tensor& matrices) {
  return at::norm(matrices, 2, at::IntArrayRef{1}, /*keepdim=*/true);
}

/// Makes the columns of each matrix orthonormal, in place. NaN stays NaN.
void orthogonalize(const at::Tensor& matrices, double epsilon) {
  const int64_t columns = matrices.size(2);
  if (columns > 2 && matrices.element_size() >= 4) {
    matrices.copy_(std::get<0>(at::linalg_qr(matrices)));
    return;
  }
  for (int64_t i = 0; i < columns; ++i) {  // Gram-Schmidt: faster for few columns, and the only option for 16 bits
    at::Tensor column = matrices.narrow(2, i, 1), rest = matrices.narrow(2, i + 1, columns - i - 1);
    const at::Tensor norm = column_norms(column).add_(epsilon);
    column.div_(norm.masked_fill(norm.eq(0), 1));  // zeros stay zeros
    if (rest.numel() > 0) rest.sub_((column * rest).sum({1}, /*keepdim=*/true) * column);
  }
}

class PowerSgd final : public GradientHook {
 public:
  explicit PowerSgd(const PowerSgdOptions& options)
      : options_(options), seeds_(options.seed), feedback_(options.error_feedback) {}

  at::Tensor mean(const GradientBucket& bucket, const comm::Group& group) override {
    feedback_.numbers().see(bucket);
    const bool early = step_ < options_.start_step;
    if (bucket.last) ++step_;
    if (nothing_to_exchange(bucket, group)) return bucket.flat;
    return early ? exact_mean(bucket.flat, group) : compressed_mean(bucket, group);
  }

  std::string describe() const override { return c10::str("PowerSGD, rank ", options_.rank); }

  NamedTensors state() const override {
    NamedTensors state = feedback_.state();
    projections_.append_to(state);
    state.emplace_back("step", at::tensor(step_));
    state.emplace_back("draws", at::tensor(draws_));
    return state;
  }
  void restore(const NamedTensors& state) override;

 private:
  at::Tensor compressed_mean(const GradientBucket& bucket, const comm::Group& group);
  void compress(const std::vector<PowerBatch>& batches, const GradientBucket& bucket, const comm::Group& group);
  at::Tensor first_projections(const std::vector<PowerBatch>& batches, const GradientBucket& bucket);
  void keep_projections(const std::vector<at::Tensor>& q, const std::vector<PowerBatch>& batches,
                        const GradientBucket& bucket);
  at::Tensor random_projections(const std::vector<PowerBatch>& batches);

  PowerSgdOptions options_;
  std::mt19937 seeds_;
  int64_t step_ = 0, draws_ = 0;  ///< number of steps; count of numbers drawn from seeds_
  ErrorFeedback feedback_;
  ParameterMemory projections_{"projection"};
};

at::Tensor PowerSgd::compressed_mean(const GradientBucket& bucket, const comm::Group& group) {
  at::Tensor flat = bucket.flat;
  const at::Tensor values = feedback_.added_to(flat, bucket).clone();
  flat.copy_(values);
  PowerSplit split = split_gradients(bucket, options_);
  comm::Pending exact = comm::all_reduce_async(
      split.exact.empty() ? at::empty({0}, flat.options()) : flattened(split.exact), group, comm::Reduce::mean);
  if (!split.compressed.empty()) compress(split.compressed, bucket, group);
  const at::Tensor errors = values - flat;  // exactly averaged gradients have no error; they are replaced below
  copy_flat(exact.wait(), split.exact);
  feedback_.keep(errors, flat, bucket);
  return flat;
}

void PowerSgd::compress(const std::vector<PowerBatch>& batches, const GradientBucket& bucket,
                        const comm::Group& group) {
  const Shapes shapes_of_q = q_shapes(batches);
  Shapes shapes_of_p = shapes_of_q;
  for (size_t i = 0; i < batches.size(); ++i) shapes_of_p[i][1] = batches[i].m.size(1);

  auto q = views_of(first_projections(batches, bucket), shapes_of_q);
  for (const at::Tensor& part : q) orthogonalize(part, options_.epsilon);
  const at::Tensor p_row = one_row(batches.size(), [&](size_t i) { return at::bmm(batches[i].m, q[i]); });
  const auto p = views_of(comm::all_reduce(p_row, group), shapes_of_p);
  for (const at::Tensor& part : p) orthogonalize(part, options_.epsilon);
  const at::Tensor q_row =
      one_row(batches.size(), [&](size_t i) { return at::bmm(batches[i].m.transpose(1, 2), p[i]); });
  q = views_of(comm::all_reduce(q_row, group, comm::Reduce::mean), shapes_of_q);
  if (options_.warm_start) keep_projections(q, batches, bucket);

  for (size_t i = 0; i < batches.size(); ++i) {
    at::Tensor m = batches[i].m;
    at::bmm_out(m, p[i], q[i].transpose(1, 2));
    if (m.is_alias_of(bucket.flat)) continue;
    for (size_t k = 0; k < batches[i].members.size(); ++k) {
      at::Tensor gradient = bucket.gradients[batches[i].members[k]];
      gradient.copy_(m[static_cast<int64_t>(k)].view(gradient.sizes()));
    }
  }
}

/// Projections for this step, not yet orthogonal: those of the last step. Columns that are zero (all are at first) or
/// not finite are drawn again, because they would never change.
at::Tensor PowerSgd::first_projections(const std::vector<PowerBatch>& batches, const GradientBucket& bucket) {
  const Shapes shapes = q_shapes(batches);
  const at::Tensor last = one_row(batches.size(), [&](size_t i) {
    const PowerBatch& batch = batches[i];
    return one_row(batch.members.size(), [&](size_t k) {
      const int64_t number = feedback_.numbers().of(bucket.parameters[batch.members[k]]);
      return projections_.get(number, batch.m.size(2) * batch.rank, batch.m.options());
    });
  });
  const auto q = views_of(last, shapes);
  const at::Tensor alive = one_row(q.size(), [&](size_t i) {
    const at::Tensor norms = column_norms(q[i]);
    return at::isfinite(norms).logical_and_(norms.gt(0)).expand_as(q[i]);
  });
  return alive.all().item<bool>() ? last : at::where(alive, last, random_projections(batches));
}

void PowerSgd::keep_projections(const std::vector<at::Tensor>& q, const std::vector<PowerBatch>& batches,
                                const GradientBucket& bucket) {
  for (size_t i = 0; i < batches.size(); ++i) {
    const auto& members = batches[i].members;
    for (size_t k = 0; k < members.size(); ++k) {
      projections_.set(feedback_.numbers().of(bucket.parameters[members[k]]), q[i][static_cast<int64_t>(k)].flatten());
    }
  }
}

at::Tensor PowerSgd::random_projections(const std::vector<PowerBatch>& batches) {
  constexpr uint32_t below = 1'000'000'000, mask = (1u << 30) - 1;  // same as numpy.random.RandomState.randint
  uint32_t seed = below;
  for (; seed >= below; ++draws_) seed = static_cast<uint32_t>(seeds_()) & mask;
  const at::Generator generator = at::detail::createCPUGenerator(seed);
  const Shapes shapes = q_shapes(batches);
  const at::Tensor& like = batches[0].m;
  return one_row(shapes.size(),
                 [&](size_t i) { return at::randn(shapes[i], generator, at::device(at::kCPU).dtype(like.dtype())); })
      .to(like.device());
}

void PowerSgd::restore(const NamedTensors& state) {
  PowerSgd restored = *this;
  restored.step_ = restored.draws_ = 0;
  restored.projections_ = ParameterMemory("projection");
  NamedTensors errors;
  for (const auto& [name, values] : state) {
    if (name == "step" || name == "draws") {
      TORCH_CHECK_VALUE(values.defined() && values.numel() == 1, describe(), ": expected \"", name,
                        "\" to be a number.");
      (name == "step" ? restored.step_ : restored.draws_) = values.item<int64_t>();
    } else if (!options_.warm_start || !restored.projections_.take(name, values)) {
      errors.emplace_back(name, values);
    }
  }
  restored.feedback_.restore(errors, *this);
  restored.seeds_.seed(options_.seed);
  restored.seeds_.discard(static_cast<unsigned long long>(restored.draws_));
  *this = std::move(restored);
}

}  // namespace

std::shared_ptr<GradientHook> power_sgd_hook(const PowerSgdOptions& options) {
  TORCH_CHECK_VALUE(options.rank >= 1, "power_sgd_hook: expected a rank of at least 1, got ", options.rank, ".");
  TORCH_CHECK_VALUE(options.start_step >= 0, "power_sgd_hook: expected a start_step of at least 0, got ",
                    options.start_step, ".");
  TORCH_CHECK_VALUE(options.min_compression_rate > 0, "power_sgd_hook: expected a min_compression_rate above 0, got ",
                    options.min_compression_rate, ".");
  TORCH_CHECK_VALUE(options.epsilon >= 0, "power_sgd_hook: expected an epsilon of at least 0, got ", options.epsilon,
                    ".");
  return std::make_shared<PowerSgd>(options);
}

}  // namespace bellows::parallel
