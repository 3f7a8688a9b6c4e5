#include "bellows/parallel/placement/streamed_weights.h"

#include <ATen/autocast_mode.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/empty.h>
#include <c10/core/GradMode.h>
#include <c10/core/InferenceMode.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <deque>
#include <exception>
#include <thread>
#include <unordered_map>
#include <utility>

#include "bellows/core/mutex.h"
#include "bellows/parallel/placement/bucket_loader.h"
#include "bellows/parallel/placement/weight_buckets.h"
#include "bellows/parallel/use_order.h"
#include "bellows/tap/deferral.h"
#include "bellows/tap/op_check.h"
#include "bellows/tap/pending_storage.h"

namespace bellows::parallel {

namespace {

std::string not_loaded(const std::string& file) {
  return c10::str("this weight is streamed from ", file,
                  ", and is not in memory. Use it in an operator while a StreamedWeights::Guard exists on this thread, "
                  "or call the model that StreamedWeights::model() returns.");
}

bool writes_to(const tap::OpRef& op, size_t argument) {
  const auto* alias = op.handle().schema().arguments()[argument].alias_info();
  return alias && alias->isWrite();
}

/// Whether autograd records the operator, and may save the weight. Autocast enables gradients for its casts, which save
/// nothing.
bool saves_for_backward(const tap::OpRef& op, const at::Tensor& weight) {
  const bool cast = op.name() == "aten::to" || op.name() == "aten::_to_copy" || op.name() == "aten::copy_";
  return c10::GradMode::is_enabled() && weight.requires_grad() && !cast;
}

void check_own_storage(const std::vector<WeightSource>& sources) {
  std::unordered_map<const c10::StorageImpl*, const std::string*> owners;
  for (const WeightSource& source : sources) {
    if (source.tensor.numel() == 0 || !source.is_parameter) continue;
    const auto* storage = source.tensor.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl();
    const auto [owner, is_new] = owners.try_emplace(storage, &source.name);
    TORCH_CHECK_VALUE(is_new, "streamed weights: \"", *owner->second, "\" and \"", source.name,
                      "\" share memory without being the same tensor. Tie weights by registering one tensor twice.");
  }
}

/// Reads a weight that stays on the device.
void read_resident(const WeightSource& source, const WeightFile& file, c10::Device device) {
  at::Tensor tensor = source.tensor;
  if (tensor.device() == device && device.is_cpu()) return file.read(*source.entry, tensor.detach());
  const at::Tensor values = at::empty(tensor.sizes(), at::TensorOptions(tensor.scalar_type()));
  file.read(*source.entry, values);
  tensor.set_data(values.to(device));
}

}  // namespace

class StreamedWeights::Streaming final : public tap::OpCheck {
 public:
  Streaming(const Model& model, const StreamedWeightsOptions& options);

  void check(const tap::OpRef& op, tap::Stack& stack) override;
  // Not analyzed, because one function locks the mutex and the other one unlocks it.
  void begin_use() BELLOWS_NO_THREAD_SAFETY_ANALYSIS;
  void end_use() BELLOWS_NO_THREAD_SAFETY_ANALYSIS;
  at::Tensor independent(const at::Tensor& output) const;
  StreamedWeightsCounters counters() const;
  const DeviceMap& map() const { return map_; }
  const Model& model() const { return model_; }

 private:
  std::optional<size_t> bucket_of(const c10::IValue& value) const;
  std::optional<size_t> bucket_of(const at::Tensor& tensor) const;
  void place_weights(const std::vector<WeightSource>& sources, c10::Device device);
  void need(const std::vector<size_t>& buckets);
  void check_fits(const std::vector<size_t>& buckets) const;
  std::vector<size_t> with_next(std::vector<size_t> buckets) const;

