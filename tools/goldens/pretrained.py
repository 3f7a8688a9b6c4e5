"""Writes tests/goldens/models/pretrained.json: the names, config.json and logits of transformers' ResNets, whose weights come from
bench/peers/formula_weights.py. Run: python tools/goldens/pretrained.py
"""

import json
import pathlib
import sys

import torch
import transformers

root = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(root / "bench" / "peers"))
import formula_weights as formula  # noqa: E402

BASIC = {"layer_type": "basic", "hidden_sizes": [64, 128, 256, 512]}
BOTTLENECK = {"layer_type": "bottleneck", "hidden_sizes": [256, 512, 1024, 2048]}
KINDS = {"resnet18": {**BASIC, "depths": [2, 2, 2, 2]}, "resnet50": {**BOTTLENECK, "depths": [3, 4, 6, 3]}}


def golden(options):
    config = transformers.ResNetConfig(num_labels=10, **options)
    net = formula.set_formula_weights(transformers.ResNetForImageClassification(config)).eval()
    with torch.no_grad():
        logits = net(formula.uniform("input0", (2, 3, 64, 64)).float()).logits
    state = [[name, list(tensor.shape)] for name, tensor in net.state_dict().items()]
    return {"config": json.loads(config.to_json_string()), "state": state, "logits": logits.flatten().tolist()}


if __name__ == "__main__":
    content = {"transformers": transformers.__version__, "torch": torch.__version__}
    content.update({name: golden(options) for name, options in KINDS.items()})
    text = json.dumps(content, separators=(",", ":")).replace("],[", "],\n[")
    (root / "tests" / "goldens" / "models" / "pretrained.json").write_text(text + "\n")
