"""Writes tests/goldens/optim/layerwise.json: trajectories of LAMB, NovoGrad, LARC and Muon, for tests/optim/layerwise_test.cpp.

    python -m venv venv && venv/bin/pip install torch==2.11.0 numpy timm==1.0.20
    venv/bin/python tools/goldens/layerwise.py

The optimizers of apex run only on GPUs, so their formulas are transcribed here in float64 from csrc/multi_tensor_lamb.cu,
csrc/multi_tensor_novograd.cu and apex/parallel/LARC.py. Where timm has the same variant, the transcription is compared with it.
Muon is torch.optim.Muon itself. In float64, its Newton-Schulz iteration runs in float64, too.
"""

import json
import math
import pathlib

import numpy as np
import timm.optim
import torch

out = pathlib.Path(__file__).resolve().parents[2] / "tests" / "goldens" / "optim"
shapes = [(), (17,), (5, 3), (2, 3, 2, 2)]
matrices = [(5, 3), (3, 7), (4, 4)]
marks = (1, 50)


def formula(index, shape, step):
    """What element i of tensor `index` is: step 0 gives the parameter, others the gradients (as in optim.py)."""
    i = np.arange(max(1, math.prod(shape)), dtype=np.float64)
    return torch.from_numpy(np.sin(0.7 * i + 1.3 * index + 2.1 * step) * (1 + 0.5 * np.cos(0.9 * step))).reshape(shape)


class Lamb:
    """apex.optimizers.FusedLAMB with the kernels LAMBStage1Functor and LAMBStage2Functor."""

    def __init__(self, params, lr=1e-3, betas=(0.9, 0.999), eps=1e-6, weight_decay=0.01, max_grad_norm=1.0, bias_correction=True,
                 decoupled_weight_decay=True, grad_averaging=True, always_adapt=False):
        self.params, self.lr, self.betas, self.eps, self.decay = params, lr, betas, eps, weight_decay
        self.max_grad_norm, self.bias_correction, self.decoupled = max_grad_norm, bias_correction, decoupled_weight_decay
        self.averaging, self.always = grad_averaging, always_adapt
        self.m = [torch.zeros_like(p) for p in params]
        self.v = [torch.zeros_like(p) for p in params]
        self.t = 0

    @torch.no_grad()
    def step(self):
        self.t += 1
        beta1, beta2 = self.betas
        beta3 = 1 - beta1 if self.averaging else 1.0
        correction1 = 1 - beta1**self.t if self.bias_correction else 1.0
        correction2 = 1 - beta2**self.t if self.bias_correction else 1.0
        norm = math.sqrt(sum(p.grad.square().sum().item() for p in self.params))
        clip = norm / self.max_grad_norm if self.max_grad_norm > 0 and norm > self.max_grad_norm else 1.0
        for p, m, v in zip(self.params, self.m, self.v):
            g = p.grad / clip
            if not self.decoupled:
                g = g + self.decay * p
            m.copy_(m * beta1 + beta3 * g)
            v.copy_(v * beta2 + (1 - beta2) * g * g)
            update = (m / correction1) / ((v / correction2).sqrt() + self.eps)
            if self.decoupled:
                update = update + self.decay * p
            ratio = self.lr
            if self.always or self.decay != 0:
                param_norm, update_norm = p.norm().item(), update.norm().item()
                if param_norm != 0 and update_norm != 0:
                    ratio = self.lr * (param_norm / update_norm)
            p.sub_(ratio * update)