  const Model model_;
  const WeightFile file_;
  DeviceMap map_;
  std::vector<WeightBucket> buckets_;
  std::unordered_map<const c10::StorageImpl*, size_t> by_storage_;
  std::unique_ptr<BucketLoader> loader_;
  int64_t resident_bytes_ = 0;
  /// Held by the thread that uses the model. The members below belong to this thread.
  RecursiveMutex use_mutex_;
  std::thread::id user_;
  int uses_ = 0;
  std::vector<size_t> in_use_;  ///< by the last operator that needed another bucket
  UseOrder order_;
};

StreamedWeights::Streaming::Streaming(const Model& model, const StreamedWeightsOptions& options)
    : model_(model), file_(options.file) {
  const c10::InferenceMode no_inference_tensors(false);
  const c10::NoGradGuard no_grad;
  const std::vector<WeightSource> sources = weight_sources(model, file_, options.names);
  check_own_storage(sources);
  map_ = options.device_map
             ? *options.device_map
             : infer_device_map(model, {.device_bytes = options.memory_bytes, .keep_together = options.keep_together});
  place_weights(sources, options.device);
  std::vector<int64_t> sizes;
  for (const WeightBucket& bucket : buckets_) sizes.push_back(bucket.bytes);
  std::ranges::sort(sizes, std::greater<>());
  sizes.resize(std::min<size_t>(sizes.size(), 2));
  int64_t working = map_.working_bytes;
  if (working == 0) {
    for (const int64_t size : sizes) working += size;
  }
  TORCH_CHECK_VALUE(sizes.empty() || working >= sizes.front(),
                    "streamed weights: the working memory of the device map must "
                    "be at least ",
                    sizes.empty() ? 0 : sizes.front(), " bytes, the size of its largest module, got ", working, ".");
  loader_ = std::make_unique<BucketLoader>(buckets_, file_, options.device, working, not_loaded(file_.path()));
}

void StreamedWeights::Streaming::place_weights(const std::vector<WeightSource>& sources, c10::Device device) {
  std::unordered_map<std::string_view, const WeightSource*> by_name;
  for (const WeightSource& source : sources) by_name.emplace(source.name, &source);
  const std::string why = not_loaded(file_.path());
  for (const MappedModule& module : map_.modules) {
    std::vector<const WeightSource*> of_module;
    for (const std::string& name : module.parameters) {
      const auto found = by_name.find(name);
      TORCH_CHECK_VALUE(found != by_name.end(), "streamed weights: the device map places \"", name, "\", but model \"",
                        model_.name(),
                        "\" has no such parameter, or the map places it twice. Use a device map of this model.");
      of_module.push_back(found->second);
      by_name.erase(found);
    }
    if (module.place == WeightPlace::device) {
      for (const WeightSource* source : of_module) read_resident(*source, file_, device);
      resident_bytes_ += module.bytes;
      continue;
    }
    buckets_.push_back(make_bucket(module, of_module, device, why));
  }
  for (const WeightSource& source : sources) {
    if (!by_name.count(source.name)) continue;  // a parameter of the map
    TORCH_CHECK_VALUE(!source.is_parameter, "streamed weights: the device map does not place parameter \"", source.name,
                      "\". Use a device map of this model.");
    read_resident(source, file_, device);
  }
  for (size_t i = 0; i < buckets_.size(); ++i) by_storage_.emplace(buckets_[i].storage.unsafeGetStorageImpl(), i);
}

std::optional<size_t> StreamedWeights::Streaming::bucket_of(const at::Tensor& tensor) const {
  if (!tensor.defined() || !tensor.has_storage()) return std::nullopt;
  const auto found = by_storage_.find(tensor.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl());
  return found == by_storage_.end() ? std::nullopt : std::optional(found->second);
}

std::optional<size_t> StreamedWeights::Streaming::bucket_of(const c10::IValue& value) const {
  return value.isTensor() ? bucket_of(value.toTensor()) : std::nullopt;
}

void StreamedWeights::Streaming::check(const tap::OpRef& op, tap::Stack& stack) {
  std::vector<size_t> buckets;
  const auto arguments = op.arguments(stack);
  const auto use = [&](const c10::IValue& value, size_t argument) {
    const std::optional<size_t> bucket = bucket_of(value);
    if (!bucket) return;
    TORCH_CHECK_VALUE(
        !writes_to(op, argument), op.qualified_name(), " writes to a weight of module \"", buckets_[*bucket].module,
        "\", which is streamed from ", file_.path(),
        ". The change would be lost when the module is loaded again. To change weights, change the file.");
    TORCH_CHECK_VALUE(!saves_for_backward(op, value.toTensor()), op.qualified_name(), " uses a weight of module \"",
                      buckets_[*bucket].module,
                      "\" while gradients are enabled. Streamed weights are not in memory any more when backward needs "
                      "them. Create a c10::InferenceMode or c10::NoGradGuard before you call the model.");
    if (std::ranges::find(buckets, *bucket) == buckets.end()) buckets.push_back(*bucket);
  };
  for (size_t i = 0; i < arguments.size(); ++i) {
    if (!arguments[i].isList()) {
      use(arguments[i], i);
      continue;
    }
    for (const c10::IValue& element : arguments[i].toListRef()) use(element, i);
  }
  if (buckets.empty()) return;
  TORCH_CHECK(!tap::active_deferral(), op.qualified_name(),
              " uses streamed weights in a compiled function. Compiled "
              "functions run operators later, when the weights may be gone. Run the model without `compile`.");
  TORCH_CHECK(user_ == std::this_thread::get_id(), op.qualified_name(),
              " uses streamed weights on a thread that the "
              "model started. Streamed weights can be used by one thread at a time. Create a StreamedWeights::Guard "
              "on each thread, one after the other.");
  need(buckets);
}

void StreamedWeights::Streaming::check_fits(const std::vector<size_t>& buckets) const {
  int64_t bytes = 0;
  std::string modules;
  for (const size_t bucket : buckets) {
    bytes += buckets_[bucket].bytes;
    modules += c10::str(modules.empty() ? "\"" : ", \"", buckets_[bucket].module, "\"");
  }
  TORCH_CHECK_VALUE(bytes <= loader_->budget(), "streamed weights: one operator uses weights of the modules ", modules,
                    ", which have ", bytes, " bytes together, but the working memory has ", loader_->budget(),
                    " bytes. Increase the budget by at least ", bytes - loader_->budget(), " bytes.");
}

/// Appends the buckets that are expected next, as far as the working memory can hold them together.
std::vector<size_t> StreamedWeights::Streaming::with_next(std::vector<size_t> buckets) const {
  int64_t bytes = 0;
  for (const size_t bucket : buckets) bytes += buckets_[bucket].bytes;
  UseOrder::Position position = order_.last();
  while (buckets.size() < buckets_.size()) {
    const size_t in_model_order = position.second ? (*position.second + 1) % buckets_.size() : 0;
    const size_t next = order_.next(position).value_or(in_model_order);
    if (std::ranges::find(buckets, next) != buckets.end()) break;
    bytes += buckets_[next].bytes;
    if (bytes > loader_->budget()) break;
    buckets.push_back(next);
    position = UseOrder::after(position, next);
  }
  return buckets;
}

void StreamedWeights::Streaming::need(const std::vector<size_t>& buckets) {
  const auto is_in_use = [&](size_t bucket) { return std::ranges::find(in_use_, bucket) != in_use_.end(); };
  if (std::ranges::all_of(buckets, is_in_use)) return;
  const tap::UncheckedOperators unchecked;
  const c10::InferenceMode no_inference_tensors(false);
  const c10::NoGradGuard no_grad;
  check_fits(buckets);
  in_use_.clear();
  for (const size_t bucket : buckets) order_.note(bucket);
  at::autocast::clear_cache();  // would keep casts of all weights
  loader_->load(buckets, with_next(buckets));
  in_use_ = buckets;
}

void StreamedWeights::Streaming::begin_use() {
  use_mutex_.lock();
  if (uses_++ == 0) user_ = std::this_thread::get_id();
}

void StreamedWeights::Streaming::end_use() {
  if (--uses_ == 0) user_ = {};
  use_mutex_.unlock();
}

at::Tensor StreamedWeights::Streaming::independent(const at::Tensor& output) const {
  return bucket_of(output) ? output.clone() : output;
}

StreamedWeightsCounters StreamedWeights::Streaming::counters() const {
  StreamedWeightsCounters counters = loader_->counters();
  counters.resident_bytes = resident_bytes_;
  counters.peak_bytes += resident_bytes_;
  for (const WeightBucket& bucket : buckets_) counters.streamed_bytes += bucket.bytes;
  return counters;
}

/// One use of the weights on this thread.
class StreamedWeights::Use {
 public:
  explicit Use(const std::shared_ptr<Streaming>& streaming) : turn_(streaming), guard_(streaming) {}

