#include "bellows/comm/launch/launch_environment.h"

#include <c10/util/Exception.h>
#include <unistd.h>

#include <charconv>
#include <functional>
#include <limits>
#include <optional>

#include "bellows/comm/launch/node_list.h"

namespace bellows::comm {

namespace {

/// The names of the variables that a launcher sets.
struct Names {
  const char *launcher, *rank, *world_size, *local_rank, *local_world_size;
};

constexpr Names torchrun_names{"torchrun", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"};
constexpr Names slurm_names{"SLURM", "SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID", "SLURM_NTASKS_PER_NODE"};
constexpr Names mpi_names{"Open MPI", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK",
                          "OMPI_COMM_WORLD_LOCAL_SIZE"};

std::optional<std::string> find(const Variables& variables, const char* name) {
  const auto found = variables.find(name);
  if (found == variables.end() || found->second.empty()) return std::nullopt;
  return found->second;
}

/// Returns a number in [low, high], or nothing.
std::optional<int> parse(std::string_view text, int low, int high) {
  int number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  const bool whole = error == std::errc() && end == text.data() + text.size() && number >= low && number <= high;
  return whole ? std::optional(number) : std::nullopt;
}

int number_of(const Variables& variables, const char* name, int low, std::optional<int> otherwise = {},
              int high = std::numeric_limits<int>::max()) {
  const auto text = find(variables, name);
  const auto number = text ? parse(*text, low, high) : otherwise;
  TORCH_CHECK_VALUE(
      number || !text, "init: the environment has ", name, "=\"", *text, "\", expected a number ",
      high == std::numeric_limits<int>::max() ? c10::str("of at least ", low) : c10::str("in [", low, ", ", high, "]"),
      ".");
  TORCH_CHECK_VALUE(
      number, "init: the environment variable ", name,
      " is not set, but other variables of the launcher are. Start with `bellows launch`, or set the variable.");
  return *number;
}

void read_ranks(const Variables& variables, const Names& names, LaunchEnvironment& place) {
  place.launcher = names.launcher;
  place.world_size = number_of(variables, names.world_size, 1);
  place.rank = number_of(variables, names.rank, 0);
  TORCH_CHECK_VALUE(place.rank < place.world_size, "init: the environment has ", names.rank, "=", place.rank, " and ",
                    names.world_size, "=", place.world_size, ", expected ranks from 0 to ", place.world_size - 1, ".");
  place.local_rank = number_of(variables, names.local_rank, 0, 0);
  place.local_world_size = number_of(variables, names.local_world_size, 1, place.local_rank + 1);
  TORCH_CHECK_VALUE(place.local_rank < place.local_world_size, "init: the environment has ", names.local_rank, "=",
                    place.local_rank, " and ", names.local_world_size, "=", place.local_world_size,
                    ", expected local ranks from 0 to ", place.local_world_size - 1, ".");
  TORCH_CHECK_VALUE(place.local_world_size <= place.world_size, "init: the environment has ", names.local_world_size,
                    "=", place.local_world_size, " and ", names.world_size, "=", place.world_size,
                    ", expected at most as many ranks on this machine as in total.");
}

/// A port that is the same for all ranks of a job and differs between most jobs of a machine.
int port_of(const std::string& job) {
  uint32_t hash = 2166136261u;  // FNV-1a
  for (const char letter : job) hash = (hash ^ static_cast<unsigned char>(letter)) * 16777619u;
  return 20000 + static_cast<int>(hash % 10000);
}

/// Number of tasks on this node, from SLURM's list of tasks by node, such as "4(x2),3".
int slurm_tasks_of_this_node(const Variables& variables, int otherwise) {
  constexpr const char* name = "SLURM_STEP_TASKS_PER_NODE";
  constexpr int most = 1 << 20;
  const auto text = find(variables, name);
  const int node = number_of(variables, "SLURM_NODEID", 0, 0);
  if (!text) return otherwise;
  int64_t first = 0;
  for (size_t at = 0; at <= text->size();) {
    const std::string_view part = std::string_view(*text).substr(at, text->find(',', at) - at);
    const size_t times = part.find("(x");
    const auto tasks = parse(part.substr(0, times), 1, most);
    std::optional<int> nodes = 1;
    if (times != part.npos)
      nodes = part.ends_with(')') ? parse(part.substr(times + 2, part.size() - times - 3), 1, most) : std::nullopt;
    TORCH_CHECK_VALUE(tasks && nodes, "init: the environment has ", name, "=\"", *text,
                      "\", expected the tasks of each node such as 4(x2),3, got \"", part, "\".");
    first += *nodes;
    if (node < first) return *tasks;
    at += part.size() + 1;
  }
  return otherwise;
}

void read_slurm(const Variables& variables, LaunchEnvironment& place) {
  Variables counted = variables;
  const int local_rank = number_of(variables, "SLURM_LOCALID", 0, 0);
  counted["SLURM_NTASKS_PER_NODE"] = std::to_string(slurm_tasks_of_this_node(variables, local_rank + 1));
  read_ranks(counted, slurm_names, place);
  auto nodes = find(variables, "SLURM_STEP_NODELIST");
  if (!nodes) nodes = find(variables, "SLURM_JOB_NODELIST");
  if (nodes) {
    const auto names = expand_node_list(*nodes);
    if (names.size() > 1) place.master_address = names.front();
  }
  const std::string job = find(variables, "SLURM_JOB_ID").value_or("");
  TORCH_CHECK_VALUE(job.find_first_not_of("0123456789") == job.npos, "init: the environment has SLURM_JOB_ID=\"", job,
                    "\", expected a number.");
  place.job = job + "." + find(variables, "SLURM_STEP_ID").value_or("");
  place.master_port = port_of(place.job);
}

void read_mpi(const Variables& variables, LaunchEnvironment& place) {
  read_ranks(variables, mpi_names, place);
  TORCH_CHECK_VALUE(place.local_world_size == place.world_size || find(variables, "MASTER_ADDR"),
                    "init: mpirun started ", place.world_size, " ranks, ", place.local_world_size,
                    " of them on this machine, and MASTER_ADDR is not set. Expected the address of rank 0's machine: "
                    "mpirun -x MASTER_ADDR=… -x MASTER_PORT=….");
  place.master_port = port_of(find(variables, "OMPI_MCA_ess_base_jobid")
                                  .value_or(find(variables, "PMIX_NAMESPACE").value_or(std::to_string(getppid()))));
}

void read_torchrun(const Variables& variables, LaunchEnvironment& place) {
  read_ranks(variables, torchrun_names, place);
  place.launcher = find(variables, "BELLOWS_LAUNCHER").value_or(place.launcher);
  if (place.world_size > 1 && !find(variables, "BELLOWS_STORE")) {
    for (const char* name : {"MASTER_ADDR", "MASTER_PORT"}) {
      TORCH_CHECK_VALUE(find(variables, name), "init: the environment has WORLD_SIZE=", place.world_size,
                        ", but the variable ", name,
                        " is not set, so rank 0 cannot be found. Start with `bellows launch`, or set the variable.");
    }
  }
  place.job = find(variables, "TORCHELASTIC_RUN_ID").value_or("");
  place.restart_count = number_of(variables, "TORCHELASTIC_RESTART_COUNT", 0, 0);
  if (find(variables, "BELLOWS_MEMBER")) place.member = number_of(variables, "BELLOWS_MEMBER", 0);
  place.launcher_has_store = find(variables, "TORCHELASTIC_USE_AGENT_STORE") == "True";
}

}  // namespace

Variables environment_variables() {
  Variables variables;
  for (char** entry = environ; *entry; ++entry) {
    const std::string text = *entry;
    const size_t equals = text.find('=');
    if (equals != text.npos) variables[text.substr(0, equals)] = text.substr(equals + 1);
  }
  return variables;
}

LaunchEnvironment read_launch_environment(const Variables& variables) {
  LaunchEnvironment place{.launcher = "none"};
  if (find(variables, "RANK") || find(variables, "WORLD_SIZE")) {
    read_torchrun(variables, place);
  } else if (find(variables, "OMPI_COMM_WORLD_RANK") || find(variables, "OMPI_COMM_WORLD_SIZE")) {
    read_mpi(variables, place);  // before SLURM, whose variables belong to the step that runs mpirun
  } else if (find(variables, "SLURM_PROCID") && find(variables, "SLURM_STEP_ID")) {
    read_slurm(variables, place);  // a batch script has no step and runs as one process
  }
  place.master_address = find(variables, "MASTER_ADDR").value_or(place.master_address);
  place.master_port = number_of(variables, "MASTER_PORT", 1, place.master_port, 65535);
  place.token = find(variables, "BELLOWS_TOKEN").value_or("");
  if (const auto store = find(variables, "BELLOWS_STORE")) {
    TORCH_CHECK_VALUE(store->starts_with("file:///"), "init: the environment has BELLOWS_STORE=\"", *store,
                      "\", expected file:///PATH, a file that all ranks can write to.");
    place.store_file = store->substr(7);
  }
  return place;
}

}  // namespace bellows::comm
