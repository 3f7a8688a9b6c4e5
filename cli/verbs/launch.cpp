#include <c10/util/StringUtil.h>

#include <cstdio>

#include "bellows/comm/launch/launch_environment.h"
#include "bellows/comm/launch/launcher.h"
#include "bellows/core/error.h"
#include "cli/options.h"
#include "cli/terminal.h"
#include "cli/usable.h"

namespace bellows::cli {

namespace {

void print_rank_line(int rank, bool error, std::string_view line) {
  const std::string text = c10::str("[rank ", rank, "] ", line, "\n");
  if (error) {
    std::fwrite(text.data(), 1, text.size(), stderr);
  } else {
    write_result(text);  // an error must not end the ranks; run_launch() reports it
  }
}

void print_launch_failure(const comm::LaunchResult& result) {
  const std::string who = result.failed_rank < 0 ? "" : "rank " + std::to_string(result.failed_rank) + " ";
  if (result.asked_for) return print_error("stopped on request: " + who + result.how + ".");
  if (result.last_lines.empty()) return print_error(who + result.how + " and printed nothing.");
  print_error(who + result.how + ". Its last lines:");
  for (const std::string& line : result.last_lines) std::fprintf(stderr, "  %s\n", line.c_str());
}

}  // namespace

void check_alone(const std::string& verb, const std::string& reason, const std::string& advice) {
  const comm::LaunchEnvironment place = comm::read_launch_environment();
  if (place.world_size == 1) return;
  throw UsageError(c10::str(verb, ": the command must run as a single process", reason, ", but ", place.launcher,
                            " started it as rank ", place.rank, " of ", place.world_size, ". ", advice));
}

int run_launch(const LaunchArguments& arguments) {
  usable([&] { comm::check_launch(arguments.options); });
  const comm::LaunchResult result = comm::launch(arguments.options, print_rank_line);
  if (result.exit_code != 0) print_launch_failure(result);
  const int error = write_result("");
  if (error == 0) return result.exit_code;
  print_error("cannot write the output of the ranks to standard output: " + errno_message(error) + ".");
  return result.exit_code == 0 ? exit_failed : result.exit_code;
}

}  // namespace bellows::cli
