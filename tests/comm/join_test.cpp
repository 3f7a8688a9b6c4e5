#include <gmock/gmock.h>

#include <filesystem>

#include "launched.h"

namespace bellows::comm::testing {

namespace {

using ::testing::HasSubstr;
using ::testing::Not;

}  // namespace

TEST(Join, RankZeroServesTheStore) {
  const int port = free_port();
  auto one = start_rank(place(1, 2, port), "join"), zero = start_rank(place(0, 2, port), "join");
  const Alone first = zero.get(), second = one.get();
  EXPECT_EQ(first.exit_code, 0) << first.text;
  EXPECT_THAT(first.text, HasSubstr("rank 0 of 2 sum 2 gloo\n"));
  EXPECT_THAT(first.text, HasSubstr("world of 2 ranks (torchrun): gloo, store 127.0.0.1:" + std::to_string(port) +
                                    ", device cpu\n"));
  EXPECT_EQ(second.exit_code, 0) << second.text;
  EXPECT_THAT(second.text, HasSubstr("rank 1 of 2 sum 2 gloo\n"));
  EXPECT_THAT(second.text, Not(HasSubstr("world of"))) << "one line, on rank 0";
}

TEST(Join, ThroughAFile) {
  const cli::Scratch folder;
  const std::string store = " BELLOWS_STORE=file://" + folder / "store";
  auto zero = start_rank("RANK=0 WORLD_SIZE=2" + store, "join"),
       one = start_rank("RANK=1 WORLD_SIZE=2" + store, "join");
  EXPECT_THAT(zero.get().text, HasSubstr("rank 0 of 2 sum 2 gloo\n"));
  EXPECT_THAT(one.get().text, HasSubstr("rank 1 of 2 sum 2 gloo\n"));
  EXPECT_FALSE(std::filesystem::exists(folder / "store"));
}

TEST(Join, StartedByMpirun) {
  const Alone job = run_shell(
      "OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMP_NUM_THREADS=1 "
      "timeout -k 1 60 mpirun --oversubscribe -n 2 " +
      rank_program + " collectives 2>&1");
  EXPECT_EQ(job.exit_code, 0) << job.text;
  EXPECT_THAT(job.text, HasSubstr("world of 2 ranks (Open MPI): gloo"));
  EXPECT_THAT(job.text, HasSubstr("collectives done\ncollectives done\n"));
}

TEST(Join, StartedAsBySrun) {
  const auto slurm = [port = std::to_string(free_port())](int rank) {
    const std::string number = std::to_string(rank);
    return start_rank("SLURM_JOB_ID=7 SLURM_STEP_ID=0 SLURM_NTASKS=2 SLURM_JOB_NODELIST=here SLURM_PROCID=" + number +
                          " SLURM_LOCALID=" + number + " SLURM_STEP_TASKS_PER_NODE=2 MASTER_PORT=" + port,
                      "join");
  };
  auto one = slurm(1), zero = slurm(0);
  EXPECT_THAT(zero.get().text, HasSubstr("(SLURM): gloo"));
  EXPECT_THAT(one.get().text, HasSubstr("rank 1 of 2 sum 2"));
}

TEST(Join, NamesTheRanksThatDoNotCome) {
  const int port = free_port();
  auto zero = start_rank(place(0, 4, port), "join 4"), two = start_rank(place(2, 4, port), "join 4");
  const Alone first = zero.get(), third = two.get();
  EXPECT_EQ(first.exit_code, 1);
  EXPECT_THAT(first.text, HasSubstr("init: waited 4 s for 4 ranks, but 2 did not join: 1, 3."));
  EXPECT_EQ(third.exit_code, 1);
  const Alone lonely = start_rank(place(1, 2, free_port()), "join 1").get();
  EXPECT_EQ(lonely.exit_code, 1);
  EXPECT_THAT(
      lonely.text,
      HasSubstr("within 1 s. Check that the process that serves the store (rank 0 or the launcher) is running"));
}

TEST(Join, SaysAfterTenSecondsWhoIsMissing) {
  const int port = free_port(), other = free_port();
  const std::string here = std::to_string(port);
  auto zero = start_rank(place(0, 4, port), "join 12"), two = start_rank(place(2, 4, port), "join 12"),
       lonely = start_rank(place(1, 2, other), "join 12");
  EXPECT_THAT(zero.get().text,
              HasSubstr("init: rank 0 is waiting for ranks 1, 3; 2 of 4 ranks have joined, at 127.0.0.1:" + here +
                        " (10 s of 12 s)"));
  EXPECT_THAT(two.get().text, HasSubstr("init: rank 2 is waiting for ranks 1, 3; 2 of 4 ranks have joined, at "));
  EXPECT_THAT(lonely.get().text, HasSubstr("init: rank 1 is waiting for rank 0 at 127.0.0.1:" + std::to_string(other) +
                                           " (10 s of 12 s)"));
}

TEST(Join, TwoProcessesWithOneRankBothSaySo) {
  for (const int rank : {0, 1}) {
    const int port = free_port();
    auto holder = start_rank(place(1 - rank, 3, port), "join 50"), first = start_rank(place(rank, 3, port), "join 50"),
         second = start_rank(place(rank, 3, port), "join 50");
    for (const Alone& one : {first.get(), second.get()}) {
      EXPECT_EQ(one.exit_code, 1);
      EXPECT_THAT(one.text, HasSubstr("init: rank " + std::to_string(rank) + " has already joined (pid "));
      EXPECT_THAT(one.text, HasSubstr("If these are two jobs, set a different MASTER_PORT"));
    }
    EXPECT_EQ(holder.get().exit_code, 1) << "no wait for 50 s, which ends with another code";
  }
}

TEST(Join, TwoJobsOnOnePortAreTold) {
  const int port = free_port();
  auto zero = start_rank(place(0, 2, port, "TORCHELASTIC_RUN_ID=a"), "join 30"),
       one = start_rank(place(1, 2, port, "TORCHELASTIC_RUN_ID=b"), "join 30");
  EXPECT_THAT(zero.get().text,
              ::testing::ContainsRegex(
                  "two jobs meet at 127.0.0.1:[0-9]+: rank 1 .* belongs to job b, but rank 0 belongs to job a"));
  EXPECT_EQ(one.get().exit_code, 1);
}

TEST(Join, RefusesAnotherToken) {
  const int port = free_port();
  auto zero = start_rank(place(0, 2, port, "BELLOWS_TOKEN=right"), "join 5");
  std::this_thread::sleep_for(std::chrono::seconds(1));
  const Alone stranger = start_rank(place(1, 2, port, "BELLOWS_TOKEN=wrong"), "join 5").get();
  EXPECT_EQ(stranger.exit_code, 1);
  EXPECT_THAT(stranger.text, HasSubstr("rank 1 was refused, because its token differs from the token of the job"));
  EXPECT_THAT(zero.get().text, HasSubstr("did not join: 1 (refused because of a different token: 1)"));
}

TEST(Join, OtherMachinesNeedAToken) {
  const Alone open = start_rank("RANK=0 WORLD_SIZE=2 MASTER_ADDR=203.0.113.1 MASTER_PORT=4000", "join 2").get();
  EXPECT_EQ(open.exit_code, 1);
  EXPECT_THAT(open.text, HasSubstr("the job has no token"));
}

TEST(Join, NamesRanksThatDisagreeOrComeTwice) {
  const int port = free_port();
  auto zero = start_rank(place(0, 3, port), "join 6"), one = start_rank(place(1, 2, port), "join 6");
  EXPECT_THAT(zero.get().text,
              ::testing::ContainsRegex(
                  R"(rank 1 \(pid [0-9]+ on .*\) was started for a world of 2, but rank 0 for a world of 3)"));
  EXPECT_THAT(one.get().text, ::testing::AnyOf(HasSubstr("was started for a world of 3, but rank 1 for a world of 2"),
                                               HasSubstr("init: rank 1 lost the store at 127.0.0.1")));
  const int other = free_port();
  auto holder = start_rank(place(0, 3, other), "join 5"), first = start_rank(place(1, 3, other), "join 5"),
       second = start_rank(place(1, 3, other), "join 5");
  holder.wait();
  EXPECT_THAT(first.get().text + second.get().text, HasSubstr("init: rank 1 has already joined (pid "));
}

TEST(Join, SaysThatThePortIsInUse) {
  const Store taken = Store::serve("127.0.0.1", 0);
  const Alone zero = start_rank(place(0, 2, taken.port()), "join 5").get();
  EXPECT_EQ(zero.exit_code, 1);
  EXPECT_THAT(zero.text, HasSubstr("port " + std::to_string(taken.port()) + " on 127.0.0.1 is in use"));
}

}  // namespace bellows::comm::testing
