"""Writes tests/goldens/amp from PyTorch: python tools/goldens/amp.py

Weights and inputs come from a formula (bench/peers/formula_weights.py), so that only results are stored.
"""

import contextlib
import json
import pathlib
import sys

import torch
import torch.nn.functional as F

root = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(root / "bench" / "peers"))
import formula_weights as formula  # noqa: E402

out = root / "tests" / "goldens" / "amp"
short = {torch.float32: "fp32", torch.bfloat16: "bf16", torch.float16: "fp16", torch.float64: "fp64"}
low = {"bf16": torch.bfloat16, "fp16": torch.float16}


def write(name, content):
    text = json.dumps({"versions": {"torch": torch.__version__}, **content}, separators=(",", ":"))
    (out / name).write_text(text.replace("],[", "],\n[") + "\n")


def values(name, *shape):
    return formula.uniform(name, shape).float()


# --- which dtype an operator's output has under autocast

X, Y = values("x", 4, 4), values("y", 4, 4)
V, B3 = values("v", 4), values("b3", 2, 4, 4)
IMAGE, KERNEL = values("image", 1, 4, 8, 8), values("kernel", 4, 4, 3, 3)
LABELS = torch.tensor([0, 1, 2, 3])

# Each gets fp32 tensors and a function that casts to the low dtype.
OPERATORS = {
    "mm": lambda c: X.mm(Y),
    "mm of low": lambda c: c(X).mm(c(Y)),
    "mm of low and fp32": lambda c: c(X).mm(Y),
    "matmul": lambda c: torch.matmul(B3, Y),
    "addmm": lambda c: torch.addmm(V, X, Y),
    "addmv": lambda c: torch.addmv(V, X, V),
    "mv": lambda c: X.mv(V),
    "bmm": lambda c: torch.bmm(B3, B3),
    "baddbmm": lambda c: torch.baddbmm(B3, B3, B3),
    "einsum": lambda c: torch.einsum("ij,jk->ik", X, Y),
    "linear": lambda c: F.linear(X, Y, V),
    "conv1d": lambda c: F.conv1d(values("i1", 1, 4, 8), values("k1", 4, 4, 3)),
    "conv2d": lambda c: F.conv2d(IMAGE, KERNEL),
    "conv_transpose2d": lambda c: F.conv_transpose2d(IMAGE, KERNEL),
    "scaled_dot_product_attention": lambda c: F.scaled_dot_product_attention(B3, B3, B3),
    "prelu": lambda c: F.prelu(X, V),
    "bilinear": lambda c: F.bilinear(X, Y, values("w3", 3, 4, 4)),
    "exp": lambda c: c(X).exp(),
    "log": lambda c: c(X).abs().log(),
    "pow": lambda c: c(X).abs().pow(1.5),
    "rsqrt": lambda c: c(X).abs().rsqrt(),
    "reciprocal": lambda c: c(X).reciprocal(),
    "softplus": lambda c: F.softplus(c(X)),
    "div": lambda c: c(X) / c(Y),
    "sum": lambda c: c(X).sum(),
    "mean": lambda c: c(X).mean(),
    "prod": lambda c: c(X).prod(),
    "cumsum": lambda c: c(X).cumsum(0),
    "norm": lambda c: c(X).norm(),
    "vector_norm": lambda c: torch.linalg.vector_norm(c(X)),
    "softmax": lambda c: c(X).softmax(1),
    "log_softmax": lambda c: c(X).log_softmax(1),
    "logsumexp": lambda c: c(X).logsumexp(1),
    "layer_norm": lambda c: F.layer_norm(c(X), [4]),
    "group_norm": lambda c: F.group_norm(c(IMAGE), 2),
    "batch_norm": lambda c: F.batch_norm(c(IMAGE), None, None, V, V, True),
    "mse_loss": lambda c: F.mse_loss(c(X), c(Y)),
    "l1_loss": lambda c: F.l1_loss(c(X), c(Y)),
    "smooth_l1_loss": lambda c: F.smooth_l1_loss(c(X), c(Y)),
    "huber_loss": lambda c: F.huber_loss(c(X), c(Y)),
    "kl_div": lambda c: F.kl_div(c(X), c(Y.abs())),
    "cross_entropy": lambda c: F.cross_entropy(c(X), LABELS),
    "nll_loss": lambda c: F.nll_loss(c(X), LABELS),
    "binary_cross_entropy_with_logits": lambda c: F.binary_cross_entropy_with_logits(c(X), c(Y.abs())),
    "cosine_similarity": lambda c: F.cosine_similarity(c(X), c(Y)),
    "cdist": lambda c: torch.cdist(c(X), c(Y)),
    "avg_pool2d": lambda c: F.avg_pool2d(c(IMAGE), 2),
    "max_pool2d": lambda c: F.max_pool2d(c(IMAGE), 2),
    "upsample_nearest2d": lambda c: F.interpolate(c(IMAGE), scale_factor=2, mode="nearest"),
    "cat": lambda c: torch.cat([c(X), Y]),
    "stack": lambda c: torch.stack([c(X), Y]),
    "add of low and fp32": lambda c: c(X) + Y,
    "addcmul": lambda c: torch.addcmul(c(X), c(Y), Y),
    "atan2": lambda c: torch.atan2(c(X), Y),
    "relu": lambda c: c(X).relu(),
    "gelu": lambda c: F.gelu(c(X)),
    "sigmoid": lambda c: c(X).sigmoid(),
    "tanh": lambda c: c(X).tanh(),
    "embedding": lambda c: F.embedding(LABELS, X),
    "fp64 mm": lambda c: X.double().mm(Y.double()),
}


