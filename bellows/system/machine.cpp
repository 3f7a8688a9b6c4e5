#include "bellows/system/machine.h"

#include <ATen/Parallel.h>
#include <dlfcn.h>
#include <sched.h>
#include <sys/utsname.h>
#include <torch/version.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <fstream>
#include <iterator>
#include <set>
#include <sstream>

namespace bellows {

namespace {

std::string after_colon(const std::string& line) {
  const size_t at = line.find_first_not_of(" \t", line.find(':') + 1);
  return at == std::string::npos ? "" : line.substr(at);
}

/// Model name, physical cores and instruction sets from /proc/cpuinfo.
void read_cpuinfo(Machine& machine) {
  static constexpr std::array wanted = {"sse4_2",      "avx2",     "fma",      "avx512f", "avx512_vnni", "avx512_bf16",
                                        "avx512_fp16", "amx_bf16", "amx_int8", "asimd",   "bf16",        "sve"};
  std::ifstream file("/proc/cpuinfo");
  std::set<std::pair<std::string, std::string>> cores;
  std::string line, package = "0", family;
  while (std::getline(file, line)) {
    if (line.starts_with("model name") && machine.cpu.empty()) machine.cpu = after_colon(line);
    if (line.starts_with("cpu family")) family = after_colon(line);
    if (line.starts_with("model\t")) machine.cpu_family_model = family + "/" + after_colon(line);
    if (line.starts_with("physical id")) package = after_colon(line);
    if (line.starts_with("core id")) cores.emplace(package, after_colon(line));
    if ((line.starts_with("flags") || line.starts_with("Features")) && machine.isa.empty()) {
      std::istringstream words(after_colon(line));
      const std::set<std::string> flags{std::istream_iterator<std::string>(words), {}};
      for (const char* name : wanted) {
        if (flags.contains(name)) machine.isa.emplace_back(name);
      }
    }
  }
  machine.cores = static_cast<int64_t>(cores.size());
}

void read_memory(Machine& machine) {
  std::ifstream file("/proc/meminfo");
  std::string key, unit;
  for (int64_t kib = 0; file >> key >> kib; std::getline(file, unit)) {
    if (key == "MemTotal:") machine.memory_bytes = kib * 1024;
    if (key == "MemAvailable:") machine.memory_available_bytes = kib * 1024;
  }
  int64_t limit = 0;
  if (std::ifstream("/sys/fs/cgroup/memory.max") >> limit && limit > 0) {  // "max" does not parse: no limit
    machine.memory_bytes = std::min(machine.memory_bytes, limit);
    int64_t used = 0;
    if (std::ifstream("/sys/fs/cgroup/memory.current") >> used) {
      machine.memory_available_bytes = std::min(machine.memory_available_bytes, std::max<int64_t>(0, limit - used));
    }
  }
}

std::string operating_system() {
  std::ifstream file("/etc/os-release");
  std::string line, name;
  while (std::getline(file, line)) {
    if (!line.starts_with("PRETTY_NAME=")) continue;
    name = line.substr(12);
    std::erase(name, '"');
  }
  utsname system{};
  if (uname(&system) != 0) return name;
  return name + (name.empty() ? "" : ", ") + system.sysname + " " + system.release + ", " + system.machine;
}

}  // namespace

bool Machine::has(const std::string& instruction_set) const {
  return std::find(isa.begin(), isa.end(), instruction_set) != isa.end();
}

bool Machine::has_bf16_arithmetic() const {
  return has("amx_bf16") || has("avx512_bf16") || has("bf16");
}

bool Machine::has_fast_bf16() const {
  const bool is_intel = cpu_family_model.starts_with("6/");
  return has("amx_bf16") || has("bf16") || (has("avx512_bf16") && !is_intel);
}

int64_t Machine::usable_threads() const {
  if (cpu_quota <= 0) return hardware_threads;
  return std::min(hardware_threads, std::max<int64_t>(1, std::llround(std::ceil(cpu_quota))));
}

Machine this_machine() {
  Machine machine;
  read_cpuinfo(machine);
  read_memory(machine);
  cpu_set_t allowed;
  if (sched_getaffinity(0, sizeof(allowed), &allowed) == 0) machine.hardware_threads = CPU_COUNT(&allowed);
  double quota_us = 0, period_us = 0;
  if (std::ifstream("/sys/fs/cgroup/cpu.max") >> quota_us >> period_us && period_us > 0)
    machine.cpu_quota = quota_us / period_us;
  if (machine.cores == 0) machine.cores = machine.hardware_threads;
  machine.os = operating_system();
  machine.libtorch = TORCH_VERSION;
  Dl_info library{};
  if (dladdr(reinterpret_cast<const void*>(&at::get_num_threads), &library) != 0 && library.dli_fname) {
    machine.libtorch_path = library.dli_fname;
  }
  machine.torch_threads = at::get_num_threads();
  return machine;
}

}  // namespace bellows
