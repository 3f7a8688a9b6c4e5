#include "bellows/comm/launch/launch_environment.h"

#include <gmock/gmock.h>

#include "tests/support/errors.h"

namespace bellows::comm {

namespace {

using testing::AllOf;
using testing::HasSubstr;

Variables with(Variables variables, const Variables& more) {
  for (const auto& [name, value] : more) variables[name] = value;
  return variables;
}

const Variables torchrun = {{"RANK", "3"},
                            {"WORLD_SIZE", "8"},
                            {"LOCAL_RANK", "1"},
                            {"LOCAL_WORLD_SIZE", "2"},
                            {"MASTER_ADDR", "10.0.0.1"},
                            {"MASTER_PORT", "29500"}};
const Variables slurm = {{"SLURM_JOB_ID", "77"},
                         {"SLURM_STEP_ID", "0"},
                         {"SLURM_PROCID", "5"},
                         {"SLURM_NTASKS", "7"},
                         {"SLURM_LOCALID", "1"},
                         {"SLURM_NODEID", "1"},
                         {"SLURM_STEP_TASKS_PER_NODE", "4,3"},
                         {"SLURM_JOB_NODELIST", "gpu[07-08]"}};
const Variables mpirun = {{"OMPI_COMM_WORLD_RANK", "2"},
                          {"OMPI_COMM_WORLD_SIZE", "4"},
                          {"OMPI_COMM_WORLD_LOCAL_RANK", "2"},
                          {"OMPI_COMM_WORLD_LOCAL_SIZE", "4"},
                          {"OMPI_MCA_ess_base_jobid", "12345"}};

std::string error_of(const Variables& variables) {
  return message_of([&] { read_launch_environment(variables); });
}

}  // namespace

TEST(LaunchEnvironment, NothingIsAWorldOfOne) {
  const auto place = read_launch_environment({{"HOME", "/root"}});
  EXPECT_EQ(place.launcher, "none");
  EXPECT_EQ(place.rank, 0);
  EXPECT_EQ(place.world_size, 1);
  EXPECT_EQ(place.local_world_size, 1);
}

TEST(LaunchEnvironment, Torchrun) {
  const auto place = read_launch_environment(
      with(torchrun,
           {{"TORCHELASTIC_RESTART_COUNT", "2"}, {"TORCHELASTIC_USE_AGENT_STORE", "True"}, {"BELLOWS_TOKEN", "t"}}));
  EXPECT_EQ(place.launcher, "torchrun");
  EXPECT_EQ(place.rank, 3);
  EXPECT_EQ(place.world_size, 8);
  EXPECT_EQ(place.local_rank, 1);
  EXPECT_EQ(place.local_world_size, 2);
  EXPECT_EQ(place.master_address, "10.0.0.1");
  EXPECT_EQ(place.master_port, 29500);
  EXPECT_EQ(place.restart_count, 2);
  EXPECT_TRUE(place.launcher_has_store);
  EXPECT_EQ(place.token, "t");
}

TEST(LaunchEnvironment, PyTorchJobOfKubernetes) {
  const auto place = read_launch_environment(
      {{"RANK", "1"}, {"WORLD_SIZE", "3"}, {"MASTER_ADDR", "job-master-0"}, {"MASTER_PORT", "23456"}});
  EXPECT_EQ(place.rank, 1);
  EXPECT_EQ(place.local_rank, 0);
  EXPECT_EQ(place.local_world_size, 1);
  EXPECT_EQ(place.master_address, "job-master-0");
  EXPECT_FALSE(place.launcher_has_store);
}

TEST(LaunchEnvironment, Slurm) {
  const auto place = read_launch_environment(slurm);
  EXPECT_EQ(place.launcher, "SLURM");
  EXPECT_EQ(place.rank, 5);
  EXPECT_EQ(place.world_size, 7);
  EXPECT_EQ(place.local_rank, 1);
  EXPECT_EQ(place.local_world_size, 3);
  EXPECT_EQ(place.master_address, "gpu07");
  EXPECT_GE(place.master_port, 20000);
  EXPECT_NE(place.master_port, read_launch_environment(with(slurm, {{"SLURM_STEP_ID", "1"}})).master_port);
  const auto own = read_launch_environment(with(slurm, {{"MASTER_ADDR", "10.1.1.1"}, {"MASTER_PORT", "4000"}}));
  EXPECT_EQ(own.master_address, "10.1.1.1");
  EXPECT_EQ(own.master_port, 4000);
  const auto equal =
      read_launch_environment(with(slurm, {{"SLURM_STEP_TASKS_PER_NODE", "4(x2)"}, {"SLURM_NTASKS", "8"}}));
  EXPECT_EQ(equal.local_world_size, 4);
  const auto alone = read_launch_environment(with(slurm, {{"SLURM_JOB_NODELIST", "gpu07"}}));
  EXPECT_EQ(alone.master_address, "127.0.0.1") << "one machine: nobody else has to reach it";
}

TEST(LaunchEnvironment, ABatchScriptOfSlurmIsOneProcess) {
  EXPECT_EQ(read_launch_environment({{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "4"}}).world_size, 1);
}

TEST(LaunchEnvironment, OpenMpi) {
  const auto place = read_launch_environment(mpirun);
  EXPECT_EQ(place.launcher, "Open MPI");
  const Variables within_srun = {{"SLURM_PROCID", "0"}, {"SLURM_STEP_ID", "0"}, {"SLURM_NTASKS", "1"}};
  EXPECT_EQ(read_launch_environment(with(mpirun, within_srun)).world_size, 4);
  EXPECT_EQ(place.rank, 2);
  EXPECT_EQ(place.world_size, 4);
  EXPECT_EQ(place.local_rank, 2);
  EXPECT_EQ(place.master_address, "127.0.0.1");
  EXPECT_EQ(place.master_port, read_launch_environment(with(mpirun, {{"OMPI_COMM_WORLD_RANK", "0"}})).master_port);
  EXPECT_THAT(error_of(with(mpirun, {{"OMPI_COMM_WORLD_LOCAL_SIZE", "3"}})), HasSubstr("MASTER_ADDR is not set"));
}

TEST(LaunchEnvironment, FileStore) {
  const auto place =
      read_launch_environment({{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"BELLOWS_STORE", "file:///shared/job7"}});
  EXPECT_EQ(place.store_file, "/shared/job7");
  EXPECT_THAT(error_of({{"BELLOWS_STORE", "/shared/job7"}}), HasSubstr("expected file:///PATH"));
}

TEST(LaunchEnvironment, SaysWhichVariableIsWrong) {
  EXPECT_THAT(error_of({{"RANK", "0"}}), HasSubstr("WORLD_SIZE is not set"));
  EXPECT_THAT(error_of({{"WORLD_SIZE", "2"}}), HasSubstr("RANK is not set"));
  EXPECT_THAT(error_of(with(torchrun, {{"MASTER_ADDR", ""}})), HasSubstr("MASTER_ADDR is not set"));
  EXPECT_THAT(error_of(with(torchrun, {{"MASTER_PORT", ""}})), HasSubstr("MASTER_PORT is not set"));
  EXPECT_THAT(error_of(with(torchrun, {{"RANK", "three"}})),
              HasSubstr("RANK=\"three\", expected a number of at least 0"));
  EXPECT_THAT(error_of(with(torchrun, {{"RANK", "-1"}})), HasSubstr("RANK=\"-1\""));
  EXPECT_THAT(error_of(with(torchrun, {{"RANK", "1 "}})), HasSubstr("RANK=\"1 \""));
  EXPECT_THAT(error_of(with(torchrun, {{"WORLD_SIZE", "99999999999"}})), HasSubstr("WORLD_SIZE"));
  EXPECT_THAT(error_of(with(torchrun, {{"RANK", "8"}})),
              AllOf(HasSubstr("RANK=8 and WORLD_SIZE=8"), HasSubstr("from 0 to 7")));
  EXPECT_THAT(error_of(with(torchrun, {{"LOCAL_RANK", "2"}})), HasSubstr("LOCAL_RANK=2 and LOCAL_WORLD_SIZE=2"));
  EXPECT_THAT(error_of(with(torchrun, {{"LOCAL_WORLD_SIZE", "9"}})), HasSubstr("LOCAL_WORLD_SIZE=9 and WORLD_SIZE=8"));
  EXPECT_THAT(error_of(with(torchrun, {{"MASTER_PORT", "70000"}})),
              HasSubstr("MASTER_PORT=\"70000\", expected a number in [1, 65535]"));
  for (const std::string tasks : {"4(xx),3", "4(x),3", "4(x2", "4)(x2", "(x2)", "4,,3", "0", "4,"}) {
    EXPECT_THAT(error_of(with(slurm, {{"SLURM_STEP_TASKS_PER_NODE", tasks}, {"SLURM_NODEID", "5"}})),
                HasSubstr("the environment has SLURM_STEP_TASKS_PER_NODE=\"" + tasks + "\", expected the tasks of"));
  }
  EXPECT_THAT(error_of(with(slurm, {{"SLURM_PROCID", "five"}})),
              HasSubstr("SLURM_PROCID=\"five\", expected a number of at least 0"));
  EXPECT_THAT(error_of(with(slurm, {{"SLURM_JOB_NODELIST", "gpu[07"}})), HasSubstr("gpu[07"));
}

}  // namespace bellows::comm
