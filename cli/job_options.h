#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

#include "cli/option_checks.h"

/// Options that several verbs share.
namespace bellows::cli {

/// Adds --plugin.
inline void add_plugins(CLI::App* verb, std::vector<std::string>& plugins) {
  verb->add_option("--plugin", plugins, "Load your own models from this shared library. You can repeat this option")
      ->type_name("FILE")
      ->expected(1, 1)
      ->allow_extra_args(false)  // so that files may follow
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
}

/// Adds the options that describe a training run.
template <class Arguments>
void add_job(CLI::App* verb, Arguments& arguments) {
  begin_group(verb, "Data and model");
  verb->add_option("--recipe", arguments.recipe,
                   "Read the settings from this YAML file. `bellows train --keys` lists all keys and their defaults")
      ->type_name("FILE");
  if constexpr (requires { arguments.data; }) {
    verb->add_option(
            "--data", arguments.data,
            "Dataset: a folder, a file, or a pattern such as \"train-{000..015}.tar\" [default: from the recipe]")
        ->type_name("PATH");
  }
  verb->add_option("--model", arguments.model,
                   "Model: a registered name, or a TorchScript, .pt2 or config.json file [default: from the recipe]")
      ->type_name("NAME|FILE");
  add_plugins(verb, arguments.plugins);
  verb->add_option("--set", arguments.set,
                   "Set a recipe key. This overrides the recipe file. You can repeat this option")
      ->type_name("KEY=VALUE")
      ->expected(1, 1)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
}

}  // namespace bellows::cli
