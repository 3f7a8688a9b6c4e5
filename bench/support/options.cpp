#include <cstdio>
#include <cstdlib>
#include <exception>
#include <optional>

#include "bellows/core/error.h"
#include "bellows/system/openmp_wait_policy.h"
#include "bench/support/bench.h"
#include "bench/support/quick.h"

namespace bellows::bench {

namespace {

[[noreturn]] void usage_error(const std::string& message) {
  std::fprintf(stderr, "%s Run with --help.\n", message.c_str());
  std::exit(2);
}

void print_help(const char* program, std::string_view about, const std::map<std::string, std::string>& extra) {
  std::printf("usage: %s [--quick] [--json FILE] [--peer-python PATH] [--data FOLDER]\n\n%.*s\n\n", program,
              static_cast<int>(about.size()), about.data());
  std::printf(
      "  --quick            run a short version that ends within 60 seconds\n  --json FILE        write the rows as "
      "JSON to FILE\n");
  std::printf("  --peer-python PATH run the Python peers with this interpreter (default: no Python peers)\n");
  std::printf("  --data FOLDER      folder of the digits (default: data/digits)\n");
  for (const auto& [key, value] : extra) std::printf("  --%-16s (default: %s)\n", key.c_str(), value.c_str());
}

}  // namespace

Options parse_options(int argc, char** argv, std::string_view about, std::map<std::string, std::string> extra) {
  set_openmp_wait_policy(argv);
  Options options;
  options.data = source_dir() + "/data/digits";
  options.extra = std::move(extra);
  std::map<std::string, std::string*> values = {
      {"--json", &options.json}, {"--peer-python", &options.peer_python}, {"--data", &options.data}};
  std::vector<std::string> known = {"--quick", "--json", "--peer-python", "--data", "--help"};
  for (auto& [key, value] : options.extra) {
    known.push_back("--" + key);
    values["--" + key] = &value;
  }
  for (int i = 1; i < argc; ++i) {
    const std::string flag = argv[i];
    if (flag == "--help" || flag == "-h") {
      print_help(argv[0], about, options.extra);
      std::exit(0);
    }
    if (flag == "--quick") {
      options.quick = true;
      continue;
    }
    const auto value = values.find(flag);
    if (value == values.end()) usage_error("unknown option \"" + flag + "\"." + did_you_mean(flag, known));
    if (++i == argc) usage_error(flag + " needs a value.");
    *value->second = argv[i];
  }
  return options;
}

std::string source_dir() {
  return BELLOWS_SOURCE_DIR;
}

int bench_main(int argc, char** argv, std::string_view about, const std::function<int(const Options&)>& program,
               std::map<std::string, std::string> extra) {
  const Options options = parse_options(argc, argv, about, std::move(extra));
  try {
    std::optional<QuickGuard> guard;
    if (options.quick) guard.emplace();
    return program(options);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "error: %s\n", user_message(error).c_str());
    return 1;
  }
}

}  // namespace bellows::bench
