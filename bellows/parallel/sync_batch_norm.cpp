#include "bellows/parallel/sync_batch_norm.h"

#include <ATen/ops/addcmul.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/full.h>
#include <ATen/ops/native_batch_norm.h>
#include <ATen/ops/native_batch_norm_backward.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/var_mean.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/nn/modules/batchnorm.h>

#include <optional>
#include <vector>

#include "bellows/comm/collectives.h"
#include "bellows/tap/batch_norm.h"

namespace bellows::parallel {

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

at::ScalarType sum_type(const at::Tensor& x) {
  return x.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
}

/// The dims over which the statistics of a channel are computed.
std::vector<int64_t> sample_dims(const at::Tensor& x) {
  std::vector<int64_t> dims = {0};
  for (int64_t dim = 2; dim < x.dim(); ++dim) dims.push_back(dim);
  return dims;
}

/// Reshapes [C] to [1, C, 1, …] and casts it to the dtype of the sums.
at::Tensor along_channels(const at::Tensor& values, const at::Tensor& x) {
  std::vector<int64_t> sizes(static_cast<size_t>(x.dim()), 1);
  sizes[1] = values.numel();
  return values.to(sum_type(x)).view(sizes);
}

/// Statistics over the samples of all ranks, in double: each [C], `count` [1].
struct Statistics {
  at::Tensor mean, var, count;
};

/// Combines the ranks' means and sums of squared deviations. Unlike sums of squares, they do not suffer from
/// cancellation.
Statistics statistics_of(const at::Tensor& x, const comm::Group& group) {
  const int64_t channels = x.size(1), count = channels > 0 ? x.numel() / channels : 0;
  at::Tensor mean = at::zeros({channels}, x.options().dtype(at::kDouble)), squares = mean;
  if (count > 0) {
    const auto [own_var, own_mean] = at::var_mean(x.to(sum_type(x)), sample_dims(x), /*correction=*/0);
    mean = own_mean.to(at::kDouble);
    squares = own_var.to(at::kDouble) * count;
  }
  const at::Tensor own = at::cat({mean, squares, at::full({1}, count, mean.options())});
  const at::Tensor all = comm::all_gather(own, group);
  const at::Tensor means = all.narrow(1, 0, channels), counts = all.narrow(1, 2 * channels, 1);
  Statistics result;
  result.count = counts.sum(0);
  result.mean = (means * counts).sum(0) / result.count;
  const at::Tensor deviation = means - result.mean;
  result.var = (all.narrow(1, channels, channels) + counts * deviation * deviation).sum(0) / result.count;
  return result;
}

void update_running(const tap::BatchNormCall& call, const Statistics& statistics) {
  const auto blend = [&](const at::Tensor& running, const at::Tensor& now) {
    if (running.defined()) running.mul_(1 - call.momentum).add_(now.to(running.scalar_type()), call.momentum);
  };
  blend(call.running_mean, statistics.mean);
  blend(call.running_var, statistics.var * (statistics.count / (statistics.count - 1)));
}

/// Stores a group in the saved data of an autograd node.
struct SavedGroup final : torch::CustomClassHolder {
  explicit SavedGroup(comm::Group saved) : group(std::move(saved)) {}
  comm::Group group;
};

/// Computes dx for y = w (x - mean) / σ + b, where mean and σ depend on x: a dy + b x + c with coefficients per
/// channel.
/// Params: mean_dy, mean_dy_xhat – over the samples of all ranks
at::Tensor input_gradient(const at::Tensor& dy, const at::Tensor& x, const at::Tensor& weight, const at::Tensor& mean,
                          const at::Tensor& rstd, const at::Tensor& mean_dy, const at::Tensor& mean_dy_xhat) {
  const at::Tensor a = weight * rstd, b = -a * rstd * mean_dy_xhat, c = -a * mean_dy - b * mean;
  at::Tensor dx = at::addcmul(along_channels(c, x), x, along_channels(b, x));
  return dx.addcmul_(dy, along_channels(a, x)).to(x.scalar_type());
}

struct SyncNorm : torch::autograd::Function<SyncNorm> {
  /// Takes optional tensors, because autograd queries the device of plain ones even if they are undefined.
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, const std::optional<at::Tensor>& weight,
                            const std::optional<at::Tensor>& bias, const tap::BatchNormCall& call,
                            const comm::Group& group) {
    const Statistics statistics = statistics_of(x, group);
    update_running(call, statistics);
    const at::ScalarType type = sum_type(x);
    const auto as_type = [&](const std::optional<at::Tensor>& t) { return t ? t->to(type) : at::Tensor(); };
    const at::Tensor mean = statistics.mean.to(type), var = statistics.var.to(type), w = as_type(weight);
    context->save_for_backward({x, weight.value_or(at::Tensor()), mean, var, statistics.count});
    context->saved_data["eps"] = call.eps;
    context->saved_data["has_bias"] = bias.has_value();
    context->saved_data["group"] = c10::IValue::make_capsule(c10::make_intrusive<SavedGroup>(group));
    // The evaluation kernel normalizes with given statistics.
    return std::get<0>(at::native_batch_norm(x, w, as_type(bias), mean, var, /*training=*/false, 0, call.eps));
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    TORCH_CHECK(!c10::GradMode::is_enabled(), "Synchronized batch normalization does not support second derivatives.");
    const variable_list saved = context->get_saved_variables();
    const at::Tensor &x = saved[0], &weight = saved[1], &mean = saved[2], &var = saved[3], &dy = gradients[0];
    const double eps = context->saved_data["eps"].toDouble();
    const at::Tensor w = weight.defined() ? weight.to(mean.scalar_type()) : at::ones_like(mean);
    at::Tensor dweight = at::zeros_like(mean), dbias = dweight;
    if (x.numel() > 0) {
      std::tie(std::ignore, dweight, dbias) = at::native_batch_norm_backward(
          dy.contiguous(x.suggest_memory_format()), x, w, mean, var, {}, {}, /*train=*/false, eps, {false, true, true});
    }
    const auto group = context->saved_data["group"].toCapsule();
    const at::Tensor means =
        comm::all_reduce(at::cat({dbias, dweight}).to(at::kDouble), static_cast<const SavedGroup&>(*group).group) /
        saved[4];
    const int64_t channels = mean.numel();
    variable_list result(5);
    if (context->needs_input_grad(0)) {
      result[0] =
          input_gradient(dy, x, w, mean, (var + eps).rsqrt(), means.narrow(0, 0, channels).to(mean.scalar_type()),
                         means.narrow(0, channels, channels).to(mean.scalar_type()));
    }
    if (weight.defined()) result[1] = dweight;
    if (context->saved_data["has_bias"].toBool()) result[2] = dbias;
    return result;
  }
};

