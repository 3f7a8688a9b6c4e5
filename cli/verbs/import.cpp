#include <cstdio>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <sstream>
#include <utility>
#include <vector>

#include "bellows/io/bytes.h"
#include "bellows/system/file.h"
#include "bellows/system/stop.h"
#include "bellows/train/recipe/deepspeed_config.h"
#include "cli/interrupt.h"
#include "cli/json_text.h"
#include "cli/options.h"
#include "cli/terminal.h"
#include "cli/usable.h"

namespace bellows::cli {

namespace {

bool is_same_path(const std::string& a, const std::string& b) {
  namespace fs = std::filesystem;
  return fs::weakly_canonical(fs::absolute(a)) == fs::weakly_canonical(fs::absolute(b));
}

/// Throws: UsageError if two of the files are the same one.
void check_import_files(const ImportArguments& arguments) {
  if (arguments.out == "-")
    throw UsageError("--out needs the name of a file. Without --out, the recipe is written to standard output.");
  const std::vector<std::pair<const char*, std::string>> files = {
      {"FILE", arguments.file}, {"--out", arguments.out}, {"--json", arguments.json}};
  for (size_t i = 0; i < files.size(); ++i) {
    for (size_t j = 0; j < i; ++j) {
      const bool written = !files[i].second.empty() && files[i].second != "-" && !files[j].second.empty();
      if (written && is_same_path(files[i].second, files[j].second))
        throw UsageError(c10::str(files[j].first, " and ", files[i].first, " name the same file, ", files[i].second,
                                  ". Choose different files."));
    }
  }
}

/// Throws: UsageError if the file cannot be read or is not a valid configuration.
train::ImportedRecipe imported_recipe(const ImportArguments& arguments) {
  const Interrupt interrupt("the configuration was not read completely");  // a pipe may wait for its writer
  return usable([&] {
    const std::string text = read_text_file(arguments.file);
    throw_if_stopped("reading the configuration");
    return train::import_deepspeed_config(text, arguments.file, arguments.ranks);
  });
}

std::string imported_yaml(const ImportArguments& arguments, const train::ImportedRecipe& imported) {
  return c10::str("# DeepSpeed configuration: ", io::printable(arguments.file, 1000), ", ranks: ", arguments.ranks,
                  "\n", imported.to_yaml());
}

nlohmann::ordered_json import_json(const ImportArguments& arguments, const train::ImportedRecipe& imported) {
  nlohmann::ordered_json recipe = nlohmann::ordered_json::object(), unsupported = nlohmann::ordered_json::array();
  std::istringstream lines(imported.to_yaml());
  for (std::string line; std::getline(lines, line);) {
    const size_t colon = line.find(": ");
    const std::string value = line.substr(colon + 2);
    const auto parsed = nlohmann::ordered_json::parse(value, nullptr, /*allow_exceptions=*/false);
    recipe[line.substr(0, colon)] =
        parsed.is_discarded() ? nlohmann::ordered_json(value) : parsed;  // text without quotes
  }
  for (const train::UnsupportedKey& key : imported.unsupported)
    unsupported.push_back({{"key", key.key}, {"value", key.value}, {"reason", key.reason}});
  return {{"file", arguments.file},
          {"ranks", arguments.ranks},
          {"out", arguments.out},
          {"recipe", std::move(recipe)},
          {"unsupported", std::move(unsupported)}};
}

void print_unsupported(const std::vector<train::UnsupportedKey>& unsupported) {
  if (unsupported.empty()) return;
  std::string text = c10::str("Not imported (", unsupported.size(), "):\n");
  for (const train::UnsupportedKey& key : unsupported)
    text += wrapped(key.key + ": " + key.value, "  ") + wrapped(key.reason, "    ");
  std::fputs(text.c_str(), stderr);
}

}  // namespace

int run_import(const ImportArguments& arguments) {
  check_import_files(arguments);
  for (const std::string& file : {arguments.out, arguments.json}) check_output_file(file);
  const train::ImportedRecipe imported = imported_recipe(arguments);
  print_unsupported(imported.unsupported);
  const std::string yaml = imported_yaml(arguments, imported);
  if (!arguments.out.empty()) write_text_file(arguments.out, yaml);
  const std::string result =
      arguments.out.empty() ? yaml
                            : c10::str("Recipe: ", arguments.out, "\nChanged keys: ", imported.changed.size(), "\n");
  if (arguments.json != "-") print_result(result);
  write_json(arguments.json, json_text(import_json(arguments, imported)));
  return exit_done;
}

}  // namespace bellows::cli
