#include "bellows/core/device.h"

#include <ATen/Context.h>
#include <ATen/DeviceAccelerator.h>
#ifdef __GLIBC__
#include <malloc.h>
#endif

#include "bellows/core/error.h"

namespace bellows {

c10::Device parse_device(std::string_view text) {
  std::optional<c10::Device> device;
  try {
    device.emplace(std::string(text));
  } catch (const c10::Error&) {
    TORCH_CHECK_VALUE(false, "device: expected \"cpu\", \"cuda\" or \"cuda:N\", got \"", text, "\".");
  }
  TORCH_CHECK_VALUE(!device->is_cpu() || device->index() <= 0, "device: \"", text,
                    "\" does not exist. The only CPU device is \"cpu\".");
  if (device->is_cpu()) return *device;
  const auto accelerator = at::getAccelerator();
  const auto count = accelerator ? at::accelerator::deviceCount() : c10::DeviceIndex{0};
  TORCH_CHECK_VALUE(accelerator == device->type() && count > 0, "device: \"", text,
                    "\" was requested, but this machine has ",
                    count > 0 ? c10::DeviceTypeName(*accelerator, true) + " and the CPU" : "the CPU only",
                    ". Use device: cpu, or check the driver with `bellows doctor`.");
  TORCH_CHECK_VALUE(device->index() < count, "device: \"", text, "\" was requested, but this machine has only ",
                    int{count}, " device indices from 0 to ", count - 1, ").");
  return *device;
}

void synchronize(c10::Device device) {
  if (!device.is_cpu()) at::accelerator::synchronizeDevice(device.index());
}

void empty_cache() {
  const auto accelerator = at::getAccelerator();
  if (accelerator && at::accelerator::deviceCount() > 0) at::accelerator::emptyCache();
  trim_heap();
}

void trim_heap() {
#ifdef __GLIBC__
  malloc_trim(0);
#endif
}

}  // namespace bellows
