#pragma once

#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "bellows/optim/optimizers.h"

namespace bellows::optim {

/// The fields that all options share.
template <class Options>
void set_common(Options& o, const nlohmann::json& json, Impl impl, bool master_weights) {
  o.lr = json.value("lr", o.lr);
  o.weight_decay = json.value("weight_decay", o.weight_decay);
  o.maximize = json.value("maximize", false);
  o.master_weights = master_weights;
  o.impl = impl;
}

template <class Options>
void set_betas(Options& o, const nlohmann::json& json) {
  if (!json.contains("betas")) return;
  o.beta1 = json.at("betas").at(0);
  o.beta2 = json.at("betas").at(1);
}

template <class Options>
void set_adam(Options& o, const nlohmann::json& json) {
  set_betas(o, json);
  o.eps = json.value("eps", o.eps);
  o.amsgrad = json.value("amsgrad", false);
}

/// An optimizer by its class's name, with options as Python spells them.
/// Params: parameters – tensors or groups
template <class Parameters>
std::unique_ptr<LibtorchOptimizer> make_optimizer(const std::string& name, const nlohmann::json& json,
                                                  const Parameters& parameters, Impl impl, bool master_weights) {
  if (name == "SGD") {
    SGDOptions o{.momentum = json.value("momentum", 0.0),
                 .dampening = json.value("dampening", 0.0),
                 .nesterov = json.value("nesterov", false)};
    set_common(o, json, impl, master_weights);
    return std::make_unique<SGD>(parameters, o);
  }
  if (name == "Adam" || name == "AdamW") {
    AdamOptions adam;
    AdamWOptions adamw;
    set_common(adam, json, impl, master_weights), set_common(adamw, json, impl, master_weights);
    set_adam(adam, json), set_adam(adamw, json);
    if (name == "Adam") return std::make_unique<Adam>(parameters, adam);
    return std::make_unique<AdamW>(parameters, adamw);
  }
  if (name == "RMSprop") {
    RMSpropOptions o{.alpha = json.value("alpha", 0.99),
                     .eps = json.value("eps", 1e-8),
                     .momentum = json.value("momentum", 0.0),
                     .centered = json.value("centered", false)};
    set_common(o, json, impl, master_weights);
    return std::make_unique<RMSprop>(parameters, o);
  }
  if (name == "Adagrad") {
    AdagradOptions o{.lr_decay = json.value("lr_decay", 0.0),
                     .initial_accumulator_value = json.value("initial_accumulator_value", 0.0)};
    set_common(o, json, impl, master_weights);
    return std::make_unique<Adagrad>(parameters, o);
  }
  LionOptions o;
  set_betas(o, json);
  set_common(o, json, impl, master_weights);
  return std::make_unique<Lion>(parameters, o);
}

/// The same for the classes that know low-bit state.
template <class Parameters>
std::unique_ptr<LibtorchOptimizer> make_low_bit(const std::string& name, const nlohmann::json& json,
                                                const Parameters& parameters, State state) {
  const auto make = [&]<class Optimizer>(auto options, std::type_identity<Optimizer>) {
    set_common(options, json, Impl::automatic, false);
    if constexpr (requires { options.beta1; }) set_betas(options, json);
    if constexpr (requires { options.eps; }) options.eps = json.value("eps", options.eps);
    if constexpr (requires { options.momentum; }) options.momentum = json.value("momentum", 0.0);
    options.state_dtype = state;
    options.min_8bit_size = json.value("min_8bit_size", options.min_8bit_size);
    return std::unique_ptr<LibtorchOptimizer>(std::make_unique<Optimizer>(parameters, options));
  };
  if (name == "SGD") return make(SGDOptions(), std::type_identity<SGD>());
  if (name == "Adam") return make(AdamOptions(), std::type_identity<Adam>());
  if (name == "AdamW") return make(AdamWOptions(), std::type_identity<AdamW>());
  return make(LionOptions(), std::type_identity<Lion>());
}

}  // namespace bellows::optim
