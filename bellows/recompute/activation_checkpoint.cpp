#include "bellows/recompute/activation_checkpoint.h"

#include <c10/core/GradMode.h>

#include <optional>

#include "bellows/recompute/region.h"
#include "bellows/recompute/saves.h"

namespace bellows::recompute {

namespace detail {

namespace {

/// The client of the first run. It keeps no tensors.
class FirstRun final : public tap::SavedTensorTap {
 public:
  explicit FirstRun(std::shared_ptr<Region> region) : region_(std::move(region)) {}
  std::shared_ptr<tap::PackedTensor> pack(const at::Tensor& tensor) override {
    return PastRegions::active() ? nullptr : region_->save(tensor);
  }
  bool packs_once() const override { return false; }

 private:
  std::shared_ptr<Region> region_;
};

}  // namespace

bool records_graph() {
  return c10::GradMode::is_enabled();
}

struct RegionScope::Taps {
  explicit Taps(const std::shared_ptr<Region>& region) : saved(std::make_shared<FirstRun>(region)) {
    if (Selection* selection = region->selection()) operators.emplace(selection->first_run());
  }
  ActiveRun active;
  tap::SavedTensorGuard saved;
  std::optional<tap::OpTapGuard> operators;
};

RegionScope::RegionScope(const std::vector<at::Tensor>& inputs, Rerun rerun, const CheckpointOptions& options)
    : region_(std::make_shared<Region>(inputs, std::move(rerun), options)), taps_(std::make_unique<Taps>(region_)) {}

RegionScope::~RegionScope() = default;

void RegionScope::finish() {
  taps_.reset();
  region_->finish();
}

}  // namespace detail

at::Tensor checkpoint_sequential(const std::vector<Layer>& layers, int64_t segments, const at::Tensor& input,
                                 const CheckpointOptions& options) {
  const auto count = static_cast<int64_t>(layers.size());
  TORCH_CHECK_VALUE(count > 0, "checkpoint_sequential: expected at least one layer, got none.");
  TORCH_CHECK_VALUE(segments >= 1 && segments <= count, "checkpoint_sequential: expected 1 to ", count,
                    " segments (the number of layers), got ", segments, ".");
  at::Tensor x = input;
  for (int64_t segment = 0; segment < segments; ++segment) {
    const auto begin_of = [&](int64_t i) { return layers.begin() + count * i / segments; };
    const auto run = [some = std::vector<Layer>(begin_of(segment), begin_of(segment + 1))](const at::Tensor& first) {
      at::Tensor y = first;
      for (const Layer& layer : some) y = layer(y);
      return y;
    };
    x = segment + 1 < segments ? checkpoint(options, run, x) : run(x);
  }
  return x;
}

}  // namespace bellows::recompute
