#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "bellows/core/model.h"

namespace bellows::models {

/// The tensors that copy_layers() copied.
struct LayerTransfer {
  std::vector<int64_t> layers;      ///< for each layer of the student, the layer of the teacher that it was copied from
  std::vector<std::string> copied;  ///< names of the student's tensors
  std::vector<std::string> kept;    ///< names of the student's tensors that kept their values

  /// Returns a text such as "layers 0, 2, 4 of 6: 53 tensors copied, 2 kept (classifier.weight, classifier.bias)".
  /// Params: teacher_layers – number of the teacher's layers
  std::string to_string(int64_t teacher_layers) const;
};

/// Returns the number of a model's layers. Layers are the numbered modules of a transformer, such as "encoder.layer.3",
/// which all have tensors of the same names and shapes.
/// Throws: c10::ValueError if the model has no such layers, or several lists of them (the message names the lists)
int64_t layer_count(const Model& model);

/// Returns 0, 2, 4, …: `count` layers for a student.
/// Throws: c10::ValueError if the teacher has fewer than 2 · count − 1 layers
std::vector<int64_t> every_second_layer(int64_t count, int64_t teacher_layers);

/// Copies the weights of a teacher into a student with fewer layers, to initialize the student. Layer i of the student
/// gets the weights of layer layers[i] of the teacher. All other tensors are copied if the teacher has a tensor of the
/// same name and shape. The names may differ by the prefix of the base model (`bert.`, `distilbert.`, `transformer.`).
///
/// A DistilBERT can be initialized from a BERT. DistilBERT has no token types, so BERT's embedding of token type 0 is
/// added to the position embeddings. With the layers 0, 2, 4, 7, 9 and 11 and without this addition, this is the
/// initialization of distilbert-base.
/// Params:   student – changed in place; the dtype and device of its tensors do not change
/// Numerics: exact if dtypes are equal. A DistilBERT with all layers of a BERT computes the same hidden states up to
///           rounding (tests/models/layer_transfer_test.cpp)
/// Throws:   c10::ValueError if `layers` does not have one entry per layer of the student, or if a layer does not exist.
///           Also if a tensor of a layer is missing in the teacher or has a different shape. The student is then unchanged
/// Ref:      arXiv:1910.01108, section 2; transformers' extract_distilbert.py
LayerTransfer copy_layers(const Model& student, const Model& teacher, const std::vector<int64_t>& layers);

}  // namespace bellows::models
