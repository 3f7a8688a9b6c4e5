#include "bellows/parallel/tensor/kept_slices.h"

#include <utility>
#include <vector>

#include "bellows/parallel/tensor/exchange.h"

namespace bellows::parallel {

namespace {

/// A slice, and the gathered tensor while the places that saved it are unpacked.
class KeptSlice {
 public:
  KeptSlice(at::Tensor slice, int64_t dim, comm::Group group)
      : slice_(std::move(slice)), dim_(dim), group_(std::move(group)) {}

  void add_use() { ++uses_; }
  at::Tensor gather() {
    if (!gathered_.defined()) gathered_ = gather_slices(slice_, dim_, /*add=*/false, group_);
    const at::Tensor result = gathered_;
    if (++gathers_ % uses_ == 0) gathered_.reset();
    return result;
  }

 private:
  const at::Tensor slice_;
  const int64_t dim_;
  const comm::Group group_;
  at::Tensor gathered_;
  int64_t uses_ = 0, gathers_ = 0;
};

class PackedSlice final : public tap::PackedTensor {
 public:
  PackedSlice(std::shared_ptr<KeptSlice> kept, std::vector<int64_t> sizes)
      : kept_(std::move(kept)), sizes_(std::move(sizes)) {
    kept_->add_use();
  }
  at::Tensor unpack() override { return kept_->gather().reshape(sizes_); }

 private:
  std::shared_ptr<KeptSlice> kept_;
  const std::vector<int64_t> sizes_;
};

class SliceKeeper final : public tap::SavedTensorTap {
 public:
  SliceKeeper(std::shared_ptr<KeptSlice> kept, const at::Tensor& gathered)
      : kept_(std::move(kept)), storage_(gathered.storage().unsafeGetStorageImpl()), elements_(gathered.numel()) {}

  std::shared_ptr<tap::PackedTensor> pack(const at::Tensor& tensor) override {
    const bool complete =
        tensor.storage().unsafeGetStorageImpl() == storage_ && tensor.numel() == elements_ && tensor.is_contiguous();
    return complete ? std::make_shared<PackedSlice>(kept_, tensor.sizes().vec()) : nullptr;
  }

 private:
  const std::shared_ptr<KeptSlice> kept_;
  const c10::StorageImpl* const storage_;
  const int64_t elements_;
};

}  // namespace

std::shared_ptr<tap::SavedTensorTap> keep_slices(const at::Tensor& slice, const at::Tensor& gathered, int64_t dim,
                                                 const comm::Group& group) {
  return std::make_shared<SliceKeeper>(std::make_shared<KeptSlice>(slice.detach(), dim, group), gathered);
}

}  // namespace bellows::parallel
