#include "bellows/inspect/memory.h"

#include <ATen/DeviceAccelerator.h>
#include <c10/core/CachingDeviceAllocator.h>

#include <algorithm>
#include <atomic>
#include <fstream>
#include <map>
#include <vector>

#include "bellows/core/mutex.h"
#include "bellows/core/stats.h"
#include "bellows/tap/allocator.h"

namespace bellows::inspect {

namespace {

/// Figures that every allocator provides. `peak` is the highest size since the last restart.
struct Level {
  int64_t current = 0, peak = 0, allocations = 0, reserved = 0;
};

c10::DeviceAllocator& device_allocator(c10::Device device) {
  auto* allocator = dynamic_cast<c10::DeviceAllocator*>(c10::GetAllocator(device.type()));
  TORCH_CHECK(allocator, "memory_stats: expected the CPU or a device with a caching allocator, got ", device,
              ". Its allocator has no statistics in this build of libtorch.");
  return *allocator;
}

c10::DeviceIndex index_of(c10::Device device) {
  return device.has_index() ? device.index() : at::accelerator::getDeviceIndex();
}

Level read_level(c10::Device device) {
  if (device.is_cpu()) {
    tap::install_cpu_allocator();
    const auto counters = tap::cpu_allocation_counters();
    return {counters.current_bytes, counters.peak_bytes, counters.allocations, counters.current_bytes};
  }
  c10::DeviceAllocator& allocator = device_allocator(device);
  if (!allocator.initialized()) return {};  // nothing has been allocated there yet
  const auto stats = allocator.getDeviceStats(index_of(device));
  constexpr auto all = static_cast<size_t>(c10::CachingAllocator::StatType::AGGREGATE);
  return {stats.allocated_bytes[all].current, stats.allocated_bytes[all].peak, stats.allocation[all].allocated,
          stats.reserved_bytes[all].current};
}

void restart_peak(c10::Device device) {
  if (device.is_cpu()) return tap::reset_cpu_allocation_peak();
  c10::DeviceAllocator& allocator = device_allocator(device);
  if (allocator.initialized()) allocator.resetPeakStats(index_of(device));
}

/// Allocators have only one peak per device, but each scope needs its own. Whenever a scope opens or the user resets
/// the peak, the device's current peak is merged into all waiting peaks and then restarted.
class Peaks {
 public:
  Level open(c10::Device device, int64_t* peak) {
    MutexLock lock(mutex_);
    const Level level = collect(device);
    *peak = level.current;
    waiting_[device].push_back(peak);
    return level;
  }
  void close(c10::Device device, int64_t* peak) {
    MutexLock lock(mutex_);
    std::erase(waiting_[device], peak);
  }
  int64_t read(c10::Device device, const int64_t* peak) {
    MutexLock lock(mutex_);
    return std::max(*peak, read_level(device).peak);
  }
  /// The user's view: the level with the peak since reset().
  Level level(c10::Device device) {
    MutexLock lock(mutex_);
    Level level = read_level(device);
    level.peak = std::max(level.peak, users_[device]);
    return level;
  }
  void reset(c10::Device device) {
    MutexLock lock(mutex_);
    users_[device] = collect(device).current;
  }

