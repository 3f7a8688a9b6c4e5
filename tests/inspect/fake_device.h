#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

namespace bellows::test {

/// An accelerator that is not one: libtorch's PrivateUse1 device with memory on the host. It copies to and from the
/// CPU, keeps allocator statistics, and has an autograd worker thread of its own; what it computes it computes on the
/// CPU.
inline const c10::Device fake_device(c10::DeviceType::PrivateUse1, 0);

at::Tensor empty_on_fake_device(const std::vector<int64_t>& sizes);
at::Tensor ones_on_fake_device(const std::vector<int64_t>& sizes);

}  // namespace bellows::test
