// A rank of elastic_test: trains a small model in fp64, and survives the loss of other ranks.
//   elastic_rank FOLDER EPOCHS
#include <torch/torch.h>

#include <chrono>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <thread>

#include "bellows/comm/elastic/elastic_world.h"
#include "bellows/io/tensors/safetensors.h"
#include "bellows/train/trainer.h"
#include "tests/train/parallel/elastic_job.h"

int main(int, char** argv) {
  using namespace bellows;
  const std::string folder = argv[1];
  train::Recipe recipe = train::elastic_recipe(std::stoi(argv[2]));
  recipe.run_folder = folder + "/run";
  try {
    const auto elastic = std::make_shared<comm::ElasticWorld>();
    train::Callbacks callbacks;
    callbacks.on_step = [&](const train::TrainLoop& loop) {
      std::ofstream(folder + "/steps-" + std::to_string(getpid())) << loop.step_count();
      std::this_thread::sleep_for(std::chrono::milliseconds(3));
    };
    train::Trainer trainer(recipe, callbacks);
    trainer.set_elastic_world(elastic);
    train::Job job = train::elastic_job(recipe);
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
