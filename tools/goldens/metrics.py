"""Writes tests/goldens/metrics/metrics.json from torchmetrics and scikit-learn: python tools/goldens/metrics.py

Every case gives the same batches to a torchmetrics module and, where it has the metric, all of them at once to scikit-learn. Both
results are kept; where they disagree, which is said in the file, the library follows torchmetrics unless the case says otherwise.
"""

import json
import math
import pathlib
import warnings

import numpy as np
import sklearn
import sklearn.metrics as sk
import torch
import torchmetrics
import torchmetrics.classification as tc
import torchmetrics.regression as tr

warnings.filterwarnings("ignore")
root = pathlib.Path(__file__).resolve().parents[2]
out = root / "tests" / "goldens" / "metrics"
C, L, T = 5, 3, 4  # classes, labels, tokens
generator = torch.Generator().manual_seed(4)


def grid(x, steps=4096):
    """Values that are short in the file and exact in float32."""
    return torch.round(x * steps) / steps


def randn(*shape):
    return grid(torch.randn(shape, generator=generator) * 2)


def rand(*shape):
    return grid(torch.rand(shape, generator=generator))


def randint(high, *shape):
    return torch.randint(high, shape, generator=generator)


def with_ignored(target, index):
    return torch.where(rand(*target.shape) < 0.25, index, target)


def batches(make, sizes=(11, 16, 5)):
    return [make(n) for n in sizes]


def softmax(x):
    return grid(x.softmax(1))


def leaning(target, columns, strength=2.0):
    """Scores that are right more often than not."""
    return grid(randn(*target.shape, columns) + strength * torch.nn.functional.one_hot(target, columns))


def multiclass_data():
    def labelled(n, classes=C):
        target = randint(classes, n)
        return leaning(target, C), target

    def absent(n):  # class 3 is neither a target nor predicted, class 4 only predicted
        scores, target = labelled(n, 3)
        scores[:, 3] = -9
        return scores, target

    def single_class(label):
        return lambda n: (randn(n, C), torch.full((n,), label))

    def ignored(index):
        return lambda n: (lambda s, t: (s, with_ignored(t, index)))(*labelled(n))

    return {
        "multiclass logits": batches(labelled),
        "multiclass probabilities": batches(lambda n: (lambda s, t: (softmax(s), t))(*labelled(n))),
        "multiclass ties": batches(lambda n: (lambda s, t: (grid(s.softmax(1), 4), t))(*labelled(n))),
        "multiclass equal scores": batches(lambda n: (torch.full((n, C), 0.25), randint(C, n))),
        "multiclass absent classes": batches(absent),
        "multiclass one class": batches(single_class(2)),
        "multiclass single sample": batches(labelled, (1,)),
        "multiclass labels": batches(lambda n: (randint(C, n), randint(C, n))),
        "multiclass ignore -100": batches(ignored(-100)),
        "multiclass ignore 2": batches(ignored(2)),
        "multiclass all ignored": batches(lambda n: (randn(n, C), torch.full((n,), -100)), (6,)),
        "multiclass pixels": batches(lambda n: (lambda t: (leaning(t, C).movedim(-1, 1).contiguous(), t))(randint(C, n, 2, 3)), (2, 3)),
    }


def binary_data():
    def labelled(n, threshold=0.5):
        target = randint(2, n)
        return grid(torch.randn(n, generator=generator) + 1.5 * target - 0.75), target

    def sigmoid(scores_target):
        return grid(scores_target[0].sigmoid()), scores_target[1]

    return {
        "binary logits": batches(labelled),
        "binary probabilities": batches(lambda n: sigmoid(labelled(n))),
        "binary ties": batches(lambda n: (lambda s, t: (grid(s.sigmoid(), 4), t))(*labelled(n))),
        "binary equal scores": batches(lambda n: (torch.full((n,), 0.5), randint(2, n))),
        "binary only positives": batches(lambda n: (rand(n), torch.ones(n, dtype=torch.long))),
        "binary only negatives": batches(lambda n: (rand(n), torch.zeros(n, dtype=torch.long))),
        "binary single sample": [(torch.tensor([0.75]), torch.tensor([1]))],
        "binary labels": batches(lambda n: (randint(2, n), randint(2, n))),
        "binary ignore -1": batches(lambda n: (lambda s, t: (s, with_ignored(t, -1)))(*sigmoid(labelled(n)))),
        "binary pixels": batches(lambda n: (rand(n, 2, 2), randint(2, n, 2, 2)), (3, 2)),
    }