def output_dtype(operator, dtype):
    try:
        with torch.autocast("cpu", dtype):
            return short[operator(lambda t: t.to(dtype)).dtype]
    except RuntimeError:
        return "error"


def autocast_dtypes():
    write("autocast.json", {"dtypes": {k: {d: output_dtype(op, low[d]) for d in low} for k, op in OPERATORS.items()}})


# --- the scaler over two optimizers


def grad_scaler(steps=200):
    w, b = values("w", 8, 4).requires_grad_(), values("b", 4).requires_grad_()
    table, c = values("table", 16, 4).requires_grad_(), values("c", 4).requires_grad_()
    first = torch.optim.SGD([w, b], lr=0.05, momentum=0.9)
    second = torch.optim.SGD([table, c], lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=7)
    trajectory = []
    for i in range(steps):
        first.zero_grad(), second.zero_grad()
        x, y = values(f"x{i % 4}", 6, 8), values(f"y{i % 4}", 6, 4)
        rows = formula.labels(f"rows{i % 4}", 6, 16)
        losses = [((x @ w + b - y) ** 2).mean(), ((F.embedding(rows, table, sparse=True) * c - y) ** 2).mean()]
        for loss in scaler.scale(losses):
            loss.backward()
        if i % 11 == 5:
            w.grad[0, 0] = torch.inf
        if i % 17 == 8:
            table.grad._values()[0, 0] = torch.nan
        if i % 23 == 20:
            c.grad[0] = -torch.inf
        if i % 3 == 0:
            scaler.unscale_(first)
        scaler.step(first), scaler.step(second)
        stepped = [sum(f.item() for f in scaler._found_inf_per_device(o).values()) == 0 for o in (first, second)]
        if i == 60:
            scaler.set_growth_factor(4.0), scaler.set_backoff_factor(0.25)
        if i == 150:
            scaler.set_growth_interval(3)
        scaler.update(*[512.0] if i == 120 else [])
        if i == 90:
            state, scaler = scaler.state_dict(), torch.amp.GradScaler("cpu")
            scaler.load_state_dict(state)
        sums = [t.detach().double().sum().item() for t in (w, b, table, c)]
        trajectory.append([scaler.get_scale(), scaler._get_growth_tracker(), *map(int, stepped), *sums])
    final = {k: t.flatten().tolist() for k, t in {"w": w, "b": b, "table": table, "c": c}.items()}
    write("grad_scaler.json", {"trajectory": trajectory, "final": final, "state": scaler.state_dict()})


# --- the example that mixed precision is introduced with: Linear(1024, 512), batch 64, 500 steps of SGD


def linear_example(dtype, steps=500, every=25):
    net = formula.set_formula_weights(torch.nn.Linear(1024, 512))
    x, y = 2 * values("example/x", 64, 1024), 2 * values("example/y", 64, 512)
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-3)
    scaler = torch.amp.GradScaler("cpu", enabled=dtype == torch.float16)
    losses = []
    for step in range(steps):
        with contextlib.nullcontext() if dtype == torch.float32 else torch.autocast("cpu", dtype):
            loss = F.mse_loss(net(x), y)
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        if step % every == 0 or step == steps - 1:
            losses.append(loss.item())
    return losses


if __name__ == "__main__":
    out.mkdir(parents=True, exist_ok=True)
    autocast_dtypes()
    grad_scaler()
    write("example.json", {short[d]: linear_example(d) for d in (torch.float32, torch.bfloat16, torch.float16)})
