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

/// Which numbers a model is trained in. policy() gives the four of apex; others can be put together.
struct Policy {
  std::string name = "O0";
  c10::ScalarType dtype = c10::ScalarType::Float;  ///< bf16 or fp16; fp32: nothing is low
  bool autocast = false;        ///< the forward pass runs by libtorch's lists: products low, losses in fp32
  bool low_weights = false;     ///< parameters and floating-point buffers are kept in `dtype`
  bool norms_fp32 = false;      ///< except those of normalization layers; matters with low_weights
  bool master_weights = false;  ///< the optimizer works on fp32 copies of low weights
  bool loss_scaling = false;    ///< small gradients would become zero: use a GradScaler
  bool operator==(const Policy&) const = default;
};

/// apex's levels.
/// - O0: fp32.
/// - O1: fp32 weights, forward under autocast.
/// - O2: weights and gradients in `dtype`, norms in fp32, fp32 master weights; forward under autocast.
/// - O3: everything in `dtype`: a yardstick for speed rather than a way to train.
/// Params: level – "O0" … "O3"; the letter is an O, a zero is understood too
///         dtype – bf16 or fp16; ignored by O0
/// Throws: c10::ValueError – another level or dtype
/// Ref:    apex.amp.initialize(opt_level=…); arXiv:1710.03740
Policy policy(std::string_view level, c10::ScalarType dtype = c10::ScalarType::BFloat16);

/// The policy in words: one line each about weights, norms, forward pass, gradients, optimizer and loss scale.
std::string describe(const Policy& policy);

/// What a GradScaler for this policy is made with: enabled where the loss has to be scaled.
GradScalerOptions scaler_options(const Policy& policy);

/// A model and the fp32 weights behind it.
struct PreparedModel {
  Model model;            ///< forward casts floating-point input to the policy's dtype and returns fp32
  MasterWeights masters;  ///< empty unless the policy has master weights
};

/// Puts `model` under `policy`: casts its parameters and buffers in place (tensors keep their identity, so an optimizer
/// that holds them stays valid) and returns a handle to the same model whose forward casts at the boundary and runs
/// under autocast where the policy says so. Gradients that are there are dropped. Move the model
/// to its device first.
/// ```
/// auto [model, masters] = amp::apply(net, amp::policy("O2"));
/// optim::AdamW optimizer(model.parameters());
/// masters.attach(optimizer);
/// loop: optimizer.zero_grad(); loss(model(x), y).backward();
///       masters.take_gradients(); optimizer.step(); masters.write_back();
/// ```
/// Norms are modules whose class name contains "Norm", libtorch's and others'.
/// Numerics: O0 on an fp32 model is bit for bit the plain model
/// Cost:     low weights halve the weights' bytes; master weights are the old fp32 tensors, not copies
/// Throws:   c10::ValueError – norms are to stay fp32 and the model does not know its modules; a policy that
///           contradicts itself
PreparedModel apply(const Model& model, const Policy& policy);

}  // namespace bellows::amp
