#include <ATen/ops/zeros.h>

#include "bellows/comm/collectives.h"
#include "bellows/parallel/hooks/hook_state.h"
#include "bellows/parallel/hooks/hooks.h"

namespace bellows::parallel {

namespace {

class AllReduce final : public GradientHook {
 public:
  at::Tensor mean(const GradientBucket& bucket, const comm::Group& group) override {
    return nothing_to_exchange(bucket, group) ? bucket.flat : exact_mean(bucket.flat, group);
  }
  std::string describe() const override { return "all-reduce"; }
};

class Pairwise final : public GradientHook {
 public:
  at::Tensor mean(const GradientBucket& bucket, const comm::Group& group) override {
    if (nothing_to_exchange(bucket, group)) return bucket.flat;
    const int64_t ranks = group.size(), numel = bucket.flat.numel(), part = (numel + ranks - 1) / ranks;
    at::Tensor all = bucket.flat;
    if (part * ranks > numel) {
      all = at::zeros({part * ranks}, bucket.flat.options());
      all.narrow(0, 0, numel).copy_(bucket.flat);
    }
    all.narrow(0, part * group.rank(), part).copy_(comm::reduce_scatter(all.div_(ranks), group));
    comm::all_gather_in_place(all, group);
    return all.narrow(0, 0, numel);
  }
  std::string describe() const override { return "sum in pairs"; }
};

class Cast final : public GradientHook {
 public:
  explicit Cast(at::ScalarType type) : type_(type) {}

  at::Tensor mean(const GradientBucket& bucket, const comm::Group& group) override {
    at::Tensor flat = bucket.flat;
    if (nothing_to_exchange(bucket, group)) return flat;
    if (flat.element_size() <= 2) return exact_mean(flat, group);
    return flat.copy_(comm::all_reduce(flat.div_(group.size()).to(type_), group));
  }
  std::string describe() const override { return type_ == at::kHalf ? "fp16" : "bf16"; }

 private:
  at::ScalarType type_;
};

}  // namespace

std::shared_ptr<GradientHook> all_reduce_hook() {
  return std::make_shared<AllReduce>();
}

std::shared_ptr<GradientHook> pairwise_hook() {
  return std::make_shared<Pairwise>();
}

std::shared_ptr<GradientHook> bf16_hook() {
  return std::make_shared<Cast>(at::kBFloat16);
}

std::shared_ptr<GradientHook> fp16_hook() {
  return std::make_shared<Cast>(at::kHalf);
}

}  // namespace bellows::parallel
