"""Writes tests/goldens/tune/optuna.json from Optuna: python tools/goldens/tune.py

functions: for three functions, the median over 20 seeds of the best value after 20, 40 and 80 trials of Optuna's TPE.
densities: for a fixed history of trials, log l(x) - log g(x) of TPE at some configurations, without and with constraints.
halving: learning curves of 30 trials in sequence, and the step at which Optuna's successive halving ends each (0: it does not).
"""

import json
import math
import pathlib
import random
import statistics
import warnings

import numpy
import optuna
from optuna.samplers import TPESampler
from optuna.samplers._tpe.sampler import _split_trials

warnings.filterwarnings("ignore")
optuna.logging.set_verbosity(optuna.logging.ERROR)
out = pathlib.Path(__file__).resolve().parents[2] / "tests" / "goldens" / "tune"
SEEDS, COUNTS = 20, (20, 40, 80)


def branin(trial):
    x, y = trial.suggest_float("x", -5, 10), trial.suggest_float("y", 0, 15)
    return (y - 5.1 / (4 * math.pi**2) * x * x + 5 / math.pi * x - 6) ** 2 + 10 * (1 - 1 / (8 * math.pi)) * math.cos(x) + 10


A = ((10, 3, 17, 3.5, 1.7, 8), (0.05, 10, 17, 0.1, 8, 14), (3, 3.5, 1.7, 10, 17, 8), (17, 8, 0.05, 10, 0.1, 14))
P = (
    (1312, 1696, 5569, 124, 8283, 5886),
    (2329, 4135, 8307, 3736, 1004, 9991),
    (2348, 1451, 3522, 2883, 3047, 6650),
    (4047, 8828, 8732, 5743, 1091, 381),
)
ALPHA = (1.0, 1.2, 3.0, 3.2)


def hartmann6(trial):
    x = [trial.suggest_float(f"x{i}", 0, 1) for i in range(6)]
    return -sum(ALPHA[i] * math.exp(-sum(A[i][j] * (x[j] - P[i][j] * 1e-4) ** 2 for j in range(6))) for i in range(4))


def mixed(trial):
    """Numbers on a logarithmic scale, integers and a choice, as in a recipe."""
    rate = trial.suggest_float("lr", 1e-5, 1, log=True)
    layers = trial.suggest_int("layers", 1, 12)
    width = trial.suggest_int("width", 16, 1024, log=True)
    penalty = {"sgd": 0.5, "adam": 0.0, "lion": 1.0}[trial.suggest_categorical("optimizer", ["sgd", "adam", "lion"])]
    return (math.log10(rate) + 3) ** 2 + 0.05 * (layers - 5) ** 2 + (math.log2(width) - 7.5) ** 2 * 0.2 + penalty


def medians(function):
    best = {count: [] for count in COUNTS}
    for seed in range(SEEDS):
        study = optuna.create_study(sampler=TPESampler(seed=seed))
        study.optimize(function, n_trials=max(COUNTS))
        values = [trial.value for trial in study.trials]
        for count in COUNTS:
            best[count].append(min(values[:count]))
    return {str(count): statistics.median(values) for count, values in best.items()}


def internal(trial):
    """The values as tests/tune reads them: a choice is its index."""
    return [float(trial.distributions[name].to_internal_repr(value)) for name, value in trial.params.items()]


def history(constrained):
    constraints = (lambda trial: (0.2 - trial.params["lr"] * 10,)) if constrained else None
    study = optuna.create_study(sampler=TPESampler(seed=7, constraints_func=constraints))
    study.optimize(mixed, n_trials=60)
    return study


def densities(constrained):
    # The default order of equal numbers depends on the processor.
    unstable, numpy.argsort = numpy.argsort, lambda values, **_: unstable(values, kind="stable")
    try:
        return stable_densities(constrained)
    finally:
        numpy.argsort = unstable


def stable_densities(constrained):
    study = history(constrained)
    trials = study.get_trials(deepcopy=False)
    space = trials[0].distributions
    sampler = study.sampler
    below, above = _split_trials(study, trials, sampler._gamma(len(trials)))
    good = sampler._build_parzen_estimator(study, space, below, handle_below=True)
    others = sampler._build_parzen_estimator(study, space, above, handle_below=False)
    probes = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=3))
    probes.optimize(mixed, n_trials=25)
    rows = [internal(trial) for trial in probes.trials]
    columns = {name: numpy.array([row[i] for row in rows]) for i, name in enumerate(space)}
    violation = lambda trial: max(0.0, 0.2 - trial.params["lr"] * 10) if constrained else 0.0
    return {
        "trials": [internal(trial) for trial in trials],
        "objectives": [trial.value for trial in trials],
        "violations": [violation(trial) for trial in trials],
        "good": [trial.number for trial in below],
        "probes": rows,
        "log_good": [float(x) for x in good.log_pdf(columns)],
        "log_others": [float(x) for x in others.log_pdf(columns)],
    }


def halving(first, factor):
    generator = random.Random(5)
    curves = [[round(1 / (1 + step * rate) + generator.gauss(0, 0.02), 6) for step in range(1, 28)]
              for rate in (generator.uniform(0.02, 0.5) for _ in range(30))]
    curves[4][2] = math.nan
    pruner = optuna.pruners.SuccessiveHalvingPruner(min_resource=first, reduction_factor=factor)
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=0), pruner=pruner)
    ends = []
    for curve in curves:
        trial = study.ask()
        end = 0
        for step, value in enumerate(curve, 1):
            trial.report(value, step)
            if trial.should_prune():
                end = step
                break
        study.tell(trial, state=optuna.trial.TrialState.PRUNED) if end else study.tell(trial, curve[-1])
        ends.append(end)
    written = [[None if math.isnan(value) else value for value in curve] for curve in curves]
    return {"first_rung": first, "factor": factor, "curves": written, "ends": ends}


def main():
    result = {
        "optuna": optuna.__version__,
        "functions": {function.__name__: medians(function) for function in (branin, hartmann6, mixed)},
        "densities": [densities(False), densities(True)],
        "halving": [halving(1, 3), halving(2, 4)],
    }
    out.mkdir(parents=True, exist_ok=True)
    (out / "optuna.json").write_text(json.dumps(result) + "\n")


main()