def multilabel_data():
    def labelled(n):
        target = randint(2, n, L)
        return grid(torch.randn((n, L), generator=generator) + 1.5 * target - 0.75), target

    def absent(n):
        scores, target = labelled(n)
        target[:, 1] = 0
        return grid(scores.sigmoid()), target

    return {
        "multilabel logits": batches(labelled),
        "multilabel probabilities": batches(lambda n: (lambda s, t: (grid(s.sigmoid()), t))(*labelled(n))),
        "multilabel absent label": batches(absent),
        "multilabel labels": batches(lambda n: (randint(2, n, L), randint(2, n, L))),
        "multilabel ignore -1": batches(lambda n: (lambda s, t: (grid(s.sigmoid()), with_ignored(t, -1)))(*labelled(n))),
        "multilabel pixels": batches(lambda n: (rand(n, L, 2), randint(2, n, L, 2)), (4, 3)),
    }


def other_data():
    def numbers(*shape):
        return lambda n: (lambda t: (t + randn(n, *shape) / 2, t))(randn(n, *shape))

    def tokens(n):
        return randn(n, T, C), randint(C, n, T)

    constant = torch.full((6,), 1.5)
    return {
        "regression": batches(numbers()),
        "regression outputs": batches(numbers(3)),
        "regression offset": batches(lambda n: (lambda t: (t + grid(torch.randn(n, generator=generator), 16), t))(1000 + grid(torch.randn(n, generator=generator), 16))),
        "regression small": batches(lambda n: (lambda t: (t + randn(n) / 8192, t))(randn(n) / 4096)),
        "regression constant target": [(constant + randn(6), constant)],
        "regression constant, all right": [(constant, constant)],
        "regression single sample": [(torch.tensor([2.0]), torch.tensor([1.5]))],
        "mean": batches(lambda n: (randn(n), rand(n))),
        "tokens": batches(tokens, (2, 3)),
        "tokens ignore -100": batches(lambda n: (lambda s, t: (s, with_ignored(t, -100)))(*tokens(n)), (2, 3)),
    }


data = {**multiclass_data(), **binary_data(), **multilabel_data(), **other_data()}
cases = []


def joined(name, ignore=None):
    """All batches as numpy: scores [n, columns] or [n], labels [n] or [n, L], without ignored targets."""
    preds, target = (torch.cat(t) for t in zip(*data[name]))
    if preds.ndim > 2 or (preds.ndim == 2 and name.endswith("pixels")):
        if name.startswith("binary"):
            preds = preds.flatten()
        else:
            preds = preds.movedim(1, -1).flatten(0, -2)
    target = target.movedim(1, -1).flatten(0, -2) if name.startswith("multilabel") else target.flatten()
    if ignore is not None and not name.startswith("multilabel"):
        preds, target = preds[target != ignore], target[target != ignore]
    return preds.double().numpy(), target.numpy()


def plain(x):
    if isinstance(x, np.ndarray):
        x = x.tolist()
    if isinstance(x, torch.Tensor):
        x = x.double().tolist()
    return [plain(v) for v in x] if isinstance(x, list) else ("nan" if math.isnan(x) else float(x))


def flat(x):
    return [v for part in x for v in flat(part)] if isinstance(x, list) else [math.nan if x == "nan" else x]


def agree(a, b):
    return np.allclose(flat(a), flat(b), rtol=1e-6, atol=2e-7, equal_nan=True)


def case(metric, name, module, reference=None, follows="torchmetrics", **options):
    """Adds a case. Params: reference – () → scikit-learn's result; follows – whose result the library has."""
    for preds, target in data[name]:
        module.update(preds, target)
    ours = plain(module.compute())
    golden = {"metric": metric, "data": name, "options": options, "torchmetrics": ours}
    if reference is not None:
        try:
            golden["sklearn"] = plain(reference())
            if not agree(ours, golden["sklearn"]):
                golden["follows"] = follows
                print(f"{metric} {options} on {name}: torchmetrics {ours}, scikit-learn {golden['sklearn']}, follows {follows}")
        except ValueError as error:
            print(f"{metric} {options} on {name}: scikit-learn refuses: {str(error).splitlines()[0]}")
    cases.append(golden)


def ignored_in(name):
    return int(name.split("ignore ")[1]) if "ignore " in name else -100 if "all ignored" in name else None


def labels_of(name, ignore, threshold=0.5):
    scores, target = joined(name, ignore)
    if not name.startswith("multiclass"):
        if "labels" not in name.split("multilabel")[-1]:
            scores = 1 / (1 + np.exp(-scores)) if scores.min() < 0 or scores.max() > 1 else scores
            scores = scores > threshold
        return scores.astype(int), target
    return (scores.argmax(1) if scores.ndim == 2 else scores).astype(int), target


