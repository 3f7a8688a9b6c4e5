#include <ATen/Version.h>

#include <cstdlib>
#include <ctime>

#include "bellows/core/stats.h"
#include "bellows/system/machine.h"
#include "bench/support/bench.h"

namespace bellows::bench {

namespace {

std::string utc_now() {
  char text[32];
  const std::time_t now = std::time(nullptr);
  std::tm parts{};
  gmtime_r(&now, &parts);
  std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", &parts);
  return text;
}

std::string environment(const char* name) {
  const char* value = std::getenv(name);
  return value ? value : "not set";
}

std::string load_average() {
  double load = 0;
  return getloadavg(&load, 1) == 1 ? std::to_string(load).substr(0, 4) : "unknown";
}

}  // namespace

std::vector<std::pair<std::string, std::string>> machine_info() {
  const Machine machine = this_machine();
  std::string flags;
  for (const std::string& name : machine.isa) flags += (flags.empty() ? "" : " ") + name;
  return {{"cpu", machine.cpu},
          {"cpu_family_model", machine.cpu_family_model},
          {"cores", std::to_string(machine.hardware_threads)},
          {"cpu_flags", flags},
          {"cpu_capability", at::get_cpu_capability()},
          {"memory", format_bytes(static_cast<double>(machine.memory_bytes))},
          {"libtorch", machine.libtorch},
          {"compiler", __VERSION__},
          {"threads", std::to_string(machine.torch_threads)},
          {"GOMP_SPINCOUNT", environment("GOMP_SPINCOUNT")},
          {"load", load_average()},
          {"date", utc_now()}};
}

}  // namespace bellows::bench
