#pragma once

#include <map>
#include <string>

namespace bellows::comm {

using Variables = std::map<std::string, std::string>;

/// The environment variables of this process.
Variables environment_variables();

/// The place of this process in its job, as set by the launcher.
struct LaunchEnvironment {
  std::string launcher;  ///< "none", "bellows launch", "torchrun" (PyTorchJob, too), "SLURM", "Open MPI"
  int rank = 0, world_size = 1;
  int local_rank = 0, local_world_size = 1;  ///< rank and number of ranks within this machine
  /// address of the store at which all ranks meet
  std::string master_address = "127.0.0.1";
  int master_port = 0;
  bool launcher_has_store = false;  ///< whether the launcher serves the store; otherwise rank 0 does
  int restart_count = 0;            ///< number of times that all ranks were restarted
  std::string job;                  ///< job id from SLURM or torchrun; "" if there is none
  std::string token;                ///< BELLOWS_TOKEN, the job's secret; "" if there is none
  std::string store_file;           ///< BELLOWS_STORE=file:///…: a file that all ranks can access, instead of a port
};

/// Reads the variables of the launcher. The first match of these counts: torchrun, `bellows launch` and Kubernetes'
/// PyTorchJob (RANK, WORLD_SIZE, …), Open MPI's mpirun (OMPI_COMM_WORLD_RANK, …), SLURM's srun (SLURM_PROCID, …).
/// Without any of them, it returns a world of one.
///
/// MASTER_ADDR and MASTER_PORT override the address in all cases. Without them, SLURM's first node and a port derived
/// from the job id are used.
/// Throws: c10::ValueError if a variable is missing, is not a number or contradicts another (the message has its name,
///         the value found and the value expected)
LaunchEnvironment read_launch_environment(const Variables& variables = environment_variables());

}  // namespace bellows::comm