 private:
  /// Holds the lock. As a member, it releases the lock if the constructor of `guard_` throws.
  class Turn {
   public:
    explicit Turn(std::shared_ptr<Streaming> streaming) : streaming_(std::move(streaming)) {
      TORCH_CHECK_VALUE(!streaming_->model().training(), "streamed weights: model \"", streaming_->model().name(),
                        "\" is in training mode. Streamed weights are read-only and have no gradients, so they are for "
                        "inference only. Call model.eval() first.");
      streaming_->begin_use();
    }
    ~Turn() { streaming_->end_use(); }
    Turn(const Turn&) = delete;
    Turn& operator=(const Turn&) = delete;

   private:
    std::shared_ptr<Streaming> streaming_;
  };

  Turn turn_;
  tap::OpCheckGuard guard_;  ///< destroyed before the lock is released
};

class StreamedWeights::StreamedModel final : public ModelWrapper {
 public:
  StreamedModel(const Model& model, std::shared_ptr<Streaming> streaming)
      : ModelWrapper(model), streaming_(std::move(streaming)) {}

  std::vector<at::Tensor> forward_all(const std::vector<at::Tensor>& inputs) override {
    const Use use(streaming_);
    std::vector<at::Tensor> outputs = inner().forward_all(inputs);
    for (at::Tensor& output : outputs) output = streaming_->independent(output);
    return outputs;
  }
  void to(c10::Device device) override { refuse(c10::str("moved to ", device)); }
  void to(c10::ScalarType dtype) override { refuse(c10::str("cast to ", dtype)); }

 private:
  [[noreturn]] void refuse(const std::string& change) const {
    TORCH_CHECK_VALUE(false, "streamed weights: model \"", inner().name(), "\" cannot be ", change,
                      ", because its weights are in a file. Set the device and the dtype before you create "
                      "StreamedWeights.");
  }

  std::shared_ptr<Streaming> streaming_;
};

StreamedWeights::StreamedWeights(const Model& model, const StreamedWeightsOptions& options)
    : streaming_(std::make_shared<Streaming>(model, options)) {}

StreamedWeights::~StreamedWeights() = default;

Model StreamedWeights::model() const {
  const Model& model = streaming_->model();
  return Model(model.name(), std::make_shared<StreamedModel>(model, streaming_));
}

const DeviceMap& StreamedWeights::device_map() const {
  return streaming_->map();
}

StreamedWeightsCounters StreamedWeights::counters() const {
  return streaming_->counters();
}

StreamedWeights::Guard::Guard(const StreamedWeights& weights) : use_(std::make_shared<Use>(weights.streaming_)) {}

StreamedWeights::Guard::~Guard() = default;

}  // namespace bellows::parallel
