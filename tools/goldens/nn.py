"""Writes tests/goldens/nn from PyTorch, torchvision and timm: python tools/goldens/nn.py

losses.safetensors holds, for each case NAME: NAME.x (logits or log-probabilities), NAME.target, NAME.loss and NAME.grad (of the sum
of the loss with respect to x), in float64. Which options a case has stands here and, under the same name, in tests/nn/loss_test.cpp.
modules.safetensors holds the state dicts, outputs and gradients of LayerNorm and RMSNorm.
"""

import pathlib

import safetensors.torch
import timm
import timm.loss
import torch
import torch.nn.functional as F
import torchvision
from timm.data.mixup import one_hot
from torch import nn
from torchvision.ops import sigmoid_focal_loss

out = pathlib.Path(__file__).resolve().parents[2] / "tests" / "goldens" / "nn"
metadata = {"torch": torch.__version__, "torchvision": torchvision.__version__, "timm": timm.__version__, "seed": "0"}


def focal(x, target, gamma, weight, smoothing, ignore_index):
    """Cross-entropy whose terms are scaled by (1 - p)^gamma, written out."""
    classes = x.shape[1]
    log_p = F.log_softmax(x, 1)
    q = F.one_hot(target.clamp(min=0), classes).movedim(-1, 1).double() * (1 - smoothing) + smoothing / classes
    w = weight.view(1, -1, *[1] * (x.dim() - 2))
    values = -(q * w * (1 - log_p.exp()) ** gamma * log_p).sum(1)
    kept = target != ignore_index
    return (values * kept).sum() / (weight[target.clamp(min=0)] * kept).sum()


def losses():
    torch.manual_seed(0)
    tensors = {}

    def case(name, x, target, loss):
        x = x.double().requires_grad_()
        value = loss(x, target)
        (grad,) = torch.autograd.grad(value.sum(), x)
        tensors.update({f"{name}.x": x.detach(), f"{name}.target": target, f"{name}.loss": value.detach(), f"{name}.grad": grad})

    def logits(*shape):
        return torch.randn(shape, dtype=torch.float64) * 3

    def binary(*shape):
        return torch.randint(0, 2, shape).double()

    def soft(*shape):
        return torch.rand(shape, dtype=torch.float64).softmax(1)

    def indices(classes, *shape):
        target = torch.randint(0, classes, shape)
        target.view(-1)[1] = -100
        return target

    weight = torch.tensor([0.2, 1.5, 1.0, 0.7, 2.5], dtype=torch.float64)
    bce = F.binary_cross_entropy_with_logits
    case("bce_smooth", logits(6, 5), binary(6, 5), lambda x, t: bce(x, t * 0.9 + 0.05))
    case("bce_weights", logits(6, 5), binary(6, 5), lambda x, t: bce(x, t * 0.8 + 0.1, weight=weight, pos_weight=weight + 1, reduction="sum"))
    case("bce_none", logits(2, 5, 3), binary(2, 5, 3), lambda x, t: bce(x, t, pos_weight=weight.view(5, 1), reduction="none"))
    case("bce_indices", logits(6, 5), torch.randint(0, 5, (6,)),
         timm.loss.BinaryCrossEntropy(smoothing=0.1, weight=weight, pos_weight=weight + 1))
    case("nll_smooth", logits(7, 5).log_softmax(1), torch.randint(0, 5, (7,)), lambda x, t: F.cross_entropy(x, t, label_smoothing=0.1))
    for reduction in ("mean", "sum", "none"):
        case(f"nll_all_{reduction}", logits(3, 5, 2, 2).log_softmax(1), indices(5, 3, 2, 2), lambda x, t: F.cross_entropy(
            x, t, weight=weight, ignore_index=-100, label_smoothing=0.3, reduction=reduction))
    case("nll_plain", logits(7, 5), indices(5, 7), lambda x, t: F.nll_loss(x, t, weight=weight))
    case("soft", logits(6, 5), soft(6, 5), timm.loss.SoftTargetCrossEntropy())
    case("soft_all", logits(3, 5, 4), soft(3, 5, 4), lambda x, t: F.cross_entropy(x, t, weight=weight, label_smoothing=0.2))
    case("soft_none", logits(3, 5, 4), soft(3, 5, 4), lambda x, t: F.cross_entropy(x, t, reduction="none"))
    case("kl", logits(6, 5), soft(6, 5), lambda x, t: F.kl_div(x.log_softmax(1), t, reduction="batchmean"))
    case("kl_all", logits(6, 5), F.one_hot(torch.arange(6) % 5, 5).double(), lambda x, t: (
        F.kl_div(x.log_softmax(1), t * 0.8 + 0.04, reduction="none") * weight).sum(1).sum())
    case("focal", logits(7, 5), torch.randint(0, 5, (7,)), lambda x, t: focal(x, t, 2.0, torch.ones(5).double(), 0.0, -100))
    case("focal_all", logits(3, 5, 2, 2), indices(5, 3, 2, 2), lambda x, t: focal(x, t, 1.5, weight, 0.1, -100))
    case("sigmoid_focal", logits(6, 5), binary(6, 5), lambda x, t: sigmoid_focal_loss(x, t))
    case("sigmoid_focal_mean", logits(6, 5), binary(6, 5), lambda x, t: sigmoid_focal_loss(x, t, alpha=0.6, gamma=1.3, reduction="mean"))
    case("sigmoid_focal_all", logits(6, 5), binary(6, 5), lambda x, t: (
        sigmoid_focal_loss(x, t * 0.9 + 0.05, alpha=-1, gamma=3) * weight).sum())
    case("asymmetric", logits(6, 5), binary(6, 5), timm.loss.AsymmetricLossMultiLabel())
    case("asymmetric_all", logits(6, 5), binary(6, 5), timm.loss.AsymmetricLossMultiLabel(gamma_neg=2, gamma_pos=0.5, clip=0.1))
    labels = torch.randint(0, 5, (6,))
    tensors.update({"one_hot.target": labels, "one_hot.loss": one_hot(labels, 5, on_value=1 - 0.1 + 0.1 / 5, off_value=0.1 / 5)})
    safetensors.torch.save_file({k: v.contiguous() for k, v in tensors.items()}, out / "losses.safetensors", metadata=metadata)


def modules():
    torch.manual_seed(1)
    tensors = {}
    for name, module in (("layer", nn.LayerNorm((3, 5))), ("rms", nn.RMSNorm((3, 5)))):
        module = module.double()
        with torch.no_grad():
            for parameter in module.parameters():
                parameter.copy_(torch.randn_like(parameter))
        x = torch.randn(4, 3, 5, dtype=torch.float64, requires_grad=True)
        y = module(x)
        dy = torch.randn_like(y)
        y.backward(dy)
        tensors.update({f"{name}.state.{k}": v.detach() for k, v in module.state_dict().items()})
        tensors.update({f"{name}.grad.{k}": p.grad for k, p in module.named_parameters()})
        tensors.update({f"{name}.x": x.detach(), f"{name}.y": y.detach(), f"{name}.dy": dy, f"{name}.dx": x.grad})
    safetensors.torch.save_file(tensors, out / "modules.safetensors", metadata=metadata)


if __name__ == "__main__":
    out.mkdir(parents=True, exist_ok=True)
    losses()
    modules()
