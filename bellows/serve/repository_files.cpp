#include "bellows/serve/repository_files.h"

#include <c10/util/Exception.h>
#include <sys/stat.h>

#include <algorithm>
#include <charconv>
#include <filesystem>

#include "bellows/core/log.h"
#include "bellows/system/file.h"

namespace bellows::serve {

namespace fs = std::filesystem;

std::string config_text(const std::string& folder) {
  const std::string path = folder + "/config.pbtxt";
  std::error_code error;
  if (!fs::exists(path, error)) return "";
  constexpr uintmax_t most = 1 << 20;
  const uintmax_t size = fs::file_size(path, error);
  TORCH_CHECK_VALUE(!error && size <= most, path, ": expected a file of at most ", most, " bytes.");
  return read_text_file(path);
}

ModelConfig read_model_config(const std::string& name, const std::string& folder, const std::string& text) {
  std::vector<std::string> warnings;
  const std::string path = folder + "/config.pbtxt";
  ModelConfig config = parse_model_config(text, path, warnings);
  for (const std::string& warning : warnings) log_warn(warning);
  TORCH_CHECK_VALUE(config.name.empty() || config.name == name, path, ": the name is \"", config.name,
                    "\", but that of the folder is \"", name, "\". Remove the name, or rename the folder.");
  config.name = name;
  if (config.text && config.text->tokenizer != "bytes") config.text->tokenizer = folder + "/" + config.text->tokenizer;
  for (TensorSpec& output : config.outputs) {
    if (output.label_file.empty()) continue;
    const std::string labels = read_text_file(folder + "/" + output.label_file);
    for (size_t from = 0; from < labels.size();) {
      const size_t end = std::min(labels.find('\n', from), labels.size());
      output.labels.push_back(labels.substr(from, end - from));
      if (output.labels.back().ends_with('\r')) output.labels.back().pop_back();
      from = end + 1;
    }
  }
  return config;
}

std::vector<std::string> ensemble_members(const std::string& folder) {
  std::vector<std::string> members, ignored;
  try {
    for (const EnsembleStep& step : parse_model_config(config_text(folder), folder, ignored).ensemble)
      members.push_back(step.model);
  } catch (const std::exception&) {  // the error is reported when the model is loaded
  }
  return members;
}

std::vector<int64_t> versions_in(const std::string& folder) {
  std::vector<int64_t> versions;
  std::error_code error, none;
  for (const auto& entry : fs::directory_iterator(folder, error)) {
    const std::string name = entry.path().filename();
    int64_t number = 0;
    const char* end = name.data() + name.size();
    const auto [stop, problem] = std::from_chars(name.data(), end, number);
    const bool valid = problem == std::errc() && stop == end && number > 0 && std::to_string(number) == name;
    if (valid && entry.is_directory(none)) versions.push_back(number);
  }
  std::ranges::sort(versions);
  return versions;
}

std::string model_file_in(const std::string& version_folder, const std::string& name) {
  std::error_code error, none;
  if (!name.empty()) {
    const std::string path = version_folder + "/" + name;
    TORCH_CHECK_VALUE(fs::exists(path, error), path, ": there is no such file, but default_model_filename names it.");
    return path;
  }
  std::vector<std::string> found;
  for (const auto& entry : fs::directory_iterator(version_folder, error)) {
    const std::string file = entry.path().filename();
    const bool part = file == "model.bin" || file.ends_with(".data");
    if (file.starts_with("model.") && !part && entry.is_regular_file(none)) found.push_back(entry.path());
  }
  std::ranges::sort(found);
  TORCH_CHECK_VALUE(found.size() == 1, version_folder, ": expected one file model.*, found ", found.size(),
                    found.empty() ? "." : ". Choose one with default_model_filename in config.pbtxt.");
  return found.front();
}

std::string files_fingerprint(const std::string& folder) {
  std::vector<std::string> lines;
  std::error_code error;
  constexpr auto options = fs::directory_options::skip_permission_denied;
  for (auto entry = fs::recursive_directory_iterator(folder, options, error);
       entry != fs::recursive_directory_iterator(); entry.increment(error)) {
    if (error) break;
    struct stat status {};
    const std::string path = entry->path();
    if (stat(path.c_str(), &status) != 0 || S_ISDIR(status.st_mode)) continue;
    lines.push_back(path + " " + std::to_string(status.st_size) + " " + std::to_string(status.st_mtim.tv_sec) + "." +
                    std::to_string(status.st_mtim.tv_nsec) + " " + std::to_string(status.st_ino));
  }
  std::ranges::sort(lines);
  std::string text;
  for (const std::string& line : lines) text += line + "\n";
  return text;
}

}  // namespace bellows::serve
