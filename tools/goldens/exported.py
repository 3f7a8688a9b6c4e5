"""Writes programs of torch.export and what the eager modules compute: python tools/goldens/exported.py

tests/goldens/exported/NAME.pt2 is the program, and NAME.ref a dict of tensors: inputs of two sizes ("input.0", "other.0") and of
a size that is out of range ("bad.0"), outputs in training and evaluation mode ("output.0", "other_output.0", "eval.0"),
gradients ("grad.fc.weight") and buffers ("buffer.bn.running_mean") after a step, the losses of 20 steps of SGD ("losses"), and
the outputs after them in evaluation mode ("trained.0"). The loss is the sum of the means of the squared outputs.

python tools/goldens/exported.py --known FOLDER [NAME…]: the same for models of torchvision and transformers.
python tools/goldens/exported.py --verify FOLDER: opens the trained programs that exported_test wrote, and compares their outputs.
"""

import copy
import json
import pathlib
import re
import sys
import warnings

import torch
import torch.nn.functional as F
from torch import nn
from torch.export import Dim, export
from torch.export.pt2_archive._package import package_pt2
from torch.utils import _pytree as pytree

SEED, STEPS, LR, MOMENTUM = 1234, 20, 0.05, 0.9
B, T = Dim("b", min=2, max=64), Dim("t", min=4, max=64)


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(width, width, 3, padding=1, bias=False), nn.BatchNorm2d(width)
        self.conv2, self.bn2 = nn.Conv2d(width, width, 3, padding=1, bias=False), nn.BatchNorm2d(width)
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x):
        return self.relu(self.bn2(self.conv2(self.relu(self.bn1(self.conv1(x))))) + x)


class Cnn(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem, self.bn, self.block = nn.Conv2d(1, 4, 3, padding=1, bias=False), nn.BatchNorm2d(4), Block(4)
        self.fc = nn.Linear(4, 10)

    def forward(self, x):
        return self.fc(F.max_pool2d(self.block(F.relu(self.bn(self.stem(x)))), 2).mean((2, 3)))


class TwoInTwoOut(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b, self.head = nn.Linear(6, 8), nn.Linear(4, 8), nn.Linear(8, 3)

    def forward(self, left, pair):
        h = torch.tanh(self.a(left) + self.b(pair[0] * pair[1]))
        return {"scores": self.head(h), "energy": h.pow(2).mean(1)}


class Lstm(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb, self.out = nn.Embedding(20, 8), nn.Linear(12, 4)
        self.lstm = nn.LSTM(8, 6, num_layers=2, batch_first=True, bidirectional=True)

    def forward(self, tokens):
        h, (_, cell) = self.lstm(self.emb(tokens))
        return self.out(h[:, -1]), cell[-1]


class CondNet(nn.Module):
    """A branch on a value that is known only at run time."""

    plain = False  # the eager reference uses a Python `if`

    def __init__(self):
        super().__init__()
        self.pos, self.neg = nn.Linear(5, 3), nn.Linear(5, 3)

    def forward(self, x):
        yes, no = (lambda v: torch.relu(self.pos(v))), (lambda v: self.neg(v).sin() * 2)
        if self.plain:
            return yes(x) if x.sum() > 0 else no(x)
        return torch.cond(x.sum() > 0, yes, no, (x,))


class Buffers(nn.Module):
    """Statistics of batches, a counter, an assigned moving average, a buffer that is not saved, and constants."""

    def __init__(self):
        super().__init__()
        self.fc, self.bn, self.head = nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Linear(8, 2)
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))
        self.register_buffer("mean", torch.zeros(8))
        self.register_buffer("scale", torch.full((8,), 0.5), persistent=False)
        self.shift = torch.linspace(-1, 1, 8)

    def forward(self, x):
        h = self.bn(self.fc(x)) * self.scale + self.shift + torch.tensor([0.25])
        self.calls += 1
        self.mean = 0.9 * self.mean + 0.1 * h.detach().mean(0)
        return self.head(h - self.mean)


class Average(nn.Module):
    """A buffer that autograd saves for backward, and that forward then replaces."""

    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 4)
        self.register_buffer("mean", torch.ones(4))

    def forward(self, x):
        y = self.fc(x) * self.mean
        self.mean = 0.9 * self.mean + 0.1 * y.detach().mean(0)
        return y


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb, self.mix, self.head = nn.Embedding(11, 6), nn.Linear(6, 6), nn.Linear(6, 11, bias=False)
        self.head.weight = self.emb.weight

    def forward(self, tokens):
        return self.head(torch.tanh(self.mix(self.emb(tokens))).mean(1))