STATISTICS = {
    "accuracy": (tc.MulticlassAccuracy, tc.BinaryAccuracy, tc.MultilabelAccuracy),
    "precision": (tc.MulticlassPrecision, tc.BinaryPrecision, tc.MultilabelPrecision),
    "recall": (tc.MulticlassRecall, tc.BinaryRecall, tc.MultilabelRecall),
    "f1": (tc.MulticlassF1Score, tc.BinaryF1Score, tc.MultilabelF1Score),
    "fbeta": (tc.MulticlassFBetaScore, tc.BinaryFBetaScore, tc.MultilabelFBetaScore),
    "iou": (tc.MulticlassJaccardIndex, tc.BinaryJaccardIndex, tc.MultilabelJaccardIndex),
}
SKLEARN = {"precision": sk.precision_score, "recall": sk.recall_score, "f1": sk.f1_score, "fbeta": sk.fbeta_score, "iou": sk.jaccard_score}


def task_of(name):
    return name.split()[0]


def task_arguments(name):
    return {"multiclass": {"num_classes": C}, "binary": {}, "multilabel": {"num_labels": L}}[task_of(name)]


def statistic(metric, name, average=None, **more):
    task, ignore = task_of(name), ignored_in(name)
    kind = STATISTICS[metric][["multiclass", "binary", "multilabel"].index(task)]
    beta = {"beta": 2.0} if metric == "fbeta" else {}
    shared = dict(more) if ignore is None else {"ignore_index": ignore, **more}
    arguments = {**beta, **task_arguments(name), **shared}
    if average:
        arguments["average"] = average
    predicted, target = labels_of(name, ignore, more.get("threshold", 0.5))
    present = {"labels": list(range(C))} if average == "none" and task == "multiclass" else {}
    reference = None
    plain_case = not {"top_k", "zero_division"} & set(more) and "all ignored" not in name and not (task == "multilabel" and ignore is not None)
    if metric == "accuracy" and plain_case and average in (None, "micro") and task != "multilabel":
        reference = lambda: sk.accuracy_score(target, predicted)
    elif metric == "accuracy" and more.get("top_k") and average == "micro" and "ties" not in name:
        reference = lambda: sk.top_k_accuracy_score(target, joined(name, ignore)[0], k=more["top_k"], labels=range(C))
    elif metric in SKLEARN and plain_case:
        how = "binary" if task == "binary" else None if average == "none" else average
        reference = lambda: SKLEARN[metric](target, predicted, average=how, zero_division=0, **beta, **present)
    options = {"task": task, **shared, **({"average": average} if average else {})}
    case(metric, name, kind(**arguments), reference, **options)


def confusion(name, normalize):
    task, ignore = task_of(name), ignored_in(name)
    kind = {"multiclass": tc.MulticlassConfusionMatrix, "binary": tc.BinaryConfusionMatrix, "multilabel": tc.MultilabelConfusionMatrix}[task]
    shared = {} if ignore is None else {"ignore_index": ignore}
    module = kind(**task_arguments(name), normalize=normalize, **shared)
    predicted, target = labels_of(name, ignore)
    how = None if normalize == "none" else normalize
    labels = range(C if task == "multiclass" else 2)
    reference = None if task == "multilabel" or "all ignored" in name else lambda: sk.confusion_matrix(target, predicted, normalize=how, labels=labels)
    case("confusion", name, module, reference, task=task, normalize=normalize, **shared)


def curve(metric, name, average=None, thresholds=None):
    task, ignore = task_of(name), ignored_in(name)
    kinds = {"auroc": (tc.MulticlassAUROC, tc.BinaryAUROC, tc.MultilabelAUROC),
             "average_precision": (tc.MulticlassAveragePrecision, tc.BinaryAveragePrecision, tc.MultilabelAveragePrecision)}
    shared = {} if ignore is None else {"ignore_index": ignore}
    arguments = {**task_arguments(name), **shared, **({"average": average} if average else {}), **({"thresholds": thresholds} if thresholds else {})}
    module = kinds[metric][["multiclass", "binary", "multilabel"].index(task)](**arguments)
    reference, follows = None, "torchmetrics"
    if thresholds is None and not (task == "multilabel" and ignore is not None):
        scores, target = joined(name, ignore)
        if task == "multiclass":
            probabilities = torch.from_numpy(scores)
            probabilities = probabilities.softmax(1) if scores.min() < 0 or scores.max() > 1 else probabilities
            scores, target = probabilities.numpy(), np.eye(C, dtype=int)[target]
        how = None if average == "none" else average or "macro"
        function = sk.roc_auc_score if metric == "auroc" else sk.average_precision_score
        reference = lambda: function(target, scores, average=how)
    options = {"task": task, **shared, **({"average": average} if average else {}), **({"thresholds": thresholds} if thresholds else {})}
    case(metric, name, module, reference, follows, **options)


