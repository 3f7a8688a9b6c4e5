#pragma once

#include <string>

#include "bellows/core/model.h"

namespace bellows::models {

/// Loads the named tensors of a weight file, a sharded weight file or a repository.
///
/// If the path or address ends in `.index.json`, it is the index of a sharded file, as transformers writes it
/// (model.safetensors.index.json), and all its files are loaded. An address of a repository (`hf://org/name`, see
/// io::fetch_file()) selects the first of these files that the repository contains: model.safetensors,
/// model.safetensors.index.json, pytorch_model.bin, pytorch_model.bin.index.json. The names of transformers' ResNet are
/// converted to the names of torchvision.
/// Params: path_or_address – a safetensors or torch.save file, or an index; a path, or an address that io::fetch_file()
///         accepts
/// Throws: c10::ValueError like io::load_tensors() and io::fetch_file(); if a repository contains none of these files; if
///         an index is invalid, or if a tensor of the index is missing in its file
NamedTensors load_pretrained(const std::string& path_or_address);

/// Returns the address of the config.json next to the weights (`hf://org/name/config.json`), or "" if `weights` is not an
/// address of a repository. model_entry() accepts the result. Nothing is fetched.
std::string pretrained_config(const std::string& weights);

}  // namespace bellows::models