class Keyword(nn.Module):
    """Keyword inputs, and arguments whose values become part of the program."""

    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 3)

    def forward(self, x, *, bias=None, gain, power=2):
        return (self.fc(x) * gain).abs() ** power + bias


class Dropouts(nn.Module):
    """All layers with another result in training."""

    def __init__(self):
        super().__init__()
        self.conv, self.norm = nn.Conv2d(2, 4, 3, padding=1), nn.BatchNorm2d(4)
        self.instance = nn.InstanceNorm2d(4, affine=True, track_running_stats=True)
        self.drop, self.drop2, self.alpha = nn.Dropout(0.3), nn.Dropout2d(0.3), nn.AlphaDropout(0.1)
        self.lstm = nn.LSTM(16, 6, 2, dropout=0.2, batch_first=True)
        self.attention = nn.MultiheadAttention(6, 2, dropout=0.1, batch_first=True)
        self.out = nn.Linear(6, 3)

    def forward(self, x):
        h = self.alpha(self.instance(self.drop2(self.norm(self.conv(x)))))
        h = self.lstm(self.drop(h.flatten(1, 2)))[0]
        return self.out(self.attention(h, h, h, need_weights=False)[0].mean(1))


class Flow(nn.Module):
    """An integer input, a region without gradients, a loop, an infinite constant, and a size that depends on data."""

    plain = False

    def __init__(self):
        super().__init__()
        self.fc, self.head = nn.Linear(4, 4), nn.Linear(4, 3)

    def forward(self, x, n):
        with torch.no_grad():
            scale = x.abs().mean() + n
        if self.plain:
            for _ in range(3):
                x = torch.tanh(self.fc(x))
        else:
            body = lambda i, v: (i + 1, torch.tanh(self.fc(v)))  # noqa: E731
            x = torch._higher_order_ops.while_loop(lambda i, v: i < 3, body, (torch.tensor(0), x))[1]
        x = self.head(x * scale)
        best = x.masked_fill(x < -100, float("-inf")).softmax(1)
        return best * n + (x.detach() > -99).nonzero().shape[0] / 1000


