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

/// The precision of a model in training. policy() returns the policy of one of the four levels of NVIDIA Apex. You can
/// also set the fields yourself.
struct Policy {
  std::string name = "O0";
  c10::ScalarType dtype = c10::ScalarType::Float;  ///< bf16 or fp16; fp32 if nothing has low precision
  bool autocast = false;                           ///< forward under autocast: matmuls in `dtype`, losses in fp32
  bool low_weights = false;                        ///< parameters and floating-point buffers are in `dtype`
  bool norms_fp32 = false;                         ///< norm layers stay in fp32; only with low_weights
  bool master_weights = false;                     ///< the optimizer works on fp32 copies of low-precision weights
  bool loss_scaling = false;                       ///< use a GradScaler, because small gradients would underflow
  bool operator==(const Policy&) const = default;
};

/// Returns the policy of an Apex level:
/// - O0: fp32.
/// - O1: fp32 weights, forward under autocast.
/// - O2: weights and gradients in `dtype`, norm layers and master weights in fp32, forward under autocast.
/// - O3: everything in `dtype`. Use it as a reference for speed rather than for training.
/// Params: level – "O0", "O1", "O2" or "O3"; instead of the letter O, a lowercase o or a zero is accepted
///         dtype – bf16 or fp16; ignored by O0
/// Throws: c10::ValueError if the level is unknown, or if the dtype is neither bf16 nor fp16
/// Ref:    apex.amp.initialize(opt_level=…); arXiv:1710.03740
Policy policy(std::string_view level, c10::ScalarType dtype = c10::ScalarType::BFloat16);

/// Describes the policy in words, with one line each for weights, forward pass, inputs and outputs, gradients,
/// optimizer and loss scale.
std::string describe(const Policy& policy);

/// Returns the options of a GradScaler for this policy. The scaler is enabled if the policy requires loss scaling.
GradScalerOptions scaler_options(const Policy& policy);

/// A model with its fp32 master weights.
struct PreparedModel {
  Model model;            ///< forward casts inputs as the policy requires, and returns fp32
  MasterWeights masters;  ///< empty unless the policy has master weights
};

/// Applies `policy` to `model`. Parameters and buffers are cast in place. The tensor objects stay the same, so an
/// optimizer that holds them stays valid. The result is a handle to the same model. Its forward casts inputs and
/// outputs, and runs under autocast if the policy requires it. Existing gradients are discarded. Move the model to its
/// device before you call this function.
/// ```
/// auto [model, masters] = amp::apply(net, amp::policy("O2"));
/// optim::AdamW optimizer(model.parameters());
/// masters.attach(optimizer);
/// loop: optimizer.zero_grad(); loss(model(x), y).backward();
///       masters.take_gradients(); optimizer.step(); masters.write_back();
/// ```
/// Norm layers are all modules whose class name contains "Norm", including those of other libraries.
/// Numerics: O0 on an fp32 model is bit-identical to the plain model
/// Cost:     low-precision weights take half the bytes of fp32 weights; master weights take over the storage of the
///           original fp32 parameters, so they are not copied
/// Throws:   c10::ValueError if the policy is inconsistent, or if norm layers stay in fp32 but the model has no
///           information about its modules
PreparedModel apply(const Model& model, const Policy& policy);

}  // namespace bellows::amp
