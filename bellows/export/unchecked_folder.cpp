#include "bellows/export/unchecked_folder.h"

#include <c10/util/Exception.h>

#include <system_error>

namespace bellows::export_detail {

UncheckedFolder::UncheckedFolder(const std::filesystem::path& target, const char* caller)
    : target_(target), folder_(target.string() + ".unchecked") {
  std::error_code problem;
  std::filesystem::create_directory(folder_, problem);
  TORCH_CHECK(!problem, caller, ": the folder ", folder_.string(), " cannot be created: ", problem.message(), ".");
}

UncheckedFolder::~UncheckedFolder() {
  std::error_code ignored;
  std::filesystem::remove_all(folder_, ignored);
}

void UncheckedFolder::keep() const {
  const std::string data = file() + ".data";
  if (std::filesystem::exists(data)) std::filesystem::rename(data, target_.string() + ".data");
  std::filesystem::rename(file(), target_);
}

}  // namespace bellows::export_detail
