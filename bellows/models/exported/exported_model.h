#pragma once

#include <string>

#include "bellows/core/model.h"
#include "bellows/models/registry.h"

namespace bellows {

/// Loads a program that Python has written with `torch.export.save(program, "model.pt2")`. You can train, evaluate, save
/// and restore the model like any other model, without Python. Parameters and buffers keep their names. Tied weights are
/// one parameter. The program is loaded onto the CPU, even if it was exported on another device.
///
/// Inputs are the tensors and numbers among the arguments of the exported module's forward, with their names. An element
/// of a nested argument is called "pair.0" or "batch.mask". A number is passed as a tensor with one element. Arguments
/// whose values the exporter wrote into the program are optional inputs. If they are given, they must have this value.
/// The outputs are called "output"; "output_0", "output_1", … for tuples; or they have the keys of a dict.
///
/// Export the model after model.train(), so that it can be trained. eval() then switches off dropout and the statistics
/// of batches. This is not possible if the program has stochastic depth or decomposed dropouts. In this case, write a
/// second program, exported after model.eval(), into the same archive: the names of the two must be "train" and "eval".
/// Params:   program – name of the program in the archive. By default, "train" and "eval" together, "model", or the only
///                     program
/// Numerics: bit-identical to the exported module in Python (tests/models/exported/exported_test.cpp)
/// Cost:     loading reads the file once and resolves all operators. A call reads no JSON
/// Threads:  several threads may call forward at the same time if the program changes no buffers
/// Throws:   c10::ValueError if the file is missing, damaged or another kind of file. Also if the program uses operators,
///           objects or a schema version that are not supported (the message names the node and the Python line).
///           In forward: c10::ValueError if an input or a size does not fit (the message names both). In train() and
///           eval(): c10::ValueError if the program cannot run in this mode. In to(dtype): c10::ValueError if the dtype
///           differs, because the program contains dtypes
/// Ref:      torch.export.load
Model load_exported(const std::string& path, const std::string& program = "");

/// Writes the archive of a model with the present values of its parameters and buffers. Python's torch.export.load opens
/// the new file. All other records of the archive stay as they are, and shared storages stay shared.
/// Params: model – from load_exported() or from a recipe; it may be wrapped
///         path  – of the new file, which may be the file from which the model was loaded
/// Throws: c10::ValueError if the model is not an exported program; c10::Error if writing fails
void save_exported(const Model& model, const std::string& path);

namespace models {

/// Creates a model entry from the file. The dtype and the sizes of the inputs determine the kind of data that the model
/// accepts. `make` loads the file again, so that each run starts from the file's weights. It checks that the program can
/// be trained.
/// Throws: c10::ValueError like load_exported()
ModelEntry exported_entry(const std::string& path);

/// Returns whether the model, or the model that it wraps, is from load_exported().
bool is_exported_model(const Model& model);

/// Returns whether `name` names an exported program. This is the case if it ends in .pt2.
bool is_exported_path(const std::string& name);

}  // namespace models

}  // namespace bellows
