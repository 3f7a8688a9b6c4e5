#include "bellows/runtime/shared_library.h"

#include <dlfcn.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>

namespace bellows::runtime {

namespace {

namespace fs = std::filesystem;

std::string variable(const std::string& name) {
  const char* value = name.empty() ? nullptr : std::getenv(name.c_str());
  return value ? value : "";
}

/// Returns the entries of a folder whose names start with `prefix`, in the order of their names.
std::vector<std::string> entries(const fs::path& folder, const std::string& prefix) {
  std::vector<std::string> found;
  std::error_code error;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder, error)) {
    if (entry.path().filename().string().starts_with(prefix)) found.push_back(entry.path().string());
  }
  std::ranges::sort(found);
  return found;
}

/// The library in a folder: without a version if there is such a file, and otherwise the last version.
std::string library_in(const std::string& folder, const std::string& file) {
  std::error_code error;
  if (fs::exists(folder + "/" + file, error)) return folder + "/" + file;
  const std::vector<std::string> versions = entries(folder, file + ".");
  return versions.empty() ? "" : versions.back();
}

/// Folders of a wheel in the site-packages of all Python versions.
std::vector<std::string> wheel_folders(const std::string& wheel) {
  std::vector<std::string> roots, folders;
  for (const std::string& root : {variable("VIRTUAL_ENV"), variable("CONDA_PREFIX")}) {
    if (!root.empty()) roots.push_back(root + "/lib");
  }
  if (const std::string home = variable("HOME"); !home.empty()) roots.push_back(home + "/.local/lib");
  roots.insert(roots.end(), {"/usr/local/lib", "/usr/lib"});
  for (const std::string& root : roots) {
    for (const std::string& python : entries(root, "python3")) {
      folders.push_back(python + "/site-packages/" + wheel);
      folders.push_back(python + "/dist-packages/" + wheel);
    }
  }
  return folders;
}

std::string last_error() {
  const char* text = dlerror();
  return text ? text : "unknown error of the dynamic linker";
}

}  // namespace

SharedLibrary::SharedLibrary(const LibrarySearch& search) {
  const std::string given = search.place.empty() ? variable(search.variable) : search.place;
  if (!given.empty()) {
    std::error_code error;
    const std::string path = fs::is_directory(given, error) ? library_in(given, search.file) : given;
    const std::string origin = search.place.empty() ? search.variable + "=" + given : given;
    if (path.empty())
      missing_ = search.title + ": there is no " + search.file + " in the folder of " + origin + ".";
    else if (!open(path))
      missing_ = search.title + ": " + origin + " cannot be loaded: " + last_error() + ".";
    return;
  }
  std::vector<std::string> candidates = {search.file};
  for (const std::string& folder : search.folders) candidates.push_back(library_in(folder, search.file));
  if (!search.wheel.empty()) {
    for (const std::string& folder : wheel_folders(search.wheel)) candidates.push_back(library_in(folder, search.file));
  }
  for (const std::string& candidate : candidates) {
    if (!candidate.empty() && open(candidate)) return;
  }
  missing_ = search.title + " was not found. " + search.advice + " If it is installed in another place, set " +
             search.variable + " to the folder of " + search.file + ".";
}

bool SharedLibrary::open(const std::string& path) {
  handle_ = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle_) path_ = path;
  return handle_ != nullptr;
}

void* SharedLibrary::symbol(const char* name) const {
  return handle_ ? dlsym(handle_, name) : nullptr;
}

}  // namespace bellows::runtime
