"""Writes tests/goldens/optim/{schedule,averaging,clip}.safetensors from PyTorch and transformers: python tools/goldens/schedule.py

schedule: the learning rate at steps 0 to 99, one row a parameter group (float64), under the names that tests/optim/schedule_test.cpp
looks up; momentum or beta1 under "<name>.momentum". averaging: a model's weights over 6 updates, its averages after each, batch-norm
statistics. clip: gradients, norms and clipped gradients.
"""

import math
import pathlib
import warnings

import safetensors.torch
import torch
import transformers
from torch import nn
from torch.optim import lr_scheduler as S
from torch.optim import swa_utils

warnings.filterwarnings("ignore")
out = pathlib.Path(__file__).resolve().parents[2] / "tests" / "goldens" / "optim"
versions = {"torch": torch.__version__, "transformers": transformers.__version__}
BASE, STEPS = 0.1, 100


def optimizer_of(kind=torch.optim.SGD, rates=(BASE,), **options):
    return kind([{"params": [torch.zeros(1, requires_grad=True)], "lr": rate} for rate in rates], lr=rates[0], **options)


def momentum_of(group):
    return group["betas"][0] if "betas" in group else group["momentum"]


def run(make, kind=torch.optim.SGD, rates=(BASE,), advance=lambda scheduler, step: scheduler.step(), **options):
    """Rates and momenta [groups, steps] while `advance` steps what `make(optimizer)` returned."""
    optimizer = optimizer_of(kind, rates, **options)
    scheduler = make(optimizer)
    lr, momentum = [], []
    for step in range(STEPS):
        lr.append([float(group["lr"]) for group in optimizer.param_groups])
        momentum.append([momentum_of(group) for group in optimizer.param_groups])
        optimizer.step()
        if step + 1 < STEPS:
            advance(scheduler, step)
    as_rows = lambda rows: torch.tensor(rows, dtype=torch.float64).T.contiguous()
    return as_rows(lr), as_rows(momentum)


def torch_schedules():
    rows = {
        "constant_lr": lambda o: S.ConstantLR(o, 0.25, 17),
        "step_lr": lambda o: S.StepLR(o, 7, 0.5),
        "multi_step_lr": lambda o: S.MultiStepLR(o, [3, 10, 50], 0.3),
        "exponential_lr": lambda o: S.ExponentialLR(o, 0.97),
        "linear_lr": lambda o: S.LinearLR(o, 0.2, 0.9, 40),
        "polynomial_lr": lambda o: S.PolynomialLR(o, 60, 2.5),
        "cosine_annealing_lr": lambda o: S.CosineAnnealingLR(o, 30, 0.01),
        "cosine_annealing_warm_restarts": lambda o: S.CosineAnnealingWarmRestarts(o, 10, 1, 0.004),
        "cosine_annealing_warm_restarts_2": lambda o: S.CosineAnnealingWarmRestarts(o, 7, 2),
        "lambda_lr": lambda o: S.LambdaLR(o, lambda step: 0.95**step),
        "chained": lambda o: S.ChainedScheduler([S.ConstantLR(o, 0.1, 20), S.ExponentialLR(o, 0.9)]),
        "sequential": lambda o: S.SequentialLR(
            o, [S.ConstantLR(o, 0.1, 20), S.CosineAnnealingLR(o, 40, 0.001), S.ExponentialLR(o, 0.9)], [20, 60]),
        "warmup_linear": lambda o: S.SequentialLR(o, [S.LinearLR(o, 0.01, 1, 12), S.CosineAnnealingLR(o, 88)], [12]),
        "warmup_constant": lambda o: S.SequentialLR(o, [S.ConstantLR(o, 0.3, 12), S.StepLR(o, 30)], [12]),
        "warmup_under": lambda o: S.ChainedScheduler([S.LinearLR(o, 0.1, 1, 25), S.ExponentialLR(o, 0.98)]),
        "warmup_exponential": lambda o: S.SequentialLR(
            o, [S.LambdaLR(o, lambda s: 0.001 ** (1 - s / 20)), S.PolynomialLR(o, 80)], [20]),
        "swa_lr_cos": lambda o: swa_utils.SWALR(o, 0.02, 15),
        "swa_lr_linear": lambda o: swa_utils.SWALR(o, 0.3, 15, "linear"),
        "swa_lr_at_once": lambda o: swa_utils.SWALR(o, 0.02, 0),
    }
    return {name: run(make)[0] for name, make in rows.items()}


