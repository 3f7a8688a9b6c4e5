#include "bellows/checkpoint/rng.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>
#include <ATen/DeviceAccelerator.h>
#include <ATen/core/Generator.h>

#include <exception>
#include <optional>

#include "bellows/core/device.h"
#include "bellows/core/error.h"
#include "bellows/core/log.h"

namespace bellows::checkpoint {

namespace {

std::vector<c10::Device> devices_with_generators() {
  std::vector<c10::Device> devices{c10::kCPU};
  const auto accelerator = at::getAccelerator();
  if (!accelerator) return devices;
  for (c10::DeviceIndex i = 0; i < at::accelerator::deviceCount(); ++i) devices.emplace_back(*accelerator, i);
  return devices;
}

at::Generator generator_of(c10::Device device) {
  return device.is_cpu() ? at::detail::getDefaultCPUGenerator() : at::globalContext().defaultGenerator(device);
}

std::optional<c10::Device> find_device(const std::string& name) {
  for (const c10::Device device : devices_with_generators()) {
    if (device.str() == name) return device;
  }
  return {};
}

}  // namespace

NamedTensors rng_state() {
  NamedTensors result;
  for (const c10::Device device : devices_with_generators()) {
    at::Generator generator = generator_of(device);
    const std::lock_guard lock(generator.mutex());
    result.emplace_back(device.str(), generator.get_state());
  }
  return result;
}

void set_rng_state(const NamedTensors& state) {
  for (const auto& [name, tensor] : state) {
    const auto device = find_device(name);
    if (!device) {
      log_warn("checkpoint: the state of the random generator of ", name,
               " is skipped: this machine has no such device.");
      continue;
    }
    at::Generator generator = generator_of(*device);
    const std::lock_guard lock(generator.mutex());
    TORCH_CHECK_VALUE(tensor.scalar_type() == at::kByte && tensor.sizes() == generator.get_state().sizes(),
                      "set_rng_state: the state of ", name, " should be ", generator.get_state().sizes(),
                      " bytes, but it is ", tensor.scalar_type(), " ", tensor.sizes(), ".");
    generator.set_state(tensor);
  }
}

RngGuard::~RngGuard() {
  try {
    set_rng_state(state_);
  } catch (const std::exception& error) {
    log_warn("checkpoint: the states of the random generators could not be restored: ", user_message(error));
  }
}

}  // namespace bellows::checkpoint
