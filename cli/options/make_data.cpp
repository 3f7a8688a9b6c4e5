#include "cli/help_texts.h"
#include "cli/option_checks.h"
#include "cli/verb_options.h"

namespace bellows::cli {

CLI::App* add_make_data(CLI::App& app, MakeDataArguments& arguments) {
  CLI::App* verb =
      app.add_subcommand("make-data", "Write a synthetic dataset of shapes and textures")->footer(make_data_footer);
  verb->add_option("DST", arguments.destination, "Folder to write")->required();
  begin_group(verb, "Samples");
  verb->add_option("--train", arguments.train, "Number of training images [default: 10000]")
      ->type_name("N")
      ->check(whole_number(1, 100000000));
  verb->add_option("--test", arguments.test, "Number of test images [default: 2000]")
      ->type_name("N")
      ->check(whole_number(1, 100000000));
  verb->add_option("--size", arguments.size, "Height and width of the images in pixels [default: 64]")
      ->type_name("PIXELS")
      ->check(whole_number(16, 512));
  verb->add_option("--seed", arguments.seed, "Seed. Other seeds give other images [default: 1]")
      ->type_name("N")
      ->check(whole_number(0, INT64_MAX));
  begin_group(verb, "Output");
  verb->add_option("--format", arguments.format,
                   "pack, webdataset, tfrecord, recordio, or beton with JPEG images [default: pack]")
      ->type_name("NAME");
  add_json(verb, arguments.json);
  begin_group(verb, "Parallelism");
  verb->add_option("--threads", arguments.threads, "Number of threads [default: one per core]")
      ->type_name("N")
      ->check(whole_number(1, 1024));
  return verb;
}

}  // namespace bellows::cli