class NovoGrad:
    """apex.optimizers.FusedNovoGrad with the kernel NovoGradFunctor."""

    def __init__(self, params, lr=1e-3, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.0, bias_correction=True, grad_averaging=True,
                 init_zero=False, reg_inside_moment=False, max_norm=False):
        self.params, self.lr, self.betas, self.eps, self.decay = params, lr, betas, eps, weight_decay
        self.bias_correction, self.averaging, self.init_zero = bias_correction, grad_averaging, init_zero
        self.inside, self.max_norm = reg_inside_moment, max_norm
        self.m = [torch.zeros_like(p) for p in params]
        self.norms = None
        self.t = 0

    @torch.no_grad()
    def step(self):
        self.t += 1
        beta1, beta2 = self.betas
        beta3 = 1 - beta1 if self.averaging else 1.0
        correction1 = 1 - beta1**self.t if self.bias_correction else 1.0
        correction2 = math.sqrt(1 - beta2**self.t) if self.bias_correction else 1.0
        now = [(p.grad.abs().max() if self.max_norm else p.grad.norm()).item() for p in self.params]
        if self.norms is None:
            self.norms = [0.0] * len(now) if self.init_zero else list(now)
        for i, (p, m) in enumerate(zip(self.params, self.m)):
            if self.max_norm:
                self.norms[i] = beta2 * self.norms[i] + (1 - beta2) * now[i]
            else:
                self.norms[i] = math.sqrt(beta2 * self.norms[i] ** 2 + (1 - beta2) * now[i] ** 2)
            denom = self.norms[i] / correction2 + self.eps
            if self.inside:
                m.copy_(beta1 * m + beta3 * (p.grad / denom + self.decay * p))
                p.sub_(self.lr * (m / correction1))
            else:
                m.copy_(beta1 * m + beta3 * p.grad)
                p.sub_(self.lr * ((m / correction1) / denom + self.decay * p))


class Larc:
    """apex.parallel.LARC around an optimizer of PyTorch."""

    def __init__(self, optimizer, trust_coefficient=0.02, clip=True, eps=1e-8):
        self.optim, self.trust, self.clip, self.eps = optimizer, trust_coefficient, clip, eps

    @torch.no_grad()
    def step(self):
        decays = []
        for group in self.optim.param_groups:
            decay = group.get("weight_decay", 0)
            decays.append(decay)
            group["weight_decay"] = 0
            for p in group["params"]:
                param_norm, grad_norm = p.norm(), p.grad.norm()
                if param_norm != 0 and grad_norm != 0:
                    rate = self.trust * param_norm / (grad_norm + param_norm * decay + self.eps)
                    if self.clip:
                        rate = min(rate / group["lr"], 1)
                    p.grad = (p.grad + decay * p) * rate
        self.optim.step()
        for group, decay in zip(self.optim.param_groups, decays):
            group["weight_decay"] = decay


def larc(params, base, larc, **options):
    return Larc(getattr(torch.optim, base)(params, **options), **larc)


class AdamWAndMuon:
    """Matrices go to torch.optim.Muon, all others to torch.optim.AdamW."""

    def __init__(self, params, adamw_betas=(0.9, 0.999), adamw_lr_factor=1.0, **options):
        lr, decay = options.get("lr", 1e-3), options.get("weight_decay", 0.1)
        self.parts = [torch.optim.Muon([p for p in params if p.dim() == 2], **options)]
        others = [p for p in params if p.dim() != 2]
        if others:
            self.parts.append(torch.optim.AdamW(others, lr=lr * adamw_lr_factor, weight_decay=decay, betas=tuple(adamw_betas)))

    def step(self):
        for part in self.parts:
            part.step()


def run(make, options, shapes, change=lambda step, i, g: g):
    parameters = [formula(index, shape, 0).requires_grad_() for index, shape in enumerate(shapes)]
    options = {key: tuple(value) if isinstance(value, list) else value for key, value in options.items()}
    optimizer = make(parameters, **options)
    result = {}
    for step in range(1, 51):
        for index, p in enumerate(parameters):
            p.grad = formula(index, p.shape, step)
        optimizer.step()
        if step in marks:
            result[str(step)] = [x for p in parameters for x in p.detach().flatten().tolist()]
    return result


