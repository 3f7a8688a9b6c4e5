// The trainer: everything that decides a run is one plain struct, and every strategy is one line of it.
#include <bellows/train.h>

#include <cstdio>

int main(int argc, char** argv) try {
  bellows::train::Recipe recipe;
  recipe.data = argc > 1 ? argv[1] : "data/digits";
  recipe.epochs = 6;
  recipe.batch_size = 64;
  recipe.lr = 0.1;
  recipe.lr_schedule = "one_cycle";  // rises, then falls to nothing: one line
  recipe.augment = "crop";
  recipe.label_smoothing = 0.05;
  recipe.max_grad_norm = 2;
  recipe.ema_decay = 0.98;  // the moving average of the weights is what is evaluated
  recipe.channels_last = true;
  recipe.target_accuracy = 0.97;  // and no epoch more

  bellows::train::Callbacks callbacks;
  callbacks.on_epoch = [](const bellows::train::EpochRecord& record) {
    std::printf("epoch %lld: loss %.4f, held-out accuracy %.3f, %.2f s\n", static_cast<long long>(record.epoch + 1),
                record.train_loss, record.eval_accuracy, record.train_seconds);
  };

  bellows::train::Trainer trainer(recipe, callbacks);
  const bellows::train::FitResult result = trainer.fit();
  std::printf("%lld steps in %.2f s of training; 97 %% %s\n", static_cast<long long>(result.steps),
              result.train_seconds, result.reached_target ? "reached" : "not reached");

  // The same as a file, for `bellows train --recipe recipe.yaml`.
  std::printf("\n%s", recipe.to_yaml().c_str());
} catch (const std::exception& error) {
  std::fprintf(stderr, "%s\n", bellows::user_message(error).c_str());
  return 1;
}