class Shapes(nn.Module):
    """Arithmetic with sizes."""

    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 4)

    def forward(self, x):
        b, t, c = x.shape
        h = self.fc(x).reshape(b * t // 2, 2 * c)
        position = torch.arange(t, device=x.device, dtype=x.dtype)[None, :, None].expand(b, t, 1)
        k = h.sum() / (b * t) + torch.zeros(b, t + 1).sum()
        return (h.view(b, t, c) + position / t + k)[:, : t - 1].sum(1) * (1.0 / t**0.5)


class Odd(nn.Module):
    """Weights that are channels-last, transposed, parts of one storage, empty, frozen, or of other dtypes."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3).to(memory_format=torch.channels_last)
        big = torch.randn(40)
        self.u, self.v = nn.Parameter(big[4:8]), nn.Parameter(big[20:24])
        self.t, self.zero_d = nn.Parameter(torch.randn(4, 4).t()), nn.Parameter(torch.tensor(0.7))
        self.empty, self.frozen = nn.Parameter(torch.empty(0, 4)), nn.Parameter(torch.randn(4), requires_grad=False)
        self.register_buffer("mask", torch.tensor([True, False, True, True]))
        self.register_buffer("low", torch.randn(4).half())
        self.register_buffer("window", big[0:4])

    def forward(self, x):
        h = self.conv(x).mean((2, 3)) * self.u + self.v
        h = torch.cat([h @ self.t, self.empty]) * self.low.float() * self.zero_d
        return torch.where(self.mask, h + self.frozen, h * 0.5) + self.window


class Depth(nn.Module):
    """Stochastic depth, which has no flag in the program."""

    def __init__(self):
        super().__init__()
        self.fc, self.head = nn.Linear(5, 5), nn.Linear(5, 3)

    def forward(self, x):
        h = self.fc(x)
        if self.training:
            h = h * torch.empty(x.shape[0], 1).bernoulli_(0.5) / 0.5
        return self.head(torch.relu(x + h))


class Autocast(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc, self.head = nn.Linear(5, 8), nn.Linear(8, 3)

    def forward(self, x):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            h = torch.relu(self.fc(x))
        return self.head(h.float())


class Scan(nn.Module):
    """A loop over the steps of a sequence."""

    plain = False

    def __init__(self):
        super().__init__()
        self.fc, self.head = nn.Linear(6, 6), nn.Linear(6, 2)

    def forward(self, x):
        def step(state, row):
            state = torch.tanh(self.fc(row) + state)
            return state, state * 2

        state, steps = torch.zeros_like(x[0]), x.unbind(0)
        if self.plain:
            rows = []
            for row in steps:
                state, one = step(state, row)
                rows.append(one)
            return self.head(state), torch.stack(rows).mean((1, 2))
        state, rows = torch._higher_order_ops.scan(step, state, x)
        return self.head(state), rows.mean((1, 2))


def text_inputs(b, t, words=40):
    mask = torch.ones(b, t, dtype=torch.int64)
    mask[0, t - 2 :] = 0
    return dict(input_ids=torch.randint(0, words, (b, t)), attention_mask=mask)


def transformer(config_name, model_name, **config):
    def make():
        import transformers
        return getattr(transformers, model_name)(getattr(transformers, config_name)(**config))
    return make


def image(make, channels=3, side=64):
    return make, lambda b: ((torch.randn(b, channels, side, side),), {}), ({0: B},), (4, 6, 65)


def text(make, words=40, dynamic=None):
    dynamic = dynamic or {0: B, 1: T}
    return make, lambda b: ((), text_inputs(b, b + 5, words)), {"input_ids": dynamic, "attention_mask": dynamic}, (3, 6, 65)


def vision(name, **options):
    def make():
        import torchvision
        return getattr(torchvision.models, name)(num_classes=10, **options)
    return make


rows = lambda *shape: lambda b: ((torch.randn(b, *shape),), {})  # noqa: E731
tokens = lambda words, length: lambda b: ((torch.randint(0, words, (b, length)),), {})  # noqa: E731
tiny_bert = dict(vocab_size=40, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=24,
                 max_position_embeddings=66, num_labels=3)
tiny_gpt = dict(vocab_size=40, n_embd=16, n_layer=1, n_head=2, n_positions=66, use_cache=False)
even = 2 * Dim("half_t", min=2, max=16)
# name: module, inputs by batch size, dynamic shapes, (batch sizes of the export, of other inputs, and out of range)
cases = dict(
    cnn=(Cnn, rows(1, 8, 8), ({0: B},), (4, 6, 65)),
    bert=text(transformer("BertConfig", "BertForSequenceClassification", **tiny_bert)),
    gpt2=text(transformer("GPT2Config", "GPT2LMHeadModel", **tiny_gpt)),
    two=(TwoInTwoOut, lambda b: ((torch.randn(b, 6), (torch.randn(b, 4), torch.randn(b, 4))), {}),
         ({0: B}, ({0: B}, {0: B})), (5, 8, 65)),
    lstm=(Lstm, tokens(20, 6), ({0: B},), (3, 7, 65)),
    cond=(CondNet, lambda b: ((torch.randn(abs(b), 5).abs() * (1 if b > 0 else -1),), {}), ({0: B},), (4, -6, 65)),
    buffers=(Buffers, rows(6), ({0: B},), (4, 9, 65)),
    average=(Average, rows(4), ({0: B},), (4, 9, 65)),
    tied=(Tied, tokens(11, 5), ({0: B},), (4, 9, 65)),
    keyword=(Keyword, lambda b: ((torch.randn(b, 4),), dict(gain=torch.rand(3) + 1, bias=torch.randn(3), power=3)),
             dict(x={0: B}, gain=None, bias=None, power=None), (4, 9, 65)),
    dropouts=(Dropouts, rows(2, 8, 16), ({0: B},), (3, 5, 65)),
    shapes=(Shapes, lambda b: ((torch.randn(abs(b), 2 * abs(b) + (b < 0), 4),), {}), ({0: B, 1: even},), (3, 5, -3)),
    flow=(Flow, lambda b: ((torch.randn(b, 4), b), {}), ({0: B}, Dim.DYNAMIC), (4, 9, 65)),
    odd=(Odd, rows(3, 6, 6), ({0: B},), (3, 7, 65)),
    depth=(Depth, rows(5), ({0: B},), (4, 9, 65)),
    scan=(Scan, lambda b: ((torch.randn(4, b, 6),), {}), ({1: B},), (4, 9, 65)),
    autocast=(Autocast, rows(5), ({0: B},), (4, 9, 65)),
)
functional = ["cnn", "buffers", "average"]  # also after run_decompositions({})
hidden = dict(hidden_size=64, num_hidden_layers=2, num_attention_heads=4, intermediate_size=128)
llama = dict(vocab_size=40, num_key_value_heads=2, max_position_embeddings=128, use_cache=False, **hidden)
known = dict(
    resnet18=image(vision("resnet18")),
    resnet50=image(vision("resnet50")),
    mobilenet_v3_small=image(vision("mobilenet_v3_small")),
    efficientnet_b0=image(vision("efficientnet_b0")),
    densenet121=image(vision("densenet121")),
    shufflenet_v2=image(vision("shufflenet_v2_x0_5")),
    convnext_tiny=image(vision("convnext_tiny")),
    vit_b_16=image(vision("vit_b_16", image_size=64)),
    swin_t=image(vision("swin_t")),
    bert=text(transformer("BertConfig", "BertForSequenceClassification", vocab_size=40, **hidden)),
    distilbert=text(transformer("DistilBertConfig", "DistilBertForSequenceClassification", vocab_size=40, dim=64, n_layers=2,
                                n_heads=4, hidden_dim=128)),
    gpt2=text(transformer("GPT2Config", "GPT2LMHeadModel", vocab_size=40, n_embd=64, n_layer=2, n_head=4, use_cache=False)),
    llama=text(transformer("LlamaConfig", "LlamaForCausalLM", **llama), dynamic={0: Dim.AUTO, 1: Dim.AUTO}),
    qwen2=text(transformer("Qwen2Config", "Qwen2ForCausalLM", **llama), dynamic={0: Dim.AUTO, 1: Dim.AUTO}),
    t5=(transformer("T5Config", "T5ForConditionalGeneration", vocab_size=40, d_model=64, d_kv=16, d_ff=128, num_layers=2,
                    num_heads=4, use_cache=False),
        lambda b: ((), dict(input_ids=torch.randint(0, 40, (b, 7)), decoder_input_ids=torch.randint(0, 40, (b, 5)))),
        {"input_ids": {0: B}, "decoder_input_ids": {0: B}}, (3, 6, 65)),
)


def tensors_of(outputs):
    return [o for o in pytree.tree_leaves(outputs) if isinstance(o, torch.Tensor)]


def loss_of(outputs):
    return sum(o.pow(2).mean() for o in outputs if o.is_floating_point())


def flat(args, kwargs):
    """The inputs that are no constants, by their position in the signature."""
    leaves = pytree.tree_leaves((args, kwargs))
    burnt_in = [id(v) for k, v in kwargs.items() if k == "power"]
    return {i: torch.as_tensor(x) for i, x in enumerate(leaves) if id(x) not in burnt_in or isinstance(x, torch.Tensor)}


def clean(text):
    """Removes what describes the machine of the export, and all but the last line of each stack trace."""
    program = json.loads(text)

    def visit(graph):
        for node in graph["nodes"]:
            trace = re.findall(r'File "[^"]*?([^"/]*)", line (\d+), in (\S+)', node["metadata"].get("stack_trace", ""))
            kept = {"nn_module_stack": node["metadata"].get("nn_module_stack", "")}
            if trace:
                kept["stack_trace"] = 'File "%s", line %s, in %s\n' % trace[-1]
            node["metadata"] = kept
            for given in node["inputs"]:
                if "as_graph" in given["arg"]:
                    visit(given["arg"]["as_graph"]["graph"])

    visit(program["graph_module"]["graph"])
    return json.dumps(program, separators=(",", ":"))


def write(path, programs):
    package_pt2(str(path), exported_programs=programs)
    reader = torch._C.PyTorchFileReader(str(path))
    names = reader.get_all_records()
    records = {name: reader.get_record(name) for name in names}
    del reader
    path.unlink()
    writer = torch._C.PyTorchFileWriter(str(path))
    for name, record in records.items():
        if name.startswith(".data/") or name == "byteorder":
            continue
        if name.startswith("models/"):
            record = clean(record).encode()
        writer.write_record(name, record, len(record))
    writer.write_end_of_file()


def run(module, args, kwargs):
    torch.manual_seed(SEED)
    return tensors_of(module(*args, **kwargs))


def fresh(module):
    module = copy.deepcopy(module)
    if hasattr(module, "plain"):
        module.plain = True
    return module


def train(module, args, kwargs):
    optimizer = torch.optim.SGD(module.parameters(), lr=LR, momentum=MOMENTUM)
    losses = []
    torch.manual_seed(SEED)
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = loss_of(tensors_of(module(*args, **kwargs)))
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return torch.tensor(losses, dtype=torch.float64)


def reference(module, inputs):
    (args, kwargs), (args2, kwargs2), (args3, kwargs3) = inputs
    ref = {}
    for key, values in (("input", flat(args, kwargs)), ("other", flat(args2, kwargs2)), ("bad", flat(args3, kwargs3))):
        ref |= {f"{key}.{i}": x for i, x in values.items()}

    def add(key, outputs):
        ref.update({f"{key}.{i}": o.detach().clone() for i, o in enumerate(outputs)})

    one = fresh(module)
    outputs = run(one, args, kwargs)
    loss_of(outputs).backward()
    add("output", outputs)
    ref |= {f"grad.{k}": p.grad for k, p in one.named_parameters() if p.grad is not None}
    ref |= {f"buffer.{k}": b.clone() for k, b in one.named_buffers()}
    with torch.no_grad():
        add("other_output", run(fresh(module), args2, kwargs2))
        add("eval", run(fresh(module).eval(), args, kwargs))
    one = fresh(module)
    ref["losses"] = train(one, args, kwargs)
    with torch.no_grad():
        add("trained", run(one.eval(), args, kwargs))
    return ref


def write_case(folder, name, case, form=""):
    make, data, dynamic, sizes = case
    torch.manual_seed(0)
    module = make().train()
    inputs = [data(size) for size in sizes]
    pristine = copy.deepcopy(module)
    args, kwargs = inputs[0]
    program = export(module, args, kwargs, dynamic_shapes=dynamic)
    if form:
        program = program.run_decompositions({})
        name += "_functional"
    programs = {"model": program}
    if name == "depth_pair":
        programs = {"train": program, "eval": export(copy.deepcopy(pristine).eval(), args, kwargs, dynamic_shapes=dynamic)}
    if name == "cnn_eval":
        programs = {"model": export(copy.deepcopy(pristine).eval(), args, kwargs, dynamic_shapes=dynamic)}
    write(folder / f"{name}.pt2", programs)
    torch.save(reference(pristine, inputs), folder / f"{name}.ref")
    print(name, sum(p.numel() for p in pristine.parameters()), "parameters", flush=True)


def verify(folder):
    import transformers.modeling_outputs  # noqa: F401  torch.export.load needs the classes of the outputs
    worst = 0.0
    paths = sorted(folder.glob("*.trained.pt2"))
    for path in paths:
        expected = torch.load(str(path) + ".outputs")
        program = torch.export.load(str(path))
        spec = program.call_spec.in_spec
        leaves = [expected.get(f"input.{i}", 3) for i in range(spec.num_leaves)]
        leaves = [x.item() if isinstance(x, torch.Tensor) and x.dim() == 0 else x for x in leaves]
        args, kwargs = pytree.tree_unflatten(leaves, spec)
        torch.manual_seed(SEED)
        with torch.no_grad():
            got = tensors_of(program.module()(*args, **kwargs))
        difference = max((o.double() - expected[f"output.{i}"].double()).abs().max().item() for i, o in enumerate(got))
        print(f"{path.name}: largest difference {difference:g}")
        worst = max(worst, difference)
    print(f"{len(paths)} trained programs opened, largest difference {worst:g}")
    sys.exit(1 if worst > 0 or not paths else 0)


def main():
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    if sys.argv[1:2] == ["--verify"]:
        verify(pathlib.Path(sys.argv[2]))
    if sys.argv[1:2] == ["--known"]:
        folder = pathlib.Path(sys.argv[2])
        for name in sys.argv[3:] or known:
            try:
                write_case(folder, name, known[name])
            except Exception as error:  # the exporter does not support every model
                print(f"{name}: not exported: {type(error).__name__}: {str(error)[:200]}", flush=True)
        return
    folder = pathlib.Path(__file__).resolve().parents[2] / "tests" / "goldens" / "exported"
    folder.mkdir(exist_ok=True)
    for name in [name for name in sys.argv[1:] or cases if name in cases]:
        write_case(folder, name, cases[name])
        if name in functional:
            write_case(folder, name, cases[name], "functional")
    if not sys.argv[1:] or "pairs" in sys.argv:
        write_case(folder, "depth_pair", cases["depth"])
        write_case(folder, "cnn_eval", cases["cnn"])


if __name__ == "__main__":
    main()
