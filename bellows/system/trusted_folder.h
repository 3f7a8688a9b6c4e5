#pragma once

#include <string>

#include <sys/stat.h>

namespace bellows {

/// Whether only this user and root can change a file: one of them owns it, and neither group nor others may write.
bool is_trusted(const struct stat& status);

/// Checks whether other users can replace files of a folder, or the folder itself. It follows symbolic links first.
/// Then it checks owner and mode of the folder and of its parents, up to the first parent that only this user can
/// change or that is sticky (/tmp).
/// Returns: the problem with the command that fixes it, or "" if there is none
std::string distrust_of(const std::string& folder);

/// Creates a folder and its missing parents with mode 0700, independent of the umask. An existing folder does not
/// change.
/// Throws: c10::Error if the system cannot create it
void make_private_folder(const std::string& folder);

/// Like make_private_folder(), then requires a trusted folder. If the folder belongs to this user and others may write
/// to it, its mode is set to 0700.
/// Throws: c10::Error if the system cannot create it, or with the problem that distrust_of() returns
void make_trusted_folder(const std::string& folder);

}  // namespace bellows
