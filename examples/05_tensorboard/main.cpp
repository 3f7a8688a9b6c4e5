// TensorBoard without Python: the trainer's own log, and events of your own beside it.
//
//   tensorboard --logdir runs        shows SCALARS, IMAGES, TEXT, HISTOGRAMS and HPARAMS
#include <bellows/io.h>
#include <bellows/train.h>

#include <cstdio>
#include <filesystem>
#include <map>

// What stands in a folder's event files.
void print_tags(const std::string& folder) {
  std::map<std::string, int> tags;
  for (const auto& file : std::filesystem::directory_iterator(folder)) {
    if (file.path().filename().string().find("tfevents") == std::string::npos) continue;
    for (const auto& event : bellows::io::read_events(file.path().string())) {
      if (!event.tag.empty()) ++tags[event.tag];
    }
  }
  std::printf("%s: %zu tags", folder.c_str(), tags.size());
  for (const char* tag : {"train_loss", "eval_accuracy", "first digit", "samples"}) {
    if (tags.count(tag)) std::printf(", %d x %s", tags[tag], tag);
  }
  std::printf("\n");
}

int main(int argc, char** argv) try {
  bellows::train::Recipe recipe;
  recipe.data = argc > 1 ? argv[1] : "data/digits";
  recipe.epochs = 2;
  recipe.log = "csv, tensorboard";  // one line: loss, accuracy, learning rate, hyperparameters
  recipe.run_folder = "runs/05-tensorboard";
  for (const char* folder : {"runs/05-tensorboard", "runs/05-own"}) std::filesystem::remove_all(folder);

  // What the trainer does not log by itself, in a folder of its own: TensorBoard shows it as a second run.
  bellows::io::EventWriter own("runs/05-own");
  own.text("about", "A run of **examples/05_tensorboard**.", 0);
  auto pictures = bellows::data::open(recipe.data, {.split = "train"}).batch(8).loader();
  for (const auto& batch : pictures.epoch(0)) {
    own.image("first digit", batch["image"].select(0, 0), 0);
    break;
  }

  bellows::train::Callbacks callbacks;
  callbacks.on_step = [&](const bellows::train::TrainLoop& loop) {
    if (loop.step_count() % 20 != 0) return;
    own.scalar("samples", static_cast<double>(loop.sample_count()), loop.step_count());
    for (const auto& [name, parameter] : loop.job().model.named_parameters()) {
      own.histogram("gradient/" + name, parameter.grad(), loop.step_count());  // still there after the step
    }
  };
  bellows::train::Trainer(recipe, callbacks).fit();
  own.flush();

  for (const char* folder : {"runs/05-tensorboard", "runs/05-own"}) print_tags(folder);
} catch (const std::exception& error) {
  std::fprintf(stderr, "%s\n", bellows::user_message(error).c_str());
  return 1;
}
