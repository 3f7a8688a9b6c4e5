#include <ATen/Context.h>
#include <ATen/Version.h>
#include <sys/resource.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>

#include "bellows/core/stats.h"
#include "bellows/runtime/backend.h"
#include "bellows/system/machine.h"
#include "bellows/tap/saved_tensor_tap.h"
#include "cli/json_text.h"
#include "cli/options.h"
#include "cli/terminal.h"

namespace bellows::cli {

namespace {

enum class Health { ok, note, warning, failure };

struct Finding {
  std::string what;  ///< "threads"
  Health health = Health::ok;
  std::string found;  ///< "2 of 2 usable"
  std::string fix;    ///< what to do; "" if nothing
};

const char* health_word(Health health) {
  static constexpr const char* words[] = {"ok", "note", "warning", "failure"};
  return words[static_cast<int>(health)];
}

std::string environment(const char* name) {
  const char* value = std::getenv(name);
  return value ? value : "";
}

/// The version of the loaded library, from its own configuration text.
std::string loaded_libtorch() {
  const std::string text = at::show_config();
  const std::string key = "TORCH_VERSION=";
  const size_t start = text.find(key);
  if (start == std::string::npos) return "";
  return text.substr(start + key.size(), text.find_first_of(", \n", start) - start - key.size());
}

Finding check_libtorch(const Machine& machine) {
  const std::string loaded = loaded_libtorch();
  Finding finding{.what = "libtorch", .found = machine.libtorch + " in " + machine.libtorch_path};
  if (!loaded.empty() && !loaded.starts_with(machine.libtorch)) {
    finding.health = Health::failure;
    finding.found = "built with " + machine.libtorch + ", loaded " + loaded + " from " + machine.libtorch_path;
    finding.fix = "Build against the loaded libtorch, or remove the loaded libtorch from LD_LIBRARY_PATH.";
  } else if (!machine.libtorch.starts_with("2.11.")) {
    finding.health = Health::warning;
    finding.fix = "Bellows is tested with 2.11.0. Run script/test before you rely on another version.";
  }
  return finding;
}

Finding check_autograd_engine() {
  if (!tap::foreign_autograd_engine()) return {.what = "autograd engine", .found = "the engine of libtorch"};
  return {.what = "autograd engine",
          .health = Health::warning,
          .found = "replaced by another engine, because Python's torch runs in this process",
          .fix = "Techniques that change saved tensors do not work in this process. Run without Python's torch."};
}

Finding check_vector_units(const Machine& machine) {
  const std::string capability = at::get_cpu_capability(), forced = environment("ATEN_CPU_CAPABILITY");
  Finding finding{.what = "vector kernels", .found = capability};
  if (!forced.empty()) {
    finding.health = Health::warning;
    finding.found += ", forced by ATEN_CPU_CAPABILITY=" + forced;
    finding.fix = "Unset ATEN_CPU_CAPABILITY so that libtorch uses its fastest kernels.";
  } else if (capability == "DEFAULT" && !machine.has("asimd")) {
    finding.health = Health::warning;
    finding.fix = "This processor has no AVX2, so training is much slower than on others.";
  }
  return finding;
}

Finding check_threads(const Machine& machine) {
  Finding finding{.what = "threads",
                  .found = c10::str(machine.torch_threads, " per operator, ", machine.usable_threads(),
                                    " can run at the same time")};
  if (machine.torch_threads > machine.usable_threads()) {
    finding.health = Health::warning;
    finding.fix = c10::str("More threads than usable processors slow each other down. Set OMP_NUM_THREADS=",
                           machine.usable_threads(), ".");
  } else if (machine.torch_threads < std::min(machine.usable_threads(), machine.cores)) {
    finding.health = Health::note;
    finding.fix = "Some cores stay idle. If this is not intended, unset OMP_NUM_THREADS.";
  }
  return finding;
}

Finding check_spinning(const Machine& machine) {
  Finding finding{.what = "OpenMP spinning"};
  const std::string spins = environment("GOMP_SPINCOUNT"), policy = environment("OMP_WAIT_POLICY");
  if (!spins.empty() || !policy.empty()) {
    finding.found = spins.empty() ? "OMP_WAIT_POLICY=" + policy : "GOMP_SPINCOUNT=" + spins;
    return finding;
  }
  double load = 0;
  getloadavg(&load, 1);
  const bool shared = load > 0.5 * static_cast<double>(machine.usable_threads());
  finding.health = shared ? Health::warning : Health::note;
  finding.found = c10::str("GOMP_SPINCOUNT is not set; system load ", number("%.1f", load));
  finding.fix =
      "If other programs use the cores, spinning threads make steps take 5× to 10× as long. Set GOMP_SPINCOUNT=20000 "
      "for your own programs. `bellows train` and `bellows ladder` set it themselves.";
  return finding;
}

Finding check_memory(const Machine& machine) {
  Finding finding{.what = "memory",
                  .found = format_bytes(static_cast<double>(machine.memory_available_bytes)) + " free of " +
                           format_bytes(static_cast<double>(machine.memory_bytes))};
  if (machine.memory_available_bytes < (int64_t{1} << 30)) {
    finding.health = Health::warning;
    finding.fix = "Less than 1 GiB is free. Close other programs, or use smaller batches.";
  }
  return finding;
}

Finding check_open_files() {
  rlimit limit{};
  getrlimit(RLIMIT_NOFILE, &limit);
  Finding finding{.what = "open files", .found = c10::str(limit.rlim_cur, " allowed")};
  if (limit.rlim_cur < 1024) {
    finding.health = Health::warning;
    finding.fix = "Each shard needs an open file. Raise the limit: ulimit -n 4096.";
  }
  return finding;
}

Finding check_disk(const std::string& label, const std::string& path, double enough) {
  struct statvfs disk {};
  if (statvfs(path.c_str(), &disk) != 0)
    return {.what = label, .health = Health::note, .found = path + " cannot be examined"};
  const double free = static_cast<double>(disk.f_bavail) * static_cast<double>(disk.f_frsize);
  Finding finding{.what = label, .found = format_bytes(free) + " free in " + path};
  if (free < enough) {
    finding.health = Health::warning;
    finding.fix = "Less than " + format_bytes(enough) + " is free, so checkpoints may not fit.";
  }
  if (access(path.c_str(), W_OK) != 0) {
    finding.health = Health::note;
    finding.found += ", not writable";
    finding.fix = "Pass a folder to `--out` that you can write to.";
  }
  return finding;
}

std::vector<std::pair<std::string, bool>> features(const Machine& machine) {
  return {{"mkldnn", at::hasMKLDNN() && at::globalContext().userEnabledMkldnn()},
          {"mkl", at::hasMKL()},
          {"openmp", at::hasOpenMP()},
          {"avx2", machine.has("avx2")},
          {"avx512", machine.has("avx512f")},
          {"avx512_bf16", machine.has("avx512_bf16")},
          {"amx_bf16", machine.has("amx_bf16")},
          {"amx_int8", machine.has("amx_int8")},
          {"cuda", at::hasCUDA()}};
}

std::vector<Finding> examine(const Machine& machine) {
  std::vector<Finding> findings = {check_libtorch(machine), check_vector_units(machine), check_threads(machine),
                                   check_spinning(machine), check_memory(machine),       check_open_files(),
                                   check_autograd_engine()};
  findings.push_back(check_disk("disk", ".", 1 << 30));
  if (!at::hasMKLDNN()) {
    findings.push_back({.what = "oneDNN",
                        .health = Health::warning,
                        .found = "not included in this libtorch",
                        .fix = "Convolutions and bf16 are slow without it. Use an official libtorch or wheel."});
  }
  return findings;
}

std::string doctor_json(const Machine& machine, const std::vector<Finding>& findings) {
  nlohmann::ordered_json json;
  json["machine"] = {{"cpu", machine.cpu},
                     {"cores", machine.cores},
                     {"threads", machine.hardware_threads},
                     {"cpu_quota", machine.cpu_quota},
                     {"isa", machine.isa},
                     {"memory_bytes", machine.memory_bytes},
                     {"memory_available_bytes", machine.memory_available_bytes},
                     {"os", machine.os}};
  json["libtorch"] = {
      {"version", machine.libtorch}, {"path", machine.libtorch_path}, {"threads", machine.torch_threads}};
  for (const auto& [name, present] : features(machine)) json["features"][name] = present;
  json["backends"] = nlohmann::ordered_json::array();
  for (const runtime::InferenceBackend* one : runtime::backends()) {
    const std::string missing = one->missing();
    json["backends"].push_back(
        {{"name", one->name()}, {"available", missing.empty()}, {"version", one->version()}, {"missing", missing}});
  }
  json["findings"] = nlohmann::ordered_json::array();
  for (const Finding& finding : findings) {
    json["findings"].push_back({{"what", finding.what},
                                {"health", health_word(finding.health)},
                                {"found", finding.found},
                                {"fix", finding.fix}});
  }
  return json_text(json);
}

void print_lines(Terminal& terminal, const std::string& label, const std::string& text, Colour colour = Colour::none) {
  std::string head = terminal.paint(colour, pad_right(label, 18));
  for (const std::string& line : wrap(text, 61)) {
    terminal.print(head + line + "\n");
    head = std::string(18, ' ');
  }
}

/// One line for each inference back end. A missing one is no problem of the machine.
void print_backends(Terminal& terminal) {
  terminal.print("\nInference back ends:\n");
  for (const runtime::InferenceBackend* one : runtime::backends()) {
    const std::string missing = one->missing();
    if (missing.empty())
      print_lines(terminal, one->name(), "version " + one->version(), Colour::green);
    else
      print_lines(terminal, one->name(), "not available: " + missing);
  }
}

void print_report(const Machine& machine, const std::vector<Finding>& findings) {
  Terminal terminal;
  print_lines(terminal, "machine",
              c10::str(machine.cpu, ", ", machine.cores, " cores, ", machine.hardware_threads, " threads"));
  print_lines(terminal, "system", machine.os);
  std::string present, absent;
  for (const auto& [name, there] : features(machine)) {
    std::string& list = there ? present : absent;
    list += (list.empty() ? "" : ", ") + name;
  }
  print_lines(terminal, "features", present + (absent.empty() ? "" : " (not available: " + absent + ")"));
  static constexpr Colour colours[] = {Colour::green, Colour::none, Colour::yellow, Colour::red};
  int to_fix = 0;
  for (const Finding& finding : findings) {
    const std::string mark = finding.health == Health::ok ? "" : std::string(health_word(finding.health)) + ": ";
    print_lines(terminal, finding.what, mark + finding.found + (finding.fix.empty() ? "" : ". " + finding.fix),
                colours[static_cast<int>(finding.health)]);
    to_fix += finding.health >= Health::warning;
  }
  print_backends(terminal);
  terminal.print(to_fix == 0 ? "\nNo problems found.\n"
                             : c10::str("\n", to_fix, to_fix == 1 ? " problem" : " problems", " to fix.\n"));
}

}  // namespace

int run_doctor(const DoctorArguments& arguments) {
  const Machine machine = this_machine();
  const std::vector<Finding> findings = examine(machine);
  if (arguments.json != "-") print_report(machine, findings);
  write_json(arguments.json, doctor_json(machine, findings));
  for (const Finding& finding : findings) {
    if (finding.health == Health::failure) return exit_failed;
  }
  return exit_done;
}

}  // namespace bellows::cli