def cycles():
    def one(**options):
        return lambda o: S.OneCycleLR(o, o.param_groups[0]["lr"], STEPS, **options)

    def cyclic(**options):
        return lambda o: S.CyclicLR(o, 0.02, 0.1, 10, **options)

    sgd = {"momentum": 0.9}
    rows = {
        "one_cycle_cos": (one(), torch.optim.SGD, sgd),
        "one_cycle_linear": (one(anneal_strategy="linear", pct_start=0.4, div_factor=10, final_div_factor=100), torch.optim.SGD, sgd),
        "one_cycle_three_phase": (one(three_phase=True, base_momentum=0.8, max_momentum=0.99), torch.optim.AdamW, {}),
        "one_cycle_at_once": (one(pct_start=0.0), torch.optim.Adam, {}),
        "cyclic_triangular": (cyclic(), torch.optim.SGD, sgd),
        "cyclic_triangular2": (cyclic(mode="triangular2", step_size_down=6), torch.optim.RMSprop, sgd),
        "cyclic_exp_range": (cyclic(mode="exp_range", gamma=0.98, base_momentum=0.7), torch.optim.Adam, {}),
    }
    result = {}
    for name, (make, kind, options) in rows.items():
        result[name], result[name + ".momentum"] = run(make, kind, **options)
    return result


def groups():
    """Two groups of other rates: one schedule, and one each with a lowest rate of 0.01 for both."""
    rates = (0.1, 0.03)
    return {
        "groups_same": run(lambda o: S.StepLR(o, 9, 0.7), rates=rates)[0],
        "groups_own": run(lambda o: S.CosineAnnealingLR(o, 25, 0.01), rates=rates)[0],
        "groups_one_cycle": run(lambda o: S.OneCycleLR(o, [0.1, 0.03], STEPS, cycle_momentum=False), rates=rates)[0],
    }


def swa_behind_cosine(start=40):
    """The loop of SWALR's documentation: the main schedule first, then the annealing to the averaging rate."""
    def make(o):
        return S.CosineAnnealingLR(o, 60), swa_utils.SWALR(o, 0.05, 10)

    return {"swa_lr_behind": run(make, advance=lambda s, step: s[step >= start].step())[0]}


def plateau():
    metrics = [1 / (1 + 0.2 * step) if step < 20 else 0.2 + 0.01 * math.sin(step) for step in range(STEPS)]
    rising = [1 - m for m in metrics]

    def go(series, **options):
        return run(lambda o: S.ReduceLROnPlateau(o, **options), advance=lambda s, step: s.step(series[step]))[0]

    return {
        "plateau_metrics": torch.tensor(metrics, dtype=torch.float64),
        "plateau": go(metrics, patience=3, factor=0.5),
        "plateau_max_abs": go(rising, mode="max", threshold=0.005, threshold_mode="abs", patience=2, cooldown=4, factor=0.3, min_lr=0.001),
    }


def transformers_schedules():
    T = transformers
    rows = {
        "hf_constant": lambda o: T.get_constant_schedule_with_warmup(o, 10),
        "hf_linear": lambda o: T.get_linear_schedule_with_warmup(o, 10, 90),
        "hf_cosine": lambda o: T.get_cosine_schedule_with_warmup(o, 10, 100),
        "hf_cosine_waves": lambda o: T.get_cosine_schedule_with_warmup(o, 10, 100, num_cycles=1.5),
        "hf_cosine_restarts": lambda o: T.get_cosine_with_hard_restarts_schedule_with_warmup(o, 10, 100, num_cycles=3),
        "hf_cosine_min": lambda o: T.get_cosine_with_min_lr_schedule_with_warmup(o, 10, 100, min_lr_rate=0.1),
        "hf_polynomial": lambda o: T.get_polynomial_decay_schedule_with_warmup(o, 10, 80, lr_end=1e-3, power=2.0),
        "hf_inverse_sqrt": lambda o: T.get_inverse_sqrt_schedule(o, 10),
        "hf_inverse_sqrt_25": lambda o: T.get_inverse_sqrt_schedule(o, 10, timescale=25),
    }
    return {name: run(make)[0] for name, make in rows.items()}