all_lamb = {"lr": 0.02, "betas": [0.8, 0.99], "eps": 1e-4, "weight_decay": 0.1}
all_novograd = {"lr": 0.02, "betas": [0.95, 0.5], "eps": 1e-4, "weight_decay": 0.01}
sgd = {"base": "SGD", "lr": 0.05, "momentum": 0.9, "weight_decay": 0.01}
cases = {
    "lamb": (Lamb, {"lr": 0.01}),
    "lamb_unclipped": (Lamb, all_lamb | {"max_grad_norm": 0.0, "bias_correction": False}),
    "lamb_coupled": (Lamb, all_lamb | {"decoupled_weight_decay": False, "grad_averaging": False}),
    "lamb_adam": (Lamb, {"lr": 0.01, "weight_decay": 0.0}),
    "lamb_always": (Lamb, {"lr": 0.01, "weight_decay": 0.0, "always_adapt": True}),
    "novograd": (NovoGrad, {"lr": 0.01}),
    "novograd_inside": (NovoGrad, all_novograd | {"reg_inside_moment": True, "bias_correction": False}),
    "novograd_zero": (NovoGrad, all_novograd | {"init_zero": True, "grad_averaging": False}),
    "novograd_max": (NovoGrad, all_novograd | {"max_norm": True}),
    "larc_sgd": (larc, sgd | {"larc": {}}),
    "larc_unclipped": (larc, sgd | {"nesterov": True, "larc": {"clip": False, "trust_coefficient": 0.5}}),
    "larc_adamw": (larc, {"base": "AdamW", "lr": 0.05, "weight_decay": 0.1, "larc": {"eps": 1e-3}}),
}
muon_cases = {
    "muon": {"lr": 0.02},
    "muon_adamw_rms": {"lr": 0.02, "adjust_lr_fn": "match_rms_adamw", "weight_decay": 0.2, "momentum": 0.8, "nesterov": False},
    "muon_all": {"lr": 0.01, "ns_steps": 3, "ns_coefficients": [2.0, -1.5, 0.5], "eps": 1e-3, "adamw_betas": [0.8, 0.99],
                 "adamw_lr_factor": 0.5},
}


def close(a, b, limit):
    return all(np.allclose(a[k], b[k], rtol=0, atol=limit) for k in a)


def compare_with_timm():
    """The variants that timm implements in the same way."""
    lamb = {"lr": 0.02, "betas": [0.8, 0.99], "eps": 1e-6, "weight_decay": 0.1}
    assert close(run(Lamb, lamb, shapes), run(timm.optim.Lamb, lamb | {"max_grad_norm": 1.0}, shapes), 1e-10)
    inside = {"lr": 0.02, "betas": [0.95, 0.5], "eps": 0.0, "weight_decay": 0.01}
    ours = run(NovoGrad, inside | {"reg_inside_moment": True, "bias_correction": False, "grad_averaging": False}, shapes)
    assert close(ours, run(timm.optim.NvNovoGrad, inside, shapes), 1e-5)  # its norms are in float32


if __name__ == "__main__":
    compare_with_timm()
    golden = {"versions": {"torch": torch.__version__.split("+")[0], "timm": "1.0.20"}, "cases": {}, "muon": {}}
    for name, (make, options) in cases.items():
        golden["cases"][name] = {"class": make.__name__, "options": options, "float64": run(make, options, shapes)}
    half = torch.Tensor.bfloat16
    for name, options in muon_cases.items():
        of_all = matrices + shapes
        entry = {"options": options, "bfloat16": run(AdamWAndMuon, options, of_all)}
        torch.Tensor.bfloat16 = lambda tensor: tensor.clone()  # the iteration in float64
        entry["float64"] = run(AdamWAndMuon, options, of_all)
        torch.Tensor.bfloat16 = half
        golden["muon"][name] = entry
    text = json.dumps(golden, separators=(",", ":"))
    (out / "layerwise.json").write_text(text.replace('"},', '"},\n').replace("]},", "]},\n") + "\n")
