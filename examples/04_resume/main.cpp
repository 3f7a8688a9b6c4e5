// A run that is stopped in the middle and resumed gives the same bits as one that was not.
//
// A checkpoint holds model, optimizer, schedules, averages, generators and the loader's position. It is written under another
// name, checksummed and renamed, so that also `kill -9` leaves a whole one behind.
#include <bellows/train.h>

#include <cstdio>
#include <filesystem>

using bellows::train::FitResult;
using bellows::train::Recipe;

// Params: stop_at – ask for an orderly stop in this step, as Ctrl-C does; 0: never
FitResult fit(const Recipe& recipe, bool resume, int64_t stop_at = 0) {
  bellows::train::Trainer* running = nullptr;
  bellows::train::Callbacks callbacks;
  callbacks.on_step = [&](const bellows::train::TrainLoop& loop) {
    if (loop.step_count() == stop_at) running->request_stop();
  };
  bellows::train::Trainer trainer(recipe, callbacks);
  running = &trainer;
  trainer.resume(resume);
  return trainer.fit();
}

int main(int argc, char** argv) try {
  Recipe recipe;
  recipe.data = argc > 1 ? argv[1] : "data/digits";
  recipe.epochs = 2;
  recipe.augment = "crop";
  recipe.lr_schedule = "cosine";
  recipe.ema_decay = 0.99;

  Recipe interrupted = recipe;
  recipe.run_folder = "runs/04-whole";
  interrupted.run_folder = "runs/04-interrupted";
  for (const Recipe& old : {recipe, interrupted}) std::filesystem::remove_all(old.run_folder);

  const FitResult whole = fit(recipe, false);
  const FitResult first = fit(interrupted, false, 30);  // inside the first epoch
  const FitResult second = fit(interrupted, true);
  std::printf("uninterrupted run: %lld steps; interrupted run: stopped after step %lld, resumed up to step %lld\n",
              static_cast<long long>(whole.steps), static_cast<long long>(first.steps),
              static_cast<long long>(second.steps));

  const double a = whole.history.back().eval_loss, b = second.history.back().eval_loss;
  std::printf("held-out loss %.17g and %.17g: %s\n", a, b, a == b ? "bit-identical" : "different");
  return a == b && first.stopped ? 0 : 1;
} catch (const std::exception& error) {
  std::fprintf(stderr, "%s\n", bellows::user_message(error).c_str());
  return 1;
}
