// A rank of elastic_test and elastic_shards_test: trains a small model in fp64, and survives the loss of other ranks.
//   elastic_rank FOLDER EPOCHS [KEY=VALUE …]
// The test controls the ranks through files in the folder:
// - steps-PID: the last step of a process, the number of ranks, and its rank
// - die-PHASE, stop-PHASE: the first process that reaches this phase removes the file, and dies or stops itself
// - hold: new processes wait before they open the data, and write the file `held`
// - go: without this file, steps are slow from step 300 on, so that a test can lose enough ranks
#include <torch/torch.h>

#include <chrono>
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <thread>

#include "bellows/comm/elastic/elastic_world.h"
#include "bellows/comm/launch/launch_environment.h"
#include "bellows/io/tensors/safetensors.h"
#include "bellows/train/trainer.h"
#include "tests/train/parallel/elastic_job.h"

namespace {

using namespace bellows;
using namespace std::chrono_literals;

std::string folder;

void die_or_stop_if_asked(const std::string& phase) {
  std::error_code error;
  if (std::filesystem::remove(folder + "/die-" + phase, error)) std::raise(SIGKILL);
  if (std::filesystem::remove(folder + "/stop-" + phase, error)) std::raise(SIGSTOP);
}

/// Written to another file first, because the test reads it at any time.
void write_status(int64_t step, const comm::World& world) {
  const std::string path = folder + "/steps-" + std::to_string(getpid());
  std::ofstream(path + ".part") << step << " " << world.size() << " " << world.rank();
  std::filesystem::rename(path + ".part", path);
}

void wait_while_held() {
  while (std::filesystem::exists(folder + "/hold")) {
    std::ofstream(folder + "/held") << "1";
    std::this_thread::sleep_for(5ms);
  }
}

/// The job, whose forward and backward passes may die or stop.
train::Job mortal_job(const train::Recipe& recipe) {
  train::Job job = train::elastic_job(recipe);
  job.loss = [loss = job.loss](const data::Batch& batch) {
    die_or_stop_if_asked("forward");
    return loss(batch);
  };
  // The gradient of the first layer comes last, when those of other layers have been exchanged.
  if (recipe.compile == "none") {
    job.model.parameters().front().register_hook([](const at::Tensor& gradient) {
      die_or_stop_if_asked("backward");
      return gradient;
    });
  }
  return job;
}

}  // namespace

int main(int count, char** argv) {
  folder = argv[1];
  try {
    train::Recipe recipe = train::elastic_recipe(std::stoi(argv[2]));
    recipe.run_folder = folder + "/run";
    for (int i = 3; i < count; ++i) recipe.set(argv[i]);
    const auto elastic = std::make_shared<comm::ElasticWorld>(comm::InitOptions(), comm::ElasticWorld::Start::later);
    if (elastic->is_replacement()) wait_while_held();
    train::Callbacks callbacks;
    callbacks.on_step = [&](const train::TrainLoop& loop) {
      write_status(loop.step_count(), elastic->world());
      const bool slow = loop.step_count() >= 300 && !std::filesystem::exists(folder + "/go");
      std::this_thread::sleep_for(slow ? 60ms : 3ms);
    };
    callbacks.on_checkpoint = [](const std::string&) { die_or_stop_if_asked("checkpoint"); };
    callbacks.on_ranks = [first = true, is_new = elastic->is_replacement()](const comm::World&) mutable {
      if (!first || is_new) die_or_stop_if_asked(first ? "join-new" : "join-old");
      first = false;
    };
    train::Trainer trainer(recipe, callbacks);
    trainer.set_elastic_world(elastic);
    trainer.resume(comm::read_launch_environment().restart_count > 0);
    train::Job job = mortal_job(recipe);
    const Model model = job.model;
    const train::FitResult result = trainer.fit(std::move(job));
    if (elastic->world().rank() != 0) return 0;
    io::save_safetensors(folder + "/weights.safetensors", model.state_dict());
    std::printf("steps %lld\n", static_cast<long long>(result.steps));
  } catch (const std::exception& error) {
    std::fprintf(stderr, "failed: %s\n", error.what());
    return 1;
  }
}
