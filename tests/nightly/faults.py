"""Seeds 40 faults in the package, one at a time, and runs the tests that should catch each.

    PYTHONPATH=tests python -m nightly.faults [WORD ...]

With words only the faults whose file or meaning contains one. A fault is applied to a copy of the tree; its tests run
until one fails. Prints a line a fault; the exit code is 1 if one was not caught. An old text that its file does not
have exactly once ends the program: whoever changes that line writes the fault again.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

TOP = Path(__file__).resolve().parents[2]
# Of each fault its file, what it breaks, the tests (in tests/; those in mpi/ run on 3 ranks); the old and the new text.
FAULTS = """
exactsum.py | terms are cut, not rounded | unit/test_exactsum.py
  np.rint(terms, out=terms)  ==>  np.floor(terms, out=terms)
exactsum.py | a client that holds a part of a tensor weighs twice | unit/test_exactsum.py
  self._entries[name] + (self._whole - self._partial[name])  ==>  self._entries[name] + self._whole
seeds.py | numpy's global generator is not put back | unit/test_seeds.py contract/test_training.py
  np.random.set_state(before[1])  ==>  pass
train_round.py | a client's memory stays that of its first round | contract/test_every_method.py -k plain_steps and topk
  if report.memory_digest:  ==>  if report.memory_digest and client not in memories:
rounds/client.py | a client's batches are those of round 1 | contract/test_draws.py contract/test_training.py
  client.seed, task.round_number, task.client)  ==>  client.seed, 1, task.client)
rounds/exchange.py | reduce counts rank 0's own clients twice | unit/test_federation.py mpi/test_bits.py -k reduce
  report.status == CONTRIBUTED and report.client not in own  ==>  report.status == CONTRIBUTED
rounds/publish.py | a test takes what was published for other nets | contract/test_evaluation.py
  is_evaluated(setup.config, number - 1)  ==>  is_evaluated(setup.config, number)
rounds/evaluate.py | re-estimation augments every round alike | contract/test_evaluation.py unit/test_evaluate_units.py
  seeds.mix("restat", setup.config.seed, round_number, batch)  ==>  seeds.mix("restat", setup.config.seed, batch)
learning/local.py | a share of the work is rounded down | unit/test_participation.py contract/test_training.py
  max(min(1, whole), round(share * whole))  ==>  max(min(1, whole), int(share * whole))
learning/flat.py | AdamW keeps the squares of the client before | unit/test_flat.py
  for kept in (self._momentum, self._squares, self._buffers.steps):  ==>  for kept in (self._momentum,):
learning/flat.py | small gradients are stretched to the clipping norm | contract/test_training.py
  1e-6)).clamp(max=1.0))  ==>  1e-6)))
learning/bn.py | statistics of earlier batches leak into later ones | unit/test_evaluate_units.py
  layer.momentum = 1.0  ==>  layer.momentum = 0.5
learning/evaluate.py | the mean of the statistics divides by one batch too many | unit/test_evaluate_units.py
  (total.total() / len(bounds))  ==>  (total.total() / (len(bounds) + 1))
learning/loss_scale.py | a bad step leaves the scale as it is | contract/test_loss_scale.py
  torch.where(is_bad, 0.5, torch  ==>  torch.where(is_bad, 1.0, torch
methods/scaffold.py | the server's control variate takes too large a step | contract/test_scaffold.py
  alpha=share)  ==>  alpha=1.0)
methods/scaffold.py | c and c_i change places | contract/test_scaffold.py
  published[_control(name)] - value for name  ==>  value - published[_control(name)] for name
methods/topk.py | one tie too few is sent | contract/test_topk.py
  <= k - above.sum())  ==>  < k - above.sum())
methods/feddyn.py | the linear term has the wrong sign | contract/test_feddyn.py
  means[name] - new[_linear(name)] / alpha  ==>  means[name] + new[_linear(name)] / alpha
methods/fednova.py | steps that fp16 left out count | contract/test_fednova.py contract/test_loss_scale.py
  normalizer(outcome.steps - outcome.left_out,  ==>  normalizer(outcome.steps,
methods/fedopt.py | Yogi's second moment moves the wrong way | contract/test_fedopt.py
  (second - square).sign()  ==>  (square - second).sign()
methods/robust.py | Krum has one neighbour too many | contract/test_robust.py
  max(1, len(clients) - self.attackers - 2)  ==>  max(1, len(clients) - self.attackers - 1)
methods/hermes.py | entries that some clients lack are averaged all the same | contract/test_hermes.py
  contributions.shares(name), device=mean.device) == 1  ==>  contributions.shares(name), device=mean.device) > 0
methods/fdnnc.py | a single small device sends B first | contract/test_fdnnc.py
  return task.round_number % 2 == 1  ==>  return task.round_number % 2 == 0
methods/splitmix.py | the queue skips the first cohort | contract/test_splitmix.py
  num_served = (task.round_number - 1) * task  ==>  num_served = task.round_number * task
