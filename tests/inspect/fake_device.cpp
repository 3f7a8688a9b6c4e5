#include "fake_device.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/EmptyTensor.h>
#include <ATen/Functions.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <ATen/native/CPUFallback.h>
#include <ATen/ops/from_blob.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/library.h>

#include <cstdlib>

namespace bellows::test {

namespace {

class FakeDeviceAllocator final : public c10::DeviceAllocator {
 public:
  static FakeDeviceAllocator& get() {
    static FakeDeviceAllocator made;
    return made;
  }
  c10::DataPtr allocate(size_t bytes) override {
    auto* block = new Block{std::malloc(bytes + 1), bytes};
    stats_.allocated_bytes[0].increase(bytes);
    stats_.reserved_bytes[0].increase(2 * bytes);
    stats_.allocation[0].increase(1);
    return {block->data, block, &free_block, fake_device};
  }
  c10::DeleterFnPtr raw_deleter() const override { return nullptr; }
  void copy_data(void* to, const void* from, size_t bytes) const override { default_copy_data(to, from, bytes); }
  bool initialized() override { return true; }
  void emptyCache(c10::MempoolId_t) override {}
  void recordStream(const c10::DataPtr&, c10::Stream) override {}
  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(c10::DeviceIndex) override { return stats_; }
  void resetAccumulatedStats(c10::DeviceIndex) override {}
  void resetPeakStats(c10::DeviceIndex) override { stats_.allocated_bytes[0].reset_peak(); }

 private:
  struct Block {
    void* data;
    size_t bytes;
  };
  static void free_block(void* context) {
    auto* block = static_cast<Block*>(context);
    get().stats_.allocated_bytes[0].decrease(block->bytes);
    std::free(block->data);
    delete block;
  }
  c10::CachingDeviceAllocator::DeviceStats stats_;
};

constexpr c10::DispatchKeySet fake_keys(c10::DispatchKey::PrivateUse1);

at::Tensor fake_empty(c10::IntArrayRef sizes, std::optional<c10::ScalarType> dtype, std::optional<c10::Layout>,
                      std::optional<c10::Device>, std::optional<bool>, std::optional<c10::MemoryFormat> format) {
  return at::detail::empty_generic(sizes, &FakeDeviceAllocator::get(), fake_keys, dtype.value_or(c10::kFloat), format);
}

at::Tensor fake_empty_strided(c10::IntArrayRef sizes, c10::IntArrayRef strides, std::optional<c10::ScalarType> dtype,
                              std::optional<c10::Layout>, std::optional<c10::Device>, std::optional<bool>) {
  return at::detail::empty_strided_generic(sizes, strides, &FakeDeviceAllocator::get(), fake_keys,
                                           dtype.value_or(c10::kFloat));
}

at::Tensor fake_copy_from(const at::Tensor& from, const at::Tensor& to, bool) {
  const auto on_host = [](const at::Tensor& tensor) {
    return at::from_blob(tensor.mutable_data_ptr(), tensor.sizes(), tensor.strides(),
                         at::TensorOptions(tensor.scalar_type()));
  };
  on_host(to).copy_(on_host(from));
  return to;
}

at::Tensor fake_copy_from_and_resize(const at::Tensor& from, const at::Tensor& to) {
  if (from.sizes() != to.sizes()) {
    const at::Tensor resized = empty_on_fake_device(from.sizes().vec()).to(to.scalar_type());
    to.unsafeGetTensorImpl()->shallow_copy_from(resized.getIntrusivePtr());
  }
  return fake_copy_from(from, to, false);
}

/// All other operators run on the CPU, on copies.
void fake_fallback(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  at::native::cpu_fallback(op, stack);
}

TORCH_LIBRARY_IMPL(_, PrivateUse1, library) {
  library.fallback(torch::CppFunction::makeFromBoxedFunction<&fake_fallback>());
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, library) {
  c10::SetAllocator(c10::DeviceType::PrivateUse1, &FakeDeviceAllocator::get());
  library.impl("empty.memory_format", fake_empty);
  library.impl("empty_strided", fake_empty_strided);
  library.impl("_copy_from", fake_copy_from);
  library.impl("_copy_from_and_resize", fake_copy_from_and_resize);
}

/// Work is done when a call returns, so there is nothing to wait for.
struct FakeDeviceGuard final : c10::impl::NoOpDeviceGuardImpl<c10::DeviceType::PrivateUse1> {
  c10::Device getDevice() const override { return fake_device; }
  c10::Stream getStream(c10::Device) const noexcept override { return c10::Stream(c10::Stream::DEFAULT, fake_device); }
  void record(void**, const c10::Stream&, const c10::DeviceIndex, const c10::EventFlag) const override {}
  void block(void*, const c10::Stream&) const override {}
  void synchronizeDevice(const c10::DeviceIndex) const override {}
};
const c10::impl::DeviceGuardImplRegistrar registrar(c10::DeviceType::PrivateUse1, new FakeDeviceGuard);

struct FakeDeviceHooks final : at::PrivateUse1HooksInterface {
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  c10::DeviceIndex deviceCount() const override { return 1; }
  const at::Generator& getDefaultGenerator(c10::DeviceIndex) const override {
    static const at::Generator generator = at::detail::createCPUGenerator();
    return generator;
  }
};
const bool registered = [] {
  at::RegisterPrivateUse1HooksInterface(new FakeDeviceHooks);
  c10::register_privateuse1_backend("fake");
  return true;
}();

}  // namespace

at::Tensor empty_on_fake_device(const std::vector<int64_t>& sizes) {
  return at::empty(sizes, at::TensorOptions().device(fake_device).dtype(c10::kFloat));
}

at::Tensor ones_on_fake_device(const std::vector<int64_t>& sizes) {
  at::Tensor made = empty_on_fake_device(sizes);
  made.copy_(at::ones(sizes));
  return made;
}

}  // namespace bellows::test