/// Returns the running mean or the weight, by which a layer is identified; undefined for other kinds of layers.
template <class Layer>
std::optional<at::Tensor> key_as(const torch::nn::Module& module) {
  const auto* layer = module.as<Layer>();
  if (!layer) return std::nullopt;
  return layer->running_mean.defined() ? layer->running_mean : layer->weight;
}

std::optional<at::Tensor> key_of(const torch::nn::Module& module) {
  if (auto key = key_as<torch::nn::BatchNorm1dImpl>(module)) return key;
  if (auto key = key_as<torch::nn::BatchNorm2dImpl>(module)) return key;
  return key_as<torch::nn::BatchNorm3dImpl>(module);
}

void convert(const at::Tensor& key, const std::string& name, const comm::Group& group) {
  TORCH_CHECK_VALUE(key.defined(), "convert_sync_batch_norm: ", name,
                    " has neither weight nor running statistics, so it ",
                    "cannot be identified. Create it with affine(true) or track_running_stats(true).");
  tap::replace_batch_norm(key, [group](const tap::BatchNormCall& call) {
    const auto optional = [](const at::Tensor& t) { return t.defined() ? std::optional(t) : std::nullopt; };
    return SyncNorm::apply(call.input, optional(call.weight), optional(call.bias), call, group);
  });
}

}  // namespace

int convert_sync_batch_norm(const Model& model, const comm::Group& group) {
  int layers = 0;
  for (const auto& item : model.module()->named_modules()) {
    const auto key = key_of(*item.value());
    if (!key) continue;
    ++layers;
    if (group.size() > 1) convert(*key, item.key(), group);
  }
  return layers;
}

}  // namespace bellows::parallel