def classification_cases():
    for name in data:
        task = task_of(name)
        if task not in ("multiclass", "binary", "multilabel"):
            continue
        for metric in STATISTICS:
            for average in [None] if task == "binary" else ["micro", "macro", "weighted", "none"]:
                if metric == "iou" and name == "multiclass all ignored":
                    continue  # torchmetrics: NaN for averages, 0 for micro and none; the library: 0
                statistic(metric, name, average)
        for normalize in ["none", "true", "pred", "all"] if "ignore" not in name or "all" in name else ["none"]:
            confusion(name, normalize)
    for name in ("multiclass logits", "multiclass absent classes", "multiclass ignore -100", "multiclass ignore 2"):
        for average in ("micro", "macro", "weighted", "none"):
            statistic("accuracy", name, average, top_k=2)
            statistic("f1", name, average, top_k=3)
    for name in ("binary logits", "binary probabilities", "multilabel logits"):
        statistic("precision", name, None if name.startswith("binary") else "macro", threshold=0.75)
    for average in ("macro", "none"):
        for metric in ("precision", "recall", "f1", "iou"):
            statistic(metric, "multiclass one class", average, zero_division=1.0)


def curve_cases():
    for name in data:
        task = task_of(name)
        if task not in ("multiclass", "binary", "multilabel") or name.endswith("labels") or name.endswith("all ignored"):
            continue
        averages = {"binary": [None], "multiclass": ["macro", "weighted", "none"], "multilabel": ["micro", "macro", "weighted", "none"]}[task]
        for metric in ("auroc", "average_precision"):
            for average in averages:
                curve(metric, name, average)
                curve(metric, name, average, thresholds=20)
    curve("auroc", "binary probabilities", thresholds=[0.125, 0.5, 0.75])
    curve("average_precision", "multiclass probabilities", "none", thresholds=[0.125, 0.5, 0.75])


def other_cases():
    for name in [n for n in data if n.startswith("regression") and n != "regression outputs"]:
        preds, target = joined(name)
        case("mse", name, tr.MeanSquaredError(), lambda: sk.mean_squared_error(target, preds), follows="sklearn")
        case("mse", name, tr.MeanSquaredError(squared=False), lambda: sk.root_mean_squared_error(target, preds), follows="sklearn", squared=False)
        case("mae", name, tr.MeanAbsoluteError(), lambda: sk.mean_absolute_error(target, preds), follows="sklearn")
        if "single" not in name:
            case("r2", name, tr.R2Score(), lambda: sk.r2_score(target, preds), follows="sklearn")
    preds, target = (torch.cat(t).double().numpy() for t in zip(*data["regression outputs"]))
    for how in ("raw_values", "uniform_average", "variance_weighted"):
        case("r2", "regression outputs", tr.R2Score(multioutput=how), lambda: sk.r2_score(target, preds, multioutput=how), multioutput=how, num_outputs=3)
    case("mse", "regression outputs", tr.MeanSquaredError(num_outputs=3), lambda: sk.mean_squared_error(target, preds, multioutput="raw_values"), multioutput="raw_values", num_outputs=3)
    case("mae", "regression outputs", tr.MeanAbsoluteError(num_outputs=3), lambda: sk.mean_absolute_error(target, preds, multioutput="raw_values"), multioutput="raw_values", num_outputs=3)
    values, weights = (torch.cat(t).double().numpy() for t in zip(*data["mean"]))
    case("mean", "mean", torchmetrics.MeanMetric(), lambda: np.average(values, weights=weights))
    for name in ("tokens", "tokens ignore -100"):
        ignore = ignored_in(name)
        scores, target = (torch.cat(t).flatten(0, 1) for t in zip(*data[name]))
        kept = target != (-1 if ignore is None else ignore)
        scores, target = scores[kept].double(), target[kept]
        log_loss = lambda: math.exp(sk.log_loss(target, scores.softmax(1), labels=range(C)))
        case("perplexity", name, torchmetrics.text.Perplexity(ignore_index=ignore), log_loss, **({} if ignore is None else {"ignore_index": ignore}))


def stored(tensor):
    values = tensor.flatten().tolist()
    return {"shape": list(tensor.shape), "integer": not tensor.is_floating_point(), "values": values}


if __name__ == "__main__":
    out.mkdir(parents=True, exist_ok=True)
    classification_cases()
    curve_cases()
    other_cases()
    versions = {"torch": torch.__version__, "torchmetrics": torchmetrics.__version__, "scikit-learn": sklearn.__version__}
    tensors = {name: [[stored(p), stored(t)] for p, t in parts] for name, parts in data.items()}
    text = json.dumps({"versions": versions, "data": tensors, "cases": cases}, separators=(",", ":"))
    (out / "metrics.json").write_text(text.replace('"metric":', '\n"metric":') + "\n")
    print(f"{len(cases)} cases, {len(text) // 1000} kB")
