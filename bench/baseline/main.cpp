#include <chrono>
#include <cstdio>
#include <cstring>
#include <exception>
#include <map>

#include "bellows/ladder/plain_libtorch.h"

namespace {

int train(const plain_libtorch::Options& options, int64_t epochs) {
  using Clock = std::chrono::steady_clock;
  plain_libtorch::Training training(options);
  for (int64_t epoch = 1; epoch <= epochs; ++epoch) {
    const auto start = Clock::now();
    const double loss = training.run_steps(training.steps_per_epoch());
    const std::chrono::duration<double, std::milli> took = Clock::now() - start;
    std::printf("epoch %2lld  %.3f ms per step  loss %.4f  accuracy %.4f\n", static_cast<long long>(epoch),
                took.count() / static_cast<double>(training.steps_per_epoch()), loss, training.evaluate());
    std::fflush(stdout);
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  std::map<std::string, std::string> flags = {
      {"--data", "data/digits"}, {"--batch", "64"}, {"--lr", "0.1"}, {"--epochs", "8"}, {"--seed", "1"}};
  for (int i = 1; i + 1 < argc; i += 2) flags[argv[i]] = argv[i + 1];
  if (argc % 2 == 0 || flags.size() != 5) {
    std::fprintf(stderr, "usage: %s [--data FOLDER] [--batch N] [--lr RATE] [--epochs N] [--seed N]\n", argv[0]);
    return argc == 2 && !std::strcmp(argv[1], "--help") ? 0 : 2;
  }
  try {
    plain_libtorch::Options options;
    options.data = flags["--data"];
    options.batch = std::stoll(flags["--batch"]);
    options.learning_rate = std::stod(flags["--lr"]);
    options.seed = std::stoull(flags["--seed"]);
    return train(options, std::stoll(flags["--epochs"]));
  } catch (const std::exception& error) {
    std::fprintf(stderr, "error: %s\n", error.what());
    return 1;
  }
}
