"""The layers of bench/fused/bench_fused.cpp with PyTorch's operators, forward and backward."""

import torch
import torch.nn.functional as F

from protocol import serve

TOKENS, WIDTH, INNER, WORDS = 1024, 768, 3072, 30522


def trainable(*sizes, scale=1.0):
    torch.manual_seed(1)
    return [(torch.randn(size) * scale).requires_grad_() for size in sizes]


def layers():
    target = torch.randint(WORDS, (TOKENS,))
    return {
        "linear_cross_entropy": (lambda h, w: F.cross_entropy(F.linear(h, w), target), ((TOKENS, WIDTH), (WORDS, WIDTH)), 0.1),
        "softmax_cross_entropy": (lambda x: F.cross_entropy(x * 1, target), ((TOKENS, WORDS),), 1.0),
        "gelu_linear": (lambda x, w, b: F.linear(F.gelu(x), w, b), ((TOKENS, INNER), (WIDTH, INNER), (WIDTH,)), 1.0),
        "swiglu": (lambda gate, up: F.silu(gate) * up, ((TOKENS, INNER), (TOKENS, INNER)), 1.0),
        "dropout_add_norm": (lambda x, r, w, b: F.layer_norm(F.dropout(x, 0.1) + r, (WIDTH,), w, b),
                             ((TOKENS, WIDTH), (TOKENS, WIDTH), (WIDTH,), (WIDTH,)), 1.0)}


def main():
    known, steps, chosen = layers(), {}, []

    def use(name):
        if name not in steps:
            function, sizes, scale = known[name]
            inputs = trainable(*sizes, scale=scale)

            def step():
                y = function(*inputs)
                torch.autograd.grad(y, inputs, torch.ones_like(y))

            steps[name] = step
        chosen[:] = [steps[name]]
        return ["ok"]

    def run(count):
        for _ in range(count):
            chosen[0]()

    serve(run, {"use": use})


if __name__ == "__main__":
    main()
