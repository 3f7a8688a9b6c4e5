#pragma once

#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>

#include "bellows/optim/adafactor.h"
#include "bellows/optim/groups.h"
#include "bellows/optim/lamb.h"
#include "bellows/optim/lion.h"
#include "bellows/optim/muon.h"
#include "bellows/optim/novograd.h"

// The fields of each optimizer's options and state. They are defined once for writing, reading, overriding and
// checking.
namespace bellows::optim {

namespace to = torch::optim;

template <class F>
void fields(to::SGDOptions& o, F f) {
  f("lr", o.lr()), f("momentum", o.momentum()), f("dampening", o.dampening()), f("weight_decay", o.weight_decay());
  f("nesterov", o.nesterov());
}
template <class F>
void fields(to::SGDParamState& s, F f) {
  f("momentum_buffer", s.momentum_buffer());
}
template <class Options, class F>
void adam_options(Options& o, F f) {
  f("lr", o.lr()), f("betas", o.betas()), f("eps", o.eps()), f("weight_decay", o.weight_decay()),
      f("amsgrad", o.amsgrad());
}
template <class State, class F>
void adam_state_fields(State& s, F f) {
  f("step", s.step()), f("exp_avg", s.exp_avg()), f("exp_avg_sq", s.exp_avg_sq()),
      f("max_exp_avg_sq", s.max_exp_avg_sq());
}
template <class F>
void fields(to::AdamOptions& o, F f) {
  adam_options(o, f);
}
template <class F>
void fields(to::AdamParamState& s, F f) {
  adam_state_fields(s, f);
}
template <class F>
void fields(to::AdamWOptions& o, F f) {
  adam_options(o, f);
}
template <class F>
void fields(to::AdamWParamState& s, F f) {
  adam_state_fields(s, f);
}
template <class F>
void fields(to::RMSpropOptions& o, F f) {
  f("lr", o.lr()), f("alpha", o.alpha()), f("eps", o.eps()), f("weight_decay", o.weight_decay()),
      f("momentum", o.momentum());
  f("centered", o.centered());
}
template <class F>
void fields(to::RMSpropParamState& s, F f) {
  f("step", s.step()), f("square_avg", s.square_avg()), f("momentum_buffer", s.momentum_buffer()),
      f("grad_avg", s.grad_avg());
}
template <class F>
void fields(to::AdagradOptions& o, F f) {
  f("lr", o.lr()), f("lr_decay", o.lr_decay()), f("weight_decay", o.weight_decay()), f("eps", o.eps());
  f("initial_accumulator_value", o.initial_accumulator_value());
}
template <class F>
void fields(to::AdagradParamState& s, F f) {
  f("step", s.step()), f("sum", s.sum());
}
template <class F>
void fields(LionGroupOptions& o, F f) {
  f("lr", o.lr()), f("betas", o.betas()), f("weight_decay", o.weight_decay());
}
template <class F>
void fields(LionParamState& s, F f) {
  f("exp_avg", s.exp_avg());
}

template <class F>
void fields(AdafactorGroupOptions& o, F f) {
  f("lr", o.lr()), f("eps", o.eps()), f("clip_threshold", o.clip_threshold()), f("decay_rate", o.decay_rate());
  f("beta1", o.beta1()), f("weight_decay", o.weight_decay()), f("scale_parameter", o.scale_parameter());
  f("relative_step", o.relative_step()), f("warmup_init", o.warmup_init());
}
template <class F>
void fields(AdafactorParamState& s, F f) {
  f("step", s.step()), f("exp_avg_sq_row", s.exp_avg_sq_row()), f("exp_avg_sq_col", s.exp_avg_sq_col());
  f("exp_avg_sq", s.exp_avg_sq()), f("exp_avg", s.exp_avg());
}

template <class F>
void fields(LambGroupOptions& o, F f) {
  f("lr", o.lr()), f("betas", o.betas()), f("eps", o.eps()), f("weight_decay", o.weight_decay());
  f("max_grad_norm", o.max_grad_norm()), f("bias_correction", o.bias_correction());
  f("decoupled_weight_decay", o.decoupled_weight_decay()), f("grad_averaging", o.grad_averaging());
  f("always_adapt", o.always_adapt());
}
template <class F>
void fields(LambParamState& s, F f) {
  f("step", s.step()), f("exp_avg", s.exp_avg()), f("exp_avg_sq", s.exp_avg_sq());
}

template <class F>
void fields(NovoGradGroupOptions& o, F f) {
  f("lr", o.lr()), f("betas", o.betas()), f("eps", o.eps()), f("weight_decay", o.weight_decay());
  f("bias_correction", o.bias_correction()), f("grad_averaging", o.grad_averaging()), f("init_zero", o.init_zero());
  f("reg_inside_moment", o.reg_inside_moment()), f("max_norm", o.max_norm());
}
template <class F>
void fields(NovoGradParamState& s, F f) {
  f("step", s.step()), f("exp_avg", s.exp_avg()), f("grad_norm", s.grad_norm());
}

template <class F>
void fields(MuonGroupOptions& o, F f) {
  f("lr", o.lr()), f("weight_decay", o.weight_decay()), f("momentum", o.momentum()), f("nesterov", o.nesterov());
  f("eps", o.eps()), f("ns_steps", o.ns_steps()), f("ns_a", o.ns_a()), f("ns_b", o.ns_b()), f("ns_c", o.ns_c());
  f("match_rms_adamw", o.match_rms_adamw()), f("adamw", o.adamw()), f("adamw_lr_factor", o.adamw_lr_factor());
  f("betas", o.betas()), f("adamw_eps", o.adamw_eps());
}
template <class F>
void fields(MuonParamState& s, F f) {
  f("step", s.step()), f("momentum_buffer", s.momentum_buffer());
  f("exp_avg", s.exp_avg()), f("exp_avg_sq", s.exp_avg_sq());
}

template <class O, class S>
struct Kind {
  using Options = O;
  using State = S;
};

/// Calls `f` with the classes that belong to the options `o`. Returns false if none of the classes above matches.
template <class F>
bool with_kind(const to::OptimizerOptions& o, F f) {
  if (dynamic_cast<const to::SGDOptions*>(&o)) return f(Kind<to::SGDOptions, to::SGDParamState>());
  if (dynamic_cast<const to::AdamWOptions*>(&o)) return f(Kind<to::AdamWOptions, to::AdamWParamState>());
  if (dynamic_cast<const to::AdamOptions*>(&o)) return f(Kind<to::AdamOptions, to::AdamParamState>());
  if (dynamic_cast<const to::RMSpropOptions*>(&o)) return f(Kind<to::RMSpropOptions, to::RMSpropParamState>());
  if (dynamic_cast<const to::AdagradOptions*>(&o)) return f(Kind<to::AdagradOptions, to::AdagradParamState>());
  if (dynamic_cast<const LionGroupOptions*>(&o)) return f(Kind<LionGroupOptions, LionParamState>());
  if (dynamic_cast<const AdafactorGroupOptions*>(&o)) return f(Kind<AdafactorGroupOptions, AdafactorParamState>());
  if (dynamic_cast<const LambGroupOptions*>(&o)) return f(Kind<LambGroupOptions, LambParamState>());
  if (dynamic_cast<const NovoGradGroupOptions*>(&o)) return f(Kind<NovoGradGroupOptions, NovoGradParamState>());
  if (dynamic_cast<const MuonGroupOptions*>(&o)) return f(Kind<MuonGroupOptions, MuonParamState>());
  return false;
}

/// Sets the values in `options` that are given in `overrides`.
/// Throws: c10::ValueError if `overrides` has an option that this class does not have
void override_options(to::OptimizerOptions& options, const GroupOptions& overrides);

}  // namespace bellows::optim
