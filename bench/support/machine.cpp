#include <ATen/Parallel.h>
#include <ATen/Version.h>
#include <torch/headeronly/version.h>
#include <unistd.h>

#include <ctime>
#include <fstream>
#include <sstream>

#include "bellows/core/stats.h"
#include "bench/support/bench.h"

namespace bellows::bench {

namespace {

std::string cpuinfo(const std::string& key) {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    const size_t colon = line.find(':');
    if (line.rfind(key, 0) == 0 && colon != std::string::npos && colon + 2 <= line.size())
      return line.substr(colon + 2);
  }
  return "unknown";
}

// Of the many flags, those that decide which kernels run.
std::string simd_flags() {
  std::istringstream words(cpuinfo("flags"));
  std::string result;
  for (std::string word; words >> word;) {
    if (word.rfind("avx", 0) == 0 || word.rfind("amx", 0) == 0 || word == "fma" || word == "sse4_2") {
      result += (result.empty() ? "" : " ") + word;
    }
  }
  return result.empty() ? "unknown" : result;
}

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
  const double memory = static_cast<double>(sysconf(_SC_PHYS_PAGES)) * static_cast<double>(sysconf(_SC_PAGE_SIZE));
  return {{"cpu", cpuinfo("model name")},
          {"cpu_family_model", cpuinfo("cpu family") + "/" + cpuinfo("model\t")},
          {"cores", std::to_string(sysconf(_SC_NPROCESSORS_ONLN))},
          {"cpu_flags", simd_flags()},
          {"cpu_capability", at::get_cpu_capability()},
          {"memory", format_bytes(memory)},
          {"libtorch", TORCH_VERSION},
          {"compiler", __VERSION__},
          {"threads", std::to_string(at::get_num_threads())},
          {"GOMP_SPINCOUNT", environment("GOMP_SPINCOUNT")},
          {"load", load_average()},
          {"date", utc_now()}};
}

}  // namespace bellows::bench