methods/fedhm_delta.py | all is kept of what clients did not get | contract/test_fedhm.py
  return untouched.mul_(options.residual).add_(  ==>  return untouched.add_(
methods/perfedavg.py | the curvature term is twice too large | contract/test_perfedavg.py
  options.alpha / (2 * DELTA)  ==>  options.alpha / DELTA
lowrank/svd.py | signs of singular vectors are the solver's | unit/test_lowrank_svd.py
  torch.where(largest < 0, -root, root)  ==>  root.clone()
lowrank/decay.py | U decays by its own Gram matrix | unit/test_lowrank.py contract/test_training.py
  _add_product_(grad_u, gram_v, u_rows, coefficient)  ==>  _add_product_(grad_u, gram_u, u_rows, coefficient)
lowrank/kernels.py | unimportant kernels are drawn | unit/test_lowrank_kernels.py
  clocks.log() - torch.special.xlogy  ==>  clocks.log() + torch.special.xlogy
federation/cohort.py | a milestone acts a round early | unit/test_federation.py
  sum(milestone <= round_number - 1  ==>  sum(milestone <= round_number
federation/participation.py | uploads of a round are lost all or none | unit/test_participation.py
  self.config.seed, round_number, client).random() >= share  ==>  self.config.seed, round_number).random() >= share
data/batches.py | a batch may have one example | unit/test_data_batches.py
  num_examples - starts[-1] == 1  ==>  num_examples - starts[-1] == 0
data/sets/har.py | a stretch begins one sample late | unit/test_data_har.py
  yield experiment, first - 1, cut, False  ==>  yield experiment, first, cut, False
models/surgery/scaler.py | eps is scaled once, not squared | unit/test_widths.py contract/test_widths.py
  eps * rate**2 if  ==>  eps * rate if
store/checkpoint.py | the oldest checkpoints stay | unit/test_output_checkpoint.py
  stay = {*saved[:keep],  ==>  stay = {*saved[-keep:],
store/checkpoint.py | a checkpoint may lack a memory | unit/test_output_checkpoint.py end_to_end/test_damaged.py
  memory.load(run_dir, client, version)  ==>  pass
mpi/communicator.py | a mistake that one rank finds is not shared | mpi/test_comm.py mpi/test_unlike_ranks.py
  list(dict.fromkeys(filter(None, comm.allgather_text(own))))  ==>  [own] if own else []
running/resuming.py | the newest state is taken with another config | end_to_end/test_resume.py
  if differences := _as_begun(config, snapshot).diff(snapshot.config):  ==>  if differences := []:
running/results.py | lost uploads count as sent | unit/test_participation.py unit/test_run.py
  sum(report.up_bytes for report in contributed)  ==>  sum(report.up_bytes for report in result.reports)
results/evidence.py | the interval is one mean too narrow | unit/test_evidence.py
  float(means[-place]), 1  ==>  float(means[-place - 1]), 1
"""


@dataclass(frozen=True)
class Fault:
    file: str
    meaning: str
    tests: str
    old: str
    new: str

    def mutated(self) -> str:
        """Returns the file's text with the fault in it."""
        text = (TOP / "fedmpi" / self.file).read_text()
        if text.count(self.old) != 1:
            sys.exit(f"fedmpi/{self.file} has {self.old!r} {text.count(self.old)} times; write this fault again")
        return text.replace(self.old, self.new)


def is_caught(fault: Fault) -> bool:
    """Runs the tests of a fault on a copy of the tree that has it."""
    files, _, choice = fault.tests.partition(" -k ")
    places = [f"tests/{file}" for file in files.split()]
    on_ranks = [place for place in places if place.startswith("tests/mpi/")]
    alone = [place for place in places if place not in on_ranks]
    pytest = [sys.executable, *"-m pytest -q -x -p no:cacheprovider".split(), *(["-k", choice] if choice else [])]
    commands = [[*pytest, *alone]] if alone else []
    if on_ranks:
        commands.append(["mpirun", "-n", "3", *pytest, "--with-mpi", "-m", "mpi", *on_ranks])
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "copy"
        shutil.copytree(TOP, copy, ignore=shutil.ignore_patterns(".*", "__pycache__", "runs"))
        (copy / "fedmpi" / fault.file).write_text(fault.mutated())
        for command in commands:
            done = subprocess.run(command, cwd=copy, env={**os.environ, "PYTHONPATH": str(copy)}, capture_output=True)
            if done.returncode == 1:
                return True
            if done.returncode not in (0, 5):
                sys.exit(f"{fault.file}, {fault.meaning}: {' '.join(command)}\n{done.stdout.decode()[-2000:]}")
    return False


def main() -> int:
    lines = FAULTS.strip().splitlines()
    pairs = zip(lines[::2], lines[1::2], strict=True)
    faults = [Fault(*head.split(" | "), *change.strip().split("  ==>  ")) for head, change in pairs]
    for fault in faults:
        fault.mutated()
    verdicts = []
    for fault in faults:
        name = f"{fault.file}: {fault.meaning}"
        if all(word in name for word in sys.argv[1:]):
            verdicts.append(is_caught(fault))
            print(f"{'caught' if verdicts[-1] else 'NOT CAUGHT'}: {name}", flush=True)
    print(f"{sum(verdicts)} of {len(verdicts)} faults are caught")
    return int(not all(verdicts))


if __name__ == "__main__":
    sys.exit(main())
