#pragma once

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <utility>

#include "bellows/tap/saved_tensor_tap.h"

namespace bellows::parallel::testing {

/// Counts the bytes that autograd keeps for backward on this thread. Views of one storage count once. Parameters, and
/// inputs that are leaves, do not count.
class ActivationCounter final : public tap::SavedTensorTap {
 public:
  std::shared_ptr<tap::PackedTensor> pack(const at::Tensor& tensor) override {
    return std::make_shared<Kept>(bytes_, tensor);
  }
  int64_t live() const { return bytes_->live; }
  int64_t peak() const { return bytes_->peak; }

 private:
  struct Bytes {
    std::map<const c10::StorageImpl*, int64_t> uses;
    int64_t live = 0, peak = 0;
  };

  class Kept final : public tap::PackedTensor {
   public:
    Kept(std::shared_ptr<Bytes> bytes, const at::Tensor& tensor) : bytes_(std::move(bytes)), tensor_(tensor) {
      if (++bytes_->uses[storage()] == 1) bytes_->live += size();
      bytes_->peak = std::max(bytes_->peak, bytes_->live);
    }
    ~Kept() override {
      if (--bytes_->uses[storage()] > 0) return;
      bytes_->uses.erase(storage());
      bytes_->live -= size();
    }
    Kept(const Kept&) = delete;
    Kept& operator=(const Kept&) = delete;
    at::Tensor unpack() override { return tensor_; }

   private:
    const c10::StorageImpl* storage() const { return tensor_.storage().unsafeGetStorageImpl(); }
    int64_t size() const { return static_cast<int64_t>(tensor_.storage().nbytes()); }

    std::shared_ptr<Bytes> bytes_;
    at::Tensor tensor_;
  };

  std::shared_ptr<Bytes> bytes_ = std::make_shared<Bytes>();
};

}  // namespace bellows::parallel::testing
