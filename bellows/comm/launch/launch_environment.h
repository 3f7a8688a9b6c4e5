#pragma once

#include <map>
#include <string>

namespace bellows::comm {

using Variables = std::map<std::string, std::string>;

/// Returns the environment variables of this process.
Variables environment_variables();

/// The role of this process in its job, as set by the launcher.
struct LaunchEnvironment {
  std::string launcher;  ///< "none", "bellows launch", "torchrun" (also for PyTorchJob), "SLURM" or "Open MPI"
  int rank = 0, world_size = 1;
  int local_rank = 0, local_world_size = 1;  ///< rank and number of ranks within this machine
  /// Address of the store at which all ranks meet.
  std::string master_address = "127.0.0.1";
  int master_port = 0;
  bool launcher_has_store = false;  ///< whether the launcher serves the store; if not, rank 0 serves it
  int restart_count = 0;            ///< number of times that all ranks were restarted
  int member = -1;                  ///< ID of this process if the launcher replaces lost ranks (ElasticWorld)
  std::string job;                  ///< JOB.STEP of SLURM, or the job ID of torchrun; empty if there is none
  std::string token;                ///< BELLOWS_TOKEN, the secret of the job; empty if there is none
  /// BELLOWS_STORE=file:///…: a file that all ranks can access, used instead of a port.
  std::string store_file;
};

/// Reads the variables of the launcher. Three sets of variables are tried in this order: RANK, WORLD_SIZE, … (torchrun,
/// `bellows launch`, PyTorchJob); OMPI_COMM_WORLD_RANK, … (Open MPI); SLURM_PROCID, … (srun). If no set is present, the
/// result is a world of one rank.
///
/// With every launcher, MASTER_ADDR and MASTER_PORT override the address. With srun, if they are not set, the port is
/// derived from the job and the step. If the step has several nodes, the address is that of its first node.
/// Throws: c10::ValueError if a variable is missing, is not a number or contradicts another variable. The message
///         states the name, the value found and the value expected
LaunchEnvironment read_launch_environment(const Variables& variables = environment_variables());

}  // namespace bellows::comm
