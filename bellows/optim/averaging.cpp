#include "bellows/optim/averaging.h"

#include <ATen/ops/_foreach_copy.h>
#include <ATen/ops/_foreach_lerp.h>
#include <ATen/ops/scalar_tensor.h>
#include <c10/core/GradMode.h>
#include <torch/nn/modules/batchnorm.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>

#include "bellows/optim/schedules/schedule_check.h"

namespace bellows::optim {

namespace {

std::vector<at::Tensor> values_of(const NamedTensors& tensors) {
  std::vector<at::Tensor> result;
  result.reserve(tensors.size());
  for (const auto& [name, tensor] : tensors) result.push_back(tensor.detach());
  return result;
}

/// Checks that names, shapes and order are equal.
void check_same(const char* where, const NamedTensors& expected, const NamedTensors& got) {
  TORCH_CHECK_VALUE(expected.size() == got.size(), where, ": expected ", expected.size(), " tensors, got ", got.size(),
                    ". The average belongs to another model.");
  for (size_t i = 0; i < expected.size(); ++i) {
    TORCH_CHECK_VALUE(expected[i].first == got[i].first && expected[i].second.sizes() == got[i].second.sizes(), where,
                      ": expected \"", expected[i].first, "\" of shape ", expected[i].second.sizes(), ", got \"",
                      got[i].first, "\" of shape ", got[i].second.sizes(), ". The average belongs to another model.");
  }
}

at::Tensor first_average(const at::Tensor& tensor, const AveragingOptions& options) {
  const bool narrow = tensor.scalar_type() == at::kHalf || tensor.scalar_type() == at::kBFloat16;
  const auto kept = tensor.options()
                        .dtype(narrow && !options.keep_dtype ? at::kFloat : tensor.scalar_type())
                        .device(options.device.value_or(tensor.device()));
  return tensor.detach().to(kept, /*non_blocking=*/false, /*copy=*/true);
}

/// While it lives, the batch norms of a model average over all batches.
class CumulativeBatchNorm {
 public:
  explicit CumulativeBatchNorm(const Model& model) : model_(model), training_(model.training()) {
    for (const auto& module : model.module()->modules()) {
      add(std::dynamic_pointer_cast<torch::nn::BatchNorm1dImpl>(module));
      add(std::dynamic_pointer_cast<torch::nn::BatchNorm2dImpl>(module));
      add(std::dynamic_pointer_cast<torch::nn::BatchNorm3dImpl>(module));
    }
  }
  ~CumulativeBatchNorm() {
    for (const auto& put_back : put_back_) put_back();
    if (started_) model_.train(training_);
  }
  CumulativeBatchNorm(const CumulativeBatchNorm&) = delete;
  CumulativeBatchNorm& operator=(const CumulativeBatchNorm&) = delete;

  bool empty() const { return start_.empty(); }
  void start() {
    started_ = true;
    model_.train();
    for (const auto& start : start_) start();
  }

 private:
  template <class Norm>
  void add(const std::shared_ptr<Norm>& norm) {
    if (!norm) return;
    start_.push_back([norm] {
      norm->reset_running_stats();
      norm->options.momentum(std::nullopt);
    });
    put_back_.push_back([norm, momentum = norm->options.momentum()] { norm->options.momentum(momentum); });
  }

