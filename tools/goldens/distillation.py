"""Writes tests/goldens/nn/distillation.safetensors from PyTorch: python tools/goldens/distillation.py

For each loss NAME: NAME.loss, and the gradients of the student's tensors. The losses are those of Hugging Face's distillation script and of
the reference code of attention transfer, written out.
"""

import pathlib

import safetensors.torch
import torch
import torch.nn.functional as F

out = pathlib.Path(__file__).resolve().parents[2] / "tests" / "goldens" / "nn"
torch.manual_seed(0)
tensors = {
    "student": torch.randn(3, 4, 7, dtype=torch.float64) * 3,
    "teacher": torch.randn(3, 4, 7, dtype=torch.float64) * 3,
    "student_hidden": torch.randn(3, 4, 5, dtype=torch.float64),
    "teacher_hidden": torch.randn(3, 4, 5, dtype=torch.float64),
    "student_maps": torch.randn(3, 2, 4, 4, dtype=torch.float64),
    "teacher_maps": torch.randn(3, 6, 4, 4, dtype=torch.float64),
    "mask": torch.rand(3, 4) < 0.6,
    "labels": torch.randint(0, 7, (3, 4)),
}
tensors["labels"][0, 1] = -100
inputs = dict(tensors)
mask = inputs["mask"]


def kl(student, teacher, t):
    return F.kl_div((student / t).log_softmax(-1), (teacher / t).softmax(-1), reduction="batchmean") * t**2


def selected(name):
    return inputs[name][mask]


def cosine(x, y):
    return torch.nn.CosineEmbeddingLoss(reduction="mean")(x, y, torch.ones(len(x)))


def attention(maps):
    return F.normalize(maps.pow(2).mean(1).view(len(maps), -1))


losses = {
    "kl": lambda: kl(inputs["student"].flatten(0, 1), inputs["teacher"].flatten(0, 1), 2.0),
    "kl_masked": lambda: kl(selected("student"), selected("teacher"), 3.5),
    "mse": lambda: F.mse_loss(inputs["student_hidden"], inputs["teacher_hidden"]),
    "mse_masked": lambda: F.mse_loss(selected("student_hidden"), selected("teacher_hidden")),
    "cosine": lambda: cosine(inputs["student_hidden"].flatten(0, 1), inputs["teacher_hidden"].flatten(0, 1)),
    "cosine_masked": lambda: cosine(selected("student_hidden"), selected("teacher_hidden")),
    "attention": lambda: (attention(inputs["student_maps"]) - attention(inputs["teacher_maps"])).pow(2).mean(),
    "triple": lambda: 5 * kl(selected("student"), selected("teacher"), 2.0)
    + 2 * F.cross_entropy(inputs["student"].flatten(0, 1), inputs["labels"].flatten(), ignore_index=-100)
    + cosine(selected("student_hidden"), selected("teacher_hidden")),
}
for name, loss in losses.items():
    for student in ("student", "student_hidden", "student_maps"):
        inputs[student] = tensors[student].clone().requires_grad_()
    value = loss()
    value.backward()
    tensors[f"{name}.loss"] = value.detach()
    for student in ("student", "student_hidden", "student_maps"):
        if inputs[student].grad is not None:
            tensors[f"{name}.{student}.grad"] = inputs[student].grad
safetensors.torch.save_file(tensors, out / "distillation.safetensors", {"torch": torch.__version__, "seed": "0"})
