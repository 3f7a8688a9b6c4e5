#pragma once

#include <map>
#include <string>

namespace bellows::comm {

using Variables = std::map<std::string, std::string>;

/// Of this process.
Variables environment_variables();

/// What the program that started this process says about its place among the others.
struct LaunchEnvironment {
  std::string launcher;  ///< "none", "bellows launch", "torchrun" (PyTorchJob, too), "SLURM", "Open MPI"
  int rank = 0, world_size = 1;
  int local_rank = 0, local_world_size = 1;  ///< among the ranks of this machine
  std::string master_address = "127.0.0.1";  ///< where the store is that all ranks meet at
  int master_port = 0;
  bool launcher_has_store = false;  ///< the launcher serves the store; otherwise rank 0 does
  int restart_count = 0;            ///< how often all ranks were started anew
  std::string job;                  ///< its id as SLURM or torchrun gives it; "" where there is none
  std::string token;                ///< BELLOWS_TOKEN: the job's secret; "" where there is none
  std::string store_file;           ///< BELLOWS_STORE=file:///…: a file that all ranks see, instead of a port
};

/// Reads what torchrun, `bellows launch` and Kubernetes' PyTorchJob set (RANK, WORLD_SIZE, …), or SLURM's srun
/// (SLURM_PROCID, …), or Open MPI's mpirun (OMPI_COMM_WORLD_RANK, …), in this order. No such variables: a world of one.
/// MASTER_ADDR and MASTER_PORT are taken with any of them; without, SLURM's first node and a port made of the job's
/// number serve.
/// Throws: c10::ValueError – a variable that is missing, is no number, or contradicts another: which, found, expected
LaunchEnvironment read_launch_environment(const Variables& variables = environment_variables());

}  // namespace bellows::comm
