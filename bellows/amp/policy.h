#pragma once

#include <c10/core/DeviceType.h>
#include <c10/core/ScalarType.h>

#include <memory>
#include <string>
#include <string_view>

#include "bellows/amp/grad_scaler.h"
#include "bellows/amp/master_weights.h"
#include "bellows/core/model.h"

namespace bellows::amp {

/// The precision of a model in training. policy() returns the four levels of apex; you can also set the fields
/// yourself.
struct Policy {
  std::string name = "O0";
  c10::ScalarType dtype = c10::ScalarType::Float;  ///< bf16 or fp16; fp32 for no low precision
  bool autocast = false;                           ///< forward under autocast: matmuls in `dtype`, losses in fp32
  bool low_weights = false;                        ///< parameters and floating-point buffers are in `dtype`
  bool norms_fp32 = false;                         ///< except those of normalization layers; only with low_weights
  bool master_weights = false;                     ///< the optimizer works on fp32 copies of low-precision weights
  bool loss_scaling = false;                       ///< use a GradScaler, because small gradients would become zero
  bool operator==(const Policy&) const = default;
};

/// The levels of apex.
/// - O0: fp32.
/// - O1: fp32 weights, forward under autocast.
/// - O2: weights and gradients in `dtype`, norms in fp32, fp32 master weights; forward under autocast.
/// - O3: everything in `dtype`: a reference for speed rather than a way to train.
/// Params: level – "O0" … "O3"; starts with the letter O, but a zero is accepted, too
///         dtype – bf16 or fp16; ignored by O0
/// Throws: c10::ValueError if the level or dtype is another one
/// Ref:    apex.amp.initialize(opt_level=…); arXiv:1710.03740
Policy policy(std::string_view level, c10::ScalarType dtype = c10::ScalarType::BFloat16);

/// Describes the policy in words, with one line each for weights, norms, forward pass, gradients, optimizer and loss
/// scale.
std::string describe(const Policy& policy);

/// Options of a GradScaler for this policy. It is enabled if the policy needs loss scaling.
GradScalerOptions scaler_options(const Policy& policy);

/// A model with its fp32 master weights.
struct PreparedModel {
  Model model;            ///< forward casts floating-point input to the policy's dtype and returns fp32
  MasterWeights masters;  ///< empty unless the policy has master weights
};

/// Applies `policy` to `model`. Casts its parameters and buffers in place; tensors keep their identity, so an optimizer
/// that holds them stays valid. Returns a handle to the same model whose forward casts inputs and outputs, and runs
/// under autocast if the policy requires it. Existing gradients are dropped. Move the model to its device first.
/// ```
/// auto [model, masters] = amp::apply(net, amp::policy("O2"));
/// optim::AdamW optimizer(model.parameters());
/// masters.attach(optimizer);
/// loop: optimizer.zero_grad(); loss(model(x), y).backward();
///       masters.take_gradients(); optimizer.step(); masters.write_back();
/// ```
/// Norms are all modules whose class name contains "Norm", including those of other libraries.
/// Numerics: O0 on an fp32 model is bit-identical to the plain model
/// Cost:     low-precision weights take half the bytes; master weights are the original fp32 tensors, not copies
/// Throws:   c10::ValueError if norms are to stay in fp32 but the model has no information about its modules, or if the
///           policy is inconsistent
PreparedModel apply(const Model& model, const Policy& policy);

}  // namespace bellows::amp
