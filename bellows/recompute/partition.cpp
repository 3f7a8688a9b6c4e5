#include "bellows/recompute/partition.h"

#include <optional>

#include "bellows/recompute/left_alone.h"
#include "bellows/recompute/partition_store.h"
#include "bellows/recompute/saves.h"

namespace bellows::recompute {

class PartitionGuard::Tap final : public tap::SavedTensorTap {
 public:
  Tap(const comm::Group& group, const PartitionOptions& options) : options_(options), left_alone_(options.leave) {
    TORCH_CHECK_VALUE(options.min_bytes >= 1, "partition: expected min_bytes of at least 1, got ", options.min_bytes,
                      ".");
    if (group.size() > 1) store_ = std::make_shared<detail::PartitionStore>(group, options.check_values);
  }

  std::shared_ptr<tap::PackedTensor> pack(const at::Tensor& tensor) override {
    const detail::SaveKind kind = detail::SaveScope::now();
    if (!store_ || kind == detail::SaveKind::none) return nullptr;
    if (kind == detail::SaveKind::kept_output && !options_.kept_outputs) return nullptr;
    if (static_cast<int64_t>(tensor.nbytes()) < options_.min_bytes || left_alone_.has(tensor)) return nullptr;
    if (tensor.is_conj() || tensor.is_neg() || tensor.is_quantized()) return nullptr;
    return store_->put(tensor.is_non_overlapping_and_dense() ? tensor : tensor.contiguous());
  }

  PartitionStats stats() const { return store_ ? store_->stats() : PartitionStats{}; }
  bool stores_kept_outputs() const { return store_ && options_.kept_outputs; }

 private:
  const PartitionOptions options_;
  const detail::LeftAlone left_alone_;
  std::shared_ptr<detail::PartitionStore> store_;
};

struct PartitionGuard::Parts {
  explicit Parts(const std::shared_ptr<Tap>& tap) : client(tap), guard(tap) {
    if (tap->stores_kept_outputs()) kept_outputs.emplace();
  }
  std::shared_ptr<Tap> client;
  tap::SavedTensorGuard guard;
  std::optional<detail::StoresKeptOutputs> kept_outputs;
};

PartitionGuard::PartitionGuard(const comm::Group& group, const PartitionOptions& options)
    : parts_(std::make_unique<Parts>(std::make_shared<Tap>(group, options))) {}

PartitionGuard::~PartitionGuard() = default;

PartitionStats PartitionGuard::stats() const {
  return parts_->client->stats();
}

}  // namespace bellows::recompute
