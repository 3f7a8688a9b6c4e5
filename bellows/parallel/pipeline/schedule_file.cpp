#include <c10/util/Exception.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <sstream>

#include "bellows/parallel/pipeline/schedule.h"

namespace bellows::parallel {

PipelineSchedule read_schedule(const std::string& path) {
  std::ifstream file(path);
  std::ostringstream text;
  TORCH_CHECK_VALUE(file && text << file.rdbuf(), "read_schedule: cannot read ", path, ": ", std::strerror(errno),
                    ". Expected a file that write_schedule() wrote.");
  return schedule_from_text(text.str());
}

void write_schedule(const PipelineSchedule& schedule, const std::string& path) {
  check_schedule(schedule);
  std::ofstream file(path);
  TORCH_CHECK_VALUE(file << to_text(schedule) << std::flush, "write_schedule: cannot write ", path, ": ",
                    std::strerror(errno), ".");
}

}  // namespace bellows::parallel