  const Model& model_;
  bool training_, started_ = false;
  std::vector<std::function<void()>> start_, put_back_;
};

}  // namespace

Schedule swa_weight() {
  return [](int64_t n) { return 1 / static_cast<double>(n + 1); };
}

Schedule ema_weight(double decay, bool warmup) {
  check::number("ema_weight", "decay", decay, 0, 1);
  return [=](int64_t n) {
    const auto count = static_cast<double>(n);
    return 1 - (warmup ? std::min(decay, (1 + count) / (10 + count)) : decay);
  };
}

AveragedModel::AveragedModel(Model model, AveragingOptions options)
    : model_(std::move(model)), options_(std::move(options)) {
  check::callable("AveragedModel", options_.weight);
  const NamedTensors parameters = model_.named_parameters();
  TORCH_CHECK_VALUE(!parameters.empty(), "AveragedModel: model \"", model_.name(),
                    "\" has no parameters that can be averaged.");
  parameters_ = parameters.size();
  for (const auto& [name, tensor] : model_.state_dict()) averaged_.emplace_back(name, first_average(tensor, options_));
}

void AveragedModel::update_parameters() {
  const c10::NoGradGuard no_grad;
  const NamedTensors current = model_.state_dict();
  check_same("AveragedModel::update_parameters", averaged_, current);
  TORCH_CHECK(
      !incomplete_,
      "AveragedModel::update_parameters: an earlier change of the average failed halfway, so it is inconsistent. "
      "Load a saved average, or construct it again.");
  if (n_averaged_ == 0) {  // also repairs a copy that failed halfway
    at::_foreach_copy_(values_of(averaged_), values_of(current));
  } else {
    average_into(current);
  }
  ++n_averaged_;
}

void AveragedModel::average_into(const NamedTensors& current) {
  using Lists = std::pair<std::vector<at::Tensor>, std::vector<at::Tensor>>;
  const double weight = options_.weight(n_averaged_);
  check::number("AveragedModel::update_parameters", "a weight", weight, 0, 1);
  std::map<std::pair<std::string, at::ScalarType>, Lists> averaged;  // by device and dtype
  Lists copied, converted;
  for (size_t i = 0; i < averaged_.size(); ++i) {
    at::Tensor average = averaged_[i].second;
    const at::Tensor value = current[i].second.detach();
    const bool is_number = at::isFloatingType(value.scalar_type()) || at::isComplexType(value.scalar_type());
    if (!is_number || (i >= parameters_ && options_.buffers == AverageBuffers::copy)) {
      copied.first.push_back(average);
      copied.second.push_back(value);
    } else if (average.scalar_type() != value.scalar_type() || average.device() != value.device()) {
      converted.first.push_back(average);
      converted.second.push_back(value);
    } else {
      Lists& lists = averaged[{average.device().str(), average.scalar_type()}];
      lists.first.push_back(average);
      lists.second.push_back(value);
    }
  }
  incomplete_ = true;
  for (size_t i = 0; i < converted.first.size(); ++i)
    converted.first[i].lerp_(converted.second[i].to(converted.first[i].options()), weight);
  for (auto& [key, lists] : averaged) at::_foreach_lerp_(lists.first, lists.second, at::Scalar(weight));
  if (!copied.first.empty()) at::_foreach_copy_(copied.first, copied.second);
  incomplete_ = false;
}

void AveragedModel::copy_to(const Model& model) const {
  bellows::load_state_dict(model, averaged_);
}

NamedTensors AveragedModel::state_dict() const {
  NamedTensors result = {{"n_averaged", at::scalar_tensor(n_averaged_, at::dtype(at::kLong))}};
  for (const auto& [name, tensor] : averaged_) result.emplace_back("module." + name, tensor);
  return result;
}

void AveragedModel::load_state_dict(const NamedTensors& state) {
  constexpr const char* where = "AveragedModel::load_state_dict";
  std::map<std::string_view, const at::Tensor*> given;
  for (const auto& [name, tensor] : state) given[name] = &tensor;
  const auto counted = given.find("n_averaged");
  TORCH_CHECK_VALUE(counted != given.end() && counted->second->numel() == 1, where,
                    ": expected \"n_averaged\" to be one number. The state does not belong to an averaged model.");
  const auto n_averaged = counted->second->item<int64_t>();
  check::count(where, "n_averaged", n_averaged, 0);
  NamedTensors loaded;  // in the order of averaged_
  for (const auto& [name, tensor] : averaged_) {
    const auto found = given.find("module." + name);
    TORCH_CHECK_VALUE(found != given.end(), where, ": \"module.", name,
                      "\" is missing. The state belongs to another model.");
    loaded.emplace_back(name, *found->second);
  }
  TORCH_CHECK_VALUE(given.size() == loaded.size() + 1, where, ": the state has ", given.size() - 1 - loaded.size(),
                    " more tensors than model \"", model_.name(), "\".");
  check_same(where, averaged_, loaded);
  const c10::NoGradGuard no_grad;
  const std::vector<at::Tensor> to = values_of(averaged_), from = values_of(loaded);
  incomplete_ = true;
  at::_foreach_copy_(to, from);
  n_averaged_ = n_averaged;
  incomplete_ = false;
}

void update_bn(const Model& model, const std::function<at::Tensor()>& next) {
  TORCH_CHECK_VALUE(next, "update_bn: expected a function that returns the inputs, got an empty one.");
  CumulativeBatchNorm norms(model);
  if (norms.empty()) return;
  at::Tensor input = next();
  TORCH_CHECK_VALUE(input.defined(), "update_bn: expected at least one batch, got none. Was the loader started?");
  const c10::NoGradGuard no_grad;
  const auto parameters = model.parameters();
  norms.start();
  for (; input.defined(); input = next()) model.forward(parameters.empty() ? input : input.to(parameters[0].device()));
}

void AveragedModel::update_bn(const std::function<at::Tensor()>& next) {
  const AveragedWeights weights(*this);
  optim::update_bn(model_, next);
  const c10::NoGradGuard no_grad;
  const NamedTensors current = model_.state_dict();
  for (size_t i = parameters_; i < averaged_.size(); ++i) averaged_[i].second.copy_(current[i].second);
}

AveragedWeights::AveragedWeights(const AveragedModel& average) : current_(values_of(average.model().state_dict())) {
  check_same("AveragedWeights", average.averaged(), average.model().state_dict());
  const c10::NoGradGuard no_grad;
  for (const at::Tensor& tensor : current_) saved_.push_back(tensor.clone());
  const std::vector<at::Tensor> averaged = values_of(average.averaged());
  try {
    at::_foreach_copy_(current_, averaged);
  } catch (...) {  // the destructor does not run
    at::_foreach_copy_(current_, saved_);
    throw;
  }
}

AveragedWeights::~AveragedWeights() {
  const c10::NoGradGuard no_grad;
  at::_foreach_copy_(current_, saved_);
}

}  // namespace bellows::optim
