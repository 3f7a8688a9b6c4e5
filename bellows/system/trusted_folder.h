#pragma once

#include <string>

#include <sys/stat.h>

namespace bellows {

/// Returns whether only this user and root can change a file. This is the case if one of them owns the file, and only
/// the owner has write permission.
bool is_trusted(const struct stat& status);

/// Checks whether other users can replace a folder or the files in it. The function first resolves symbolic links. Then
/// it checks the owner and the mode of the folder and of its parents. It stops after the first parent that only this
/// user can change or that is sticky, such as /tmp.
/// Returns: a message with the problem and its solution, or "" if there is no problem
std::string distrust_of(const std::string& folder);

/// Creates a folder and its missing parents with mode 0700, independently of the umask. An existing folder is not
/// changed.
/// Throws: c10::Error if the system cannot create the folder
void make_private_folder(const std::string& folder);

/// Like make_private_folder(), but also requires that distrust_of() finds no problem. If the folder belongs to this
/// user and other users can write to it, its mode is set to 0700.
/// Throws: c10::Error if the system cannot create the folder, or if distrust_of() returns a problem (the message is
///         then that problem)
void make_trusted_folder(const std::string& folder);

}  // namespace bellows
