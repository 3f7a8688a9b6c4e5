#include "bellows/recompute/offload.h"

#include "bellows/recompute/host_store.h"
#include "bellows/recompute/left_alone.h"
#include "bellows/recompute/spill_store.h"

namespace bellows::recompute {

namespace {

void check_offload_options(const OffloadOptions& options) {
  const auto check = [](const char* name, int64_t value, int64_t least) {
    TORCH_CHECK_VALUE(value >= least, "offload: expected ", name, " of at least ", least, ", got ", value, ".");
  };
  check("reserve_bytes", options.reserve_bytes, 0);
  check("in_flight_bytes", options.in_flight_bytes, 1);
  check("min_bytes", options.min_bytes, 1);
  TORCH_CHECK_VALUE(options.to == OffloadTo::file || (options.folder.empty() && options.reserve_bytes == 0),
                    "offload: folder and reserve_bytes require .to = OffloadTo::file; host memory does not use them.");
}

}  // namespace

class OffloadGuard::Tap final : public tap::SavedTensorTap {
 public:
  explicit Tap(const OffloadOptions& options) : options_(options), left_alone_(options.leave) {
    check_offload_options(options);
    if (options.to == OffloadTo::file) {
      file_ = std::make_shared<detail::SpillStore>(options.folder, options.reserve_bytes, options.in_flight_bytes);
    } else {
      host_ = std::make_shared<detail::HostStore>(options.in_flight_bytes);
    }
  }

  std::shared_ptr<tap::PackedTensor> pack(const at::Tensor& tensor) override {
    if (static_cast<int64_t>(tensor.nbytes()) < options_.min_bytes || left_alone_.has(tensor)) return nullptr;
    if (host_ && tensor.is_cpu()) return nullptr;
    const at::Tensor dense = tensor.is_non_overlapping_and_dense() ? tensor : tensor.contiguous();
    if (host_) return host_->put(dense);
    return file_->put(dense.is_cpu() ? dense : dense.cpu());
  }

  OffloadStats stats() const { return file_ ? file_->stats() : host_->stats(); }
  void wait() const {
    if (file_) file_->wait_until_written();
  }

 private:
  const OffloadOptions options_;
  const detail::LeftAlone left_alone_;
  std::shared_ptr<detail::SpillStore> file_;
  std::shared_ptr<detail::HostStore> host_;
};

OffloadGuard::OffloadGuard(const OffloadOptions& options) : tap_(std::make_shared<Tap>(options)), guard_(tap_) {}

OffloadGuard::~OffloadGuard() = default;

OffloadStats OffloadGuard::stats() const {
  return tap_->stats();
}

void OffloadGuard::wait() const {
  tap_->wait();
}

}  // namespace bellows::recompute