 private:
  Level collect(c10::Device device) BELLOWS_REQUIRES(mutex_) {
    const Level level = read_level(device);
    restart_peak(device);
    for (int64_t* peak : waiting_[device]) *peak = std::max(*peak, level.peak);
    users_[device] = std::max(users_[device], level.peak);
    return level;
  }
  struct Order {
    bool operator()(c10::Device a, c10::Device b) const {
      return std::pair(a.type(), a.index()) < std::pair(b.type(), b.index());
    }
  };
  Mutex mutex_;
  std::map<c10::Device, std::vector<int64_t*>, Order> waiting_ BELLOWS_GUARDED_BY(mutex_);
  std::map<c10::Device, int64_t, Order> users_ BELLOWS_GUARDED_BY(mutex_);
};

Peaks& peaks() {
  static Peaks& made = *new Peaks;
  return made;
}

c10::Device with_index(c10::Device device) {
  return device.is_cpu() ? c10::Device(c10::kCPU) : c10::Device(device.type(), index_of(device));
}

/// Reads a line such as "VmRSS:     1234 kB".
int64_t status_bytes(const std::string& process, const std::string& key) {
  std::ifstream status("/proc/" + process + "/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with(key)) return std::stoll(line.substr(key.size())) * 1024;
  }
  return 0;
}

}  // namespace

class TimelineListener : public tap::AllocationListener {
 public:
  TimelineListener(TraceWriter& writer, int64_t min_change) : writer_(writer), min_change_(min_change) {}
  void on_allocation(const tap::AllocationEvent& event) override {
    if (std::abs(event.current_bytes - last_.load(std::memory_order_relaxed)) >= min_change_)
      sample(event.current_bytes);
  }
  void sample(int64_t bytes) {
    last_.store(bytes, std::memory_order_relaxed);
    writer_.counter("memory cpu [MiB]", trace_now_us(), static_cast<double>(bytes) / (1 << 20));
  }

 private:
  TraceWriter& writer_;
  const int64_t min_change_;
  std::atomic<int64_t> last_{0};
};

std::string MemoryStats::to_string() const {
  const auto text = [](int64_t bytes) { return format_bytes(static_cast<double>(bytes)); };
  return "allocated " + text(current_bytes) + " (peak " + text(peak_bytes) + "), reserved " + text(reserved_bytes) +
         ", resident on the host " + text(rss_bytes) + " (peak " + text(peak_rss_bytes) + ")";
}

MemoryStats memory_stats(c10::Device device) {
  const Level level = peaks().level(with_index(device));
  return {level.current,
          level.peak,
          level.allocations,
          level.reserved,
          status_bytes("self", "VmRSS:"),
          status_bytes("self", "VmHWM:")};
}

int64_t peak_rss_of(pid_t process) {
  return status_bytes(std::to_string(process), "VmHWM:");
}

void reset_peak(c10::Device device) {
  peaks().reset(with_index(device));
  std::ofstream("/proc/self/clear_refs") << "5";  // restarts VmHWM if the kernel allows it
}

struct MemoryScope::Entry {
  int64_t peak = 0;
};

MemoryScope::MemoryScope(c10::Device device) : device_(with_index(device)), entry_(std::make_unique<Entry>()) {
  start_bytes_ = peaks().open(device_, &entry_->peak).current;
}

MemoryScope::~MemoryScope() {
  peaks().close(device_, &entry_->peak);
}

int64_t MemoryScope::peak_bytes() const {
  return peaks().read(device_, &entry_->peak);
}

int64_t MemoryScope::net_bytes() const {
  return read_level(device_).current - start_bytes_;
}

struct MemoryTimeline::State {
  TraceWriter& writer;
  c10::Device device;
  std::shared_ptr<TimelineListener> listener;
  std::unique_ptr<tap::AllocationGuard> guard;
};

MemoryTimeline::MemoryTimeline(TraceWriter& writer, const Options& options)
    : state_(new State{writer, with_index(options.device), nullptr, nullptr}) {
  sample();
  if (!state_->device.is_cpu()) return;
  state_->listener = std::make_shared<TimelineListener>(writer, std::max<int64_t>(1, options.min_change_bytes));
  state_->listener->sample(read_level(state_->device).current);
  state_->guard = std::make_unique<tap::AllocationGuard>(state_->listener);
}

MemoryTimeline::~MemoryTimeline() {
  state_->guard.reset();
}

void MemoryTimeline::sample() {
  const int64_t bytes = read_level(state_->device).current;
  if (state_->listener) return state_->listener->sample(bytes);
  state_->writer.counter("memory " + state_->device.str() + " [MiB]", trace_now_us(),
                         static_cast<double>(bytes) / (1 << 20));
}

}  // namespace bellows::inspect
