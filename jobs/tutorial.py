"""fedmpi in ten minutes, without a word to give: python jobs/tutorial.py

Runs the cells of `jobs/tutorial.ipynb`: FedHM on scikit-learn's handwritten
digits, its cost beforehand, its results, a trained net as a file, a net of
your own and another method. It takes seconds on one core and writes into a
temporary folder.
"""

import sys

if __name__ == "__main__" and {"-h", "--help"} & {*sys.argv[1:]}:
    print(__doc__, end="")
    sys.exit()

# %% [markdown]
# # fedmpi in ten minutes
#
# A federation of clients of unequal capacity, trained, looked at, and taken home: on scikit-learn's handwritten digits,
# on one core, in seconds. `tutorial.ipynb` has the same cells as `tutorial.py`; tests run both.

# %%
import tempfile
from pathlib import Path

import torch
from torch import nn

import fedmpi

folder = Path(tempfile.mkdtemp(prefix="fedmpi-tutorial-"))

# %% [markdown]
# ## A config
#
# `fedhm_digits` comes with fedmpi: FedHM, whose clients train the whole net or low-rank versions of it. On top come
# values of your own, as dotted keys or by section. They make a short run here; the config as it stands takes a minute
# and reaches 98 %. `configs/README.md` has every key.

# %%
config = fedmpi.load_config(
    "fedhm_digits",
    {"train.local_epochs": 2, "train.schedule.milestones": [3]},
    rounds=4,
    clients={"count": 8, "per_round": 4},
    output={"tensorboard": False, "report": False},
)
print(config.method)

# %% [markdown]
# A mistake is one line for each problem:

# %%
try:
    fedmpi.load_config("fedhm_digits", {"train.lrr": 0.1}, rounds=0)
except fedmpi.ConfigError as error:
    print(error)

# %% [markdown]
# ## What it will cost
#
# Before anything trains: the four tiers, from the whole net to rank ratio 1/8, and what their clients send and compute.

# %%
cost = fedmpi.plan(config)
print(cost)
print(f"the smallest net has {cost.tiers[-1].params / cost.tiers[0].params:.0%} of the parameters")

# %% [markdown]
# ## The run
#
# `progress=False` would print nothing. Interrupt it (Ctrl-C, or the notebook's stop button): `fedmpi.Interrupted` says
# what is saved, and `fedmpi.run(config, run_dir=..., resume=True)` continues to the same bits. The same lines in a
# script under `mpirun -n 5 python script.py` give the same bits on five ranks.

# %%
run = fedmpi.run(config, folder / "fedhm")
print(run)

# %% [markdown]
# ## Its results
#
# `run.rounds()` is a table with a row for each round: `pandas.DataFrame(run.rounds())` takes it.

# %%
for row in run.rounds():
    print(row["round"], f"loss {row['train_loss']:.3f}", f"whole net {row['tiers/1/accuracy']:.1%}")

for name, scores in run.scores.items():
    print(f"tier {name}: {scores.last.accuracy:.1%} right after round {scores.last.round}")

# %% [markdown]
# Who had which digits (rows are clients, columns are the classes 0 to 9):

# %%
clients = run.partition()
print(clients.classes)
print("examples of client 0:", clients.client(0)[:8], "...")

# %%
run.figure(tiers=["1", "0.125"]).savefig(folder / "accuracy.png")

# %% [markdown]
# ## A trained net, in plain torch
#
# The net of the smallest tier, with the BatchNorm statistics that its accuracy was measured with. The digit is a one,
# 8 x 8 pixels of 0 to 16.

# %%
net, info = run.net("0.125"), config.data.info()
pixels = """
    0 0 0 10 13  2 0 0   0 0 2 16 16  6 0 0   0 0 0 15 16  7 0 0   0 0 0 12 16 10 0 0
    0 0 0  8 16 14 0 0   0 0 0  3 16 13 0 0   0 0 1 12 16 11 0 0   0 0 0  8 15 11 0 0
"""
digit = torch.tensor([int(pixel) for pixel in pixels.split()]).view(1, 1, 8, 8)
inputs = (digit / 16 - info.mean[0]) / info.std[0]
with torch.no_grad():
    chances = net(inputs).softmax(dim=1)
print("most likely:", chances.argmax().item(), f"({chances.max().item():.0%})")

# %% [markdown]
# A file for use without fedmpi; `check` puts the whole test set through it. `format` is `pt2`, `safetensors` or `onnx`.

# %%
print(run.export(folder / "digits.pt2", tier=0.125, check=True))

# %% [markdown]
# ## Your own net, and another method
#
# A class or a function, here out of this very cell. Resumed or opened elsewhere it needs a module: `mynets:Net`.


# %%
def own_net(num_classes: int, example_shape: tuple[int, ...], hidden: int = 32) -> nn.Module:
    num_inputs = torch.Size(example_shape).numel()
    return nn.Sequential(nn.Flatten(), nn.Linear(num_inputs, hidden), nn.ReLU(), nn.Linear(hidden, num_classes))


own = {"name": own_net, "hidden": 48}
runs = {
    method: fedmpi.run(
        fedmpi.load_config(config_name, rounds=3, model=own, train={"local_epochs": 1}, output={"report": False}),
        folder / method,
        progress=False,
    )
    for method, config_name in [("fedavg", "fedavg_digits"), ("topk", "topk_digits")]
}
for method, found in runs.items():
    sent = sum(row["protocol_up_bytes"] for row in found.rounds())
    print(f"{method}: {found.scores['1'].last.accuracy:.1%} after {sent / 1e6:.2f} MB from the clients")

# %% [markdown]
# ## A run of yesterday
#
# A directory is enough. Runs that are still running are read with `running=True`.

# %%
again = fedmpi.open_run(folder / "fedhm")
print(again.state, again.config.method.name, again.scores == run.scores)

# %% [markdown]
# More: `fedmpi/library/README.md` (these functions), `fedmpi show RUN --html` (a page of a run),
# `fedmpi grid --help` (methods over seeds), `fedmpi/methods/README.md` (a method of your own).
