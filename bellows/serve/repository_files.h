#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "bellows/serve/model_config.h"

/// The files of one model in a repository.
namespace bellows::serve {

/// Returns the content of `config.pbtxt` in the model's folder, or "" if there is none.
/// Throws: c10::ValueError if the file cannot be read or is larger than 1 MiB
std::string config_text(const std::string& folder);

/// Parses the configuration, logs its unknown fields, and reads the label files.
/// Params: name – of the folder; a name in the configuration must be the same
/// Throws: c10::ValueError
ModelConfig read_model_config(const std::string& name, const std::string& folder, const std::string& text);

/// Returns the names of the models in an ensemble's steps. The list is empty if the model is no ensemble, or if its
/// configuration is invalid.
std::vector<std::string> ensemble_members(const std::string& folder);

/// Returns the numbers of the folders 1, 2, … in a model's folder, in increasing order.
std::vector<int64_t> versions_in(const std::string& folder);

/// Returns the path of the model file in the folder of a version.
/// Params: name – of the file; "": the only file `model.*`. Files `model.bin` next to `model.xml` belong to OpenVINO, and
///                files `model.onnx.data` to ONNX
/// Throws: c10::ValueError if there is no such file, or more than one
std::string model_file_in(const std::string& version_folder, const std::string& name);

/// Returns a text that changes if a file in the folder or its folders is added, removed or written. Paths with the size,
/// the time of the last change and the inode number of each file.
std::string files_fingerprint(const std::string& folder);

}  // namespace bellows::serve