def averaging():
    torch.manual_seed(0)
    result = {}

    def net():
        return nn.Sequential(nn.Linear(5, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))

    model = net()
    kinds = {
        "ema": swa_utils.AveragedModel(model, multi_avg_fn=swa_utils.get_ema_multi_avg_fn(0.9)),
        "ema_buffers": swa_utils.AveragedModel(model, multi_avg_fn=swa_utils.get_ema_multi_avg_fn(0.9), use_buffers=True),
        "swa": swa_utils.AveragedModel(model, multi_avg_fn=swa_utils.get_swa_multi_avg_fn()),
    }
    for update in range(6):
        with torch.no_grad():
            for p in model.parameters():
                p.add_(torch.randn_like(p))
        model(torch.randn(8, 5))  # moves the running statistics
        for name, tensor in model.state_dict().items():
            result[f"model.{update}.{name}"] = tensor.clone()
        for kind, average in kinds.items():
            average.update_parameters(model)
            for name, tensor in average.state_dict().items():
                result[f"{kind}.{update}.{name}"] = tensor.clone()
    batches = [torch.randn(8, 5) for _ in range(3)]
    swa_utils.update_bn(batches, kinds["swa"])
    for i, batch in enumerate(batches):
        result[f"batch.{i}"] = batch
    for name, tensor in kinds["swa"].state_dict().items():
        result[f"swa.bn.{name}"] = tensor.clone()
    return result


def clip():
    torch.manual_seed(0)
    shapes = [(33, 17), (129,), (4, 3, 5, 5), (1,), (13, 41), (0, 3)]
    lists = {
        "f32": [torch.randn(s) for s in shapes],
        "f64": [torch.randn(s, dtype=torch.float64) for s in shapes[:4]],
        "bf16": [torch.randn(s).bfloat16() for s in shapes[:4]],
        "mixed": [torch.randn(s).to(d) for s, d in zip(shapes[:4], (torch.float32, torch.bfloat16, torch.float64, torch.float16))],
    }
    result = {}
    for kind, grads in lists.items():
        for i, grad in enumerate(grads):
            result[f"{kind}.{i}"] = grad
        for norm_type in (1.0, 2.0, 3.0, math.inf):
            filled = [g for g in grads if g.numel()]  # the largest of no elements is an error in PyTorch
            parameters = [nn.Parameter(torch.empty_like(g)) for g in filled]
            for p, g in zip(parameters, filled):
                p.grad = g.clone()
            norm = torch.nn.utils.clip_grad_norm_(parameters, 1.5, norm_type)
            result[f"{kind}.norm_{norm_type:g}"] = norm
            if norm_type == 2 or (kind != "f32" and norm_type == math.inf):
                for i, p in enumerate(parameters):
                    result[f"{kind}.clipped_{norm_type:g}.{i}"] = p.grad
    parameters = [nn.Parameter(torch.empty_like(g)) for g in lists["f64"]]
    for p, g in zip(parameters, lists["f64"]):
        p.grad = g.clone()
    torch.nn.utils.clip_grad_value_(parameters, 0.5)
    for i, p in enumerate(parameters):
        result[f"f64.value.{i}"] = p.grad
    return result


def write(name, tensors):
    tensors = {key: tensor.detach().contiguous().clone() for key, tensor in tensors.items()}
    safetensors.torch.save_file(tensors, out / name, metadata=versions)


if __name__ == "__main__":
    out.mkdir(parents=True, exist_ok=True)
    schedules = (torch_schedules, cycles, groups, swa_behind_cosine, plateau, transformers_schedules)
    write("schedule.safetensors", {name: rows for make in schedules for name, rows in make().items()})
    write("averaging.safetensors", averaging())
    write("clip.safetensors", clip())
