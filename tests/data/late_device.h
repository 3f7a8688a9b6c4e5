#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace bellows::test {

/// An accelerator whose streams run late: libtorch's PrivateUse1 device with memory on the host. What is put on a
/// stream happens only when somebody waits for it, in the order that streams and events demand and no sooner; until
/// then a copy's target holds garbage, and its source has to stay as it is.
inline const c10::Device late_device(c10::DeviceType::PrivateUse1, 0);

/// The tensor's values as a kernel on the current stream would see them, once all that this stream waits for has run.
at::Tensor seen_by_current_stream(const at::Tensor& on_device);
/// Operations that streams hold back.
int64_t held_back();
/// Tensor::record_stream calls so far.
int64_t recorded_streams();
/// Bytes given out as pinned memory so far.
int64_t pinned_bytes();
/// Lets all streams run to their ends.
void run_late_device();

}  // namespace bellows::test
